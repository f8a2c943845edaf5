"""The same mutants against the tests of two commits: what a change of the suite no longer finds.

python -m tests.mutation.compare --before COMMIT [--after COMMIT] [--modules M ...] [--tests T ...] [--each N]

Takes N mutants of each module by a public seed, of those that both commits have: a mutant's name says what stands in
its function before and after, wherever the lines are. Each commit's mutants meet its own tests, in a checkout of its
own, by this checkout's driver. Writes benchmarks/reports/mutants.md. Ends with 1 if one that was found is no longer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.mutation.mutants import of_module
from tests.mutation.nightly import OF_CLIPPING
from tests.mutation.report import ALIVE, judgements

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "mutants.md"
MODULES = (
    "app/ledger/accounts.py",
    "app/ledger/sub_accounts.py",
    "app/ledger/verification.py",
    "core/privacy/filters.py",
    "core/privacy/gdp.py",
    "core/privacy/pricing.py",
    "worker/clipping/accumulators.py",
    "worker/clipping/engine.py",
    "worker/clipping/terms.py",
)
# Those that are about these modules, and those that a faster suite changed.
TESTS = (
    *(f"tests/ledger/test_{name}.py" for name in ("accounts", "anchors", "blocks", "chain", "heads", "joining")),
    *(f"tests/privacy/test_{name}.py" for name in ("calibration", "filters", "gdp", "pricing", "releases")),
    *OF_CLIPPING,
    "tests/budgets/test_holds.py",
    "tests/hpo/test_api.py",
)
SEED = 20261124
Results = Mapping[str, str]


def checkout(commit: str, folder: Path) -> Path:
    """That commit's files, its native library, compiled if it has one, and this driver."""
    folder.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    shutil.copytree(Path(__file__).parent, folder / "tests" / "mutation", dirs_exist_ok=True)
    if (folder / "core" / "native" / "build.py").exists():
        subprocess.run([sys.executable, "core/native/build.py"], cwd=folder, check=True)
    return folder


def common(before: Path, after: Path, modules: Sequence[str], each: int) -> list[str]:
    """The names of so many mutants of each module that both have."""
    names = []
    for module in modules:
        old, new = ([mutant.name for mutant in of_module(module, (at / module).read_text())] for at in (before, after))
        both = sorted({*old} & {*new})
        random.Random(f"{SEED}:{module}").shuffle(both)
        names += both[:each]
    return names


def results(tree: Path, names: Sequence[str], tests: Sequence[str], seconds: float) -> Results:
    """What becomes of the mutants there; survivors meet more tests, as by night."""
    asked = tree / "names.json"
    asked.write_text(json.dumps(names))
    line = [sys.executable, "-m", "tests.mutation.nightly", "--seconds", str(seconds), "--names", str(asked)]
    line += ["--report", str(tree / "report.md"), "--tests", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    for more in ([], ["--again"]):
        subprocess.run([*line, *more], cwd=tree, env=environment, check=False)
    lines = map(json.loads, (tree / ".cache" / "mutation" / "results.jsonl").read_text().splitlines())
    return {each["name"]: each["result"] for each in lines}


def text(commits: tuple[str, str], names: Sequence[str], before: Results, after: Results) -> tuple[str, list[str]]:
    """The report, and the mutants that are found no longer."""
    judged = judgements()
    both = [each for each in names if each in before and each in after]
    less = [each for each in both if before[each] not in ALIVE and after[each] in ALIVE]
    lines = [
        "# The same mutants, before and after a change of the suite",
        "",
        f"`python -m tests.mutation.compare --before {commits[0]} --after {commits[1]}`, {datetime.now(UTC):%Y-%m-%d},",
        f"seed {SEED}: {len(both)} mutants that both commits have, each against its commit's own tests of them",
        f"([how](mutation.md)). {len(less)} that were found are found no longer.",
        "",
        "| module | mutants | found before | found after |",
        "|---|---|---|---|",
    ]
    for module in sorted({each.partition(" ")[0] for each in both}):
        own = [each for each in both if each.startswith(f"{module} ")]
        counts = [sum(became[each] not in ALIVE for each in own) for became in (before, after)]
        lines.append(f"| `{module}` | {len(own)} | {counts[0]} | {counts[1]} |")
    lines += ["", "## Not found by the fast tests, before or after", ""]
    for each in both:
        if before[each] in ALIVE or after[each] in ALIVE:
            verdict, why = judged.get(each, ("not judged", ""))
            said = f"before: {before[each]}, after: {after[each]}; {verdict}"
            lines.append(f"* `{each}`: {said}{why and ': '}{why}")
    return "\n".join(lines) + "\n", less


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.compare")
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", default="HEAD")
    parser.add_argument("--modules", nargs="+", default=MODULES)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=900.0, help="for each commit")
    parser.add_argument("--report", type=Path, default=REPORT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        trees = [checkout(commit, Path(name) / f"{place}") for place, commit in enumerate((asked.before, asked.after))]
        names = common(trees[0], trees[1], asked.modules, asked.each)
        before, after = (results(tree, names, asked.tests, asked.seconds) for tree in trees)
    report, less = text((asked.before, asked.after), names, before, after)
    asked.report.write_text(report)
    print("\n".join([f"wrote {asked.report}", *(f"no longer found: {each}" for each in less)]))
    return int(bool(less))


if __name__ == "__main__":
    sys.exit(main())
