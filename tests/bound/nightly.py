"""The stated bound of all kinds over all numbers of records: `make nightly`. Writes docs/reports/bound.md; ends with 1
where one unit moves anything by more than is paid for.

python -m tests.bound.nightly [MOST]
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.bound.worst import CASES, FEW, LARGE, MORE, MOST, Case, scores, worst_ranking, worst_score, worst_sum
from tests.hf.test_bound import case_of
from tests.hf.test_norms import CASES as TUNINGS
from tests.hf.tiny import FAMILIES, SIZES, write
from worker.models.next_item import NextItem

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reports" / "bound.md"
THREADS = (1, 2)
ROUNDED = 1 + 1e-12


@dataclass(frozen=True)
class Found:
    """The worst that was found of one thing: in parts of what is paid for one unit.

    Attributes:
        what: "sum", a score, or "ranking".
        bound: what it may be.
    """

    name: str
    what: str
    dtype: str
    threads: int
    numbers: str
    worst: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.worst <= self.bound


def main() -> int:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else MOST
    before, found = torch.get_num_threads(), list[Found]()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, case in (CASES | MORE | LARGE | _tunings(Path(folder))).items():
                for threads in THREADS:
                    torch.set_num_threads(threads)
                    for each in _measured(name, case, threads, most):
                        found.append(each)
                        print(f"{name}, {threads} threads: {each.what} {each.worst:.12f}", flush=True)
    finally:
        torch.set_num_threads(before)
    TARGET.write_text(_report(found, most))
    print(f"wrote {TARGET}")
    return 0 if all(each.holds for each in found) else 1


def _tunings(root: Path) -> dict[str, Case]:
    for kind in (*SIZES, *FAMILIES):
        write(root / kind, kind)
    write(root / "llama-tied", "llama", tie_word_embeddings=True)
    every = [*TUNINGS, *((path, tuning) for path in FAMILIES for tuning in ("full", "lora"))]
    found = {f"{path}, {tuning}": case_of(root, path, tuning) for path, tuning in every}
    return found | {"gpt2, lora, bfloat16": case_of(root, "gpt2", "lora", torch.bfloat16)}


def _measured(name: str, case: Case, threads: int, most: int) -> Iterator[Found]:
    every = tuple(each for each in (FEW if case.slow else range(1, most + 1)) if each <= most)
    numbers = ", ".join(map(str, every)) if case.slow else f"1 … {every[-1]}"
    dtype = str(case.model.dtype).removeprefix("torch.")
    yield Found(name, "sum", dtype, threads, numbers, worst_sum(case, every), case.slack)
    if case.divided or case.per_unit > 1:
        return  # of gradients alone
    for what in ("accuracy", "loss"):
        if scores(case, what):
            yield Found(name, what, dtype, threads, numbers, worst_score(case, what, every), ROUNDED)
    if isinstance(case.model, NextItem):
        yield Found(name, "ranking", dtype, threads, numbers, worst_ranking(case, every), ROUNDED)


def _report(found: list[Found], most: int) -> str:
    head = f"`python -m tests.bound.nightly {most}`, {datetime.now(UTC).date()}, torch {torch.__version__}, "
    return _page(found, head + f"{platform.machine()}.")


def _page(found: list[Found], measured: str) -> str:
    """A row for each model, with the worst of all threads and of all scores; and every measurement that is broken."""
    broken = [each for each in found if not each.holds]
    lines = [
        "# How far one unit moves what is released",
        "",
        f"{measured} Weights have a gain of 30. The worst |S − S′| over neighbours, on {THREADS[0]} and {THREADS[1]} "
        "threads: in parts of C for sums of clipped gradients, and of the sensitivity for scores (accuracy, loss, "
        f"ranking). The noise is scaled by what is paid for, of scores 1 + {ROUNDED - 1:.1e}.",
        "",
        f"**{len(found) - len(broken)} of {len(found)} hold.**",
        "",
        "| model | passes | records | sum | paid for | scores |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(each.name for each in found):
        rows = [each for each in found if each.name == name]
        first = next(each for each in rows if each.what == "sum")
        worst = max(each.worst for each in rows if each.what == "sum")
        of_scores = [each.worst for each in rows if each.what != "sum"]
        shown = f"{max(of_scores):.10f}" if of_scores else ""
        paid = f"1 + {first.bound - 1:.1e}"
        lines.append(f"| {name} | {first.dtype} | {first.numbers} | {worst:.10f} | {paid} | {shown} |")
    lines += [
        f"\n**Broken:** {each.name}, {each.what}, {each.threads} threads: {each.worst:.12f} of {each.bound:.12f}"
        for each in broken
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
