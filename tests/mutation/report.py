"""The report: counts by module, and every survivor with its judgement, which a person has written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.mutation.mutants import Mutant

JUDGED = Path(__file__).with_name("judged.json")
ALIVE = ("survived", "not reached")
# What a survivor may be.
VERDICTS = {
    "equivalent": "no test can tell: the code does the same",
    "elsewhere": "a test that is not among the fast ones here tells, or another line of defence does; it says which",
    "presentation": "it changes what is said or shown, or how fast, and no budget, price or check",
    "hole": "none of the tests that it met told: one was written, and kills it",
}


def judgements() -> dict[str, tuple[str, str]]:
    """By mutant's name: the verdict, and why."""
    kept = json.loads(JUDGED.read_text())
    return {name: (verdict, why) for verdict in VERDICTS for name, why in kept.get(verdict, {}).items()}


def text(everything: Sequence[Mutant], results: Mapping[str, str], seed: int) -> tuple[str, int]:
    """The report dated today, and how many survivors nobody has judged."""
    judged = judgements()
    run = [each for each in everything if each.name in results]
    alive = [each for each in run if results[each.name] in ALIVE]
    new = [each for each in alive if judged.get(each.name, ("hole", ""))[0] == "hole"]
    holes = {name: why for name, (verdict, why) in judged.items() if verdict == "hole"}
    lines = [
        "# Mutation testing",
        "",
        f"`make nightly-mutation`, {datetime.now(UTC):%Y-%m-%d}, seed {seed}: {len(run):,} of {len(everything):,}",
        f"mutants of ledger, accounting and clipping; {len(run) - len(alive):,} were killed, {len(alive):,} survive,",
        f"{len(new)} of these without a judgement. {len(holes)} holes were found, and have tests now.",
        "",
        "A mutant is one small fault: a comparison with its bound moved or turned round, other arithmetic, a constant",
        "one larger or smaller (a fraction twice or half as large), a condition without one half, `and` for `or`, a",
        "statement or `raise` that is gone, a `return` of nothing. It meets the fast tests that run its lines, on",
        "SQLite, for three seconds and up to the first that fails; a survivor then meets more of them. A timeout",
        "counts as killed. Tests of whole services, on PostgreSQL, by night and those that take longer are not among",
        "them. Mutants are drawn by the seed, more where a slip costs privacy, and each night goes on with those that",
        "are left: a module with 0 that were run has not had its turn.",
        "",
        "A judgement says one of:",
        "",
        *(f"* **{verdict}**: {meaning}." for verdict, meaning in VERDICTS.items()),
        "",
        "| module | mutants | run | killed | by timeout | equivalent | elsewhere | presentation | not judged |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for module in sorted({each.module for each in everything}):
        lines.append(_row(module, everything, results, judged))
    if holes:
        lines += ["", "## Holes that it found", ""]
        lines += [f"* `{name}`: {why}" for name, why in sorted(holes.items())]
    lines += ["", "## Survivors", ""]
    for each in sorted(alive, key=lambda each: (each.module, each.number)):
        verdict, why = judged.get(each.name, ("not judged", results[each.name]))
        lines.append(f"* `{each.name}`: **{verdict}**: {why}")
    return "\n".join(lines) + "\n", len(new)


def _row(
    module: str, everything: Sequence[Mutant], results: Mapping[str, str], judged: Mapping[str, tuple[str, str]]
) -> str:
    own = [each for each in everything if each.module == module]
    run = [each for each in own if each.name in results]
    became = Counter(results[each.name] for each in run)
    verdicts = Counter(judged.get(each.name, ("hole", ""))[0] for each in run if results[each.name] in ALIVE)
    counts = [len(own), len(run), became["killed"] + became["timeout"], became["timeout"]]
    counts += [verdicts[each] for each in ("equivalent", "elsewhere", "presentation", "hole")]
    return f"| `{module}` | " + " | ".join(f"{each:,}" for each in counts) + " |"
