"""An audit's findings, for a terminal and for a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from scrimp.audit.run import Report, Result

COLUMNS = ("kind", "in / out", "charged ε", "charged μ", "fitted μ", "at least μ", "verdict")
LIMITS = """
What this says: for an honest service, an audit like this one finds a fault with probability at most {alarm:g}. "At
least" means that no mechanism with a smaller μ explains the result. The audit never says "at most": it does not find a
leak that these canaries do not touch, or one that is too small for their number. All models but that of `network` are
linear, and their passes are too simple to show how other records' number or place affects a record's rounding.
`network` shows it if a record moves others by one row and kernels tell these rows apart. Not audited: scores of next
items and of tokens, noisy frequencies of items, studies, times and sizes."""


def row(result: Result) -> tuple[str, ...]:
    """One line of the table. The μ of a sampled plan is computed from its printed ε at its δ."""
    finding = result.finding
    charged = f"{'' if result.exact else '~'}{result.charged_mu:.3f}"
    sides = f"{finding.present:,} / {finding.absent:,}"
    numbers = (f"{result.epsilon:.4g}", charged, f"{finding.fitted_mu:.3f}", f"{finding.lower_mu:.3f}")
    return (result.kind, sides, *numbers, "passed" if result.passed else "VIOLATION")


def notes(report: Report) -> Iterator[str]:
    """A sentence for each fault, and one on the noise of pairs of jobs."""
    for result in report.results:
        excess = result.finding.excess
        if not result.finding.stands:
            yield (
                f"{result.kind}: at ε = {excess.epsilon:.2f} δ is at least {excess.found_delta:.4f}, but "
                f"{excess.claimed_delta:.2g} is claimed ({', '.join(result.jobs)})"
            )
        if (guesses := result.finding.guesses) is not None:
            yield (
                f"{result.kind}: {guesses.right} of {guesses.trials} guesses of one record's presence are right: "
                f"ε is at least {guesses.epsilon(result.delta):.3g} at δ = {result.delta:g}; "
                f"{result.epsilon:.3g} is charged"
            )
        yield from (f"{result.kind}: {problem}" for problem in result.problems)
    for pair in report.pairs:
        if not pair.passed:
            one, other = pair.kinds
            same = f"{pair.agreement.agreeing:,} of {pair.agreement.trials:,}"
            yield f"{one} and {other} share noise: {same} signs agree where neither has a record"
    if report.pairs:
        faulty = sum(not pair.passed for pair in report.pairs)
        yield f"Noise was compared between {len(report.pairs)} pairs of jobs; {faulty} share it."


def verdict(report: Report) -> str:
    """One sentence: passed, or violated."""
    faults = sum(not result.passed for result in report.results)
    if report.passed:
        return f"{len(report.results)} kinds passed; false alarm at most {report.false_alarm:g} over all tests together"
    return f"VIOLATION: {faults} of {len(report.results)} kinds did not pass, or noise is shared"


def plain(report: Report) -> dict[str, Any]:
    """As JSON."""
    results = [asdict(each) | {"passed": each.passed, "excess": each.finding.excess.amount} for each in report.results]
    pairs = [asdict(each) for each in report.pairs]
    return {
        "passed": report.passed,
        "false_alarm": report.false_alarm,
        "level_of_each_test": report.level,
        "results": results,
        "pairs": pairs,
    }


def markdown(report: Report, command: str, took_s: float) -> str:
    """The dated report."""
    lines = [
        "# Audit of the certificates",
        "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {took_s:.0f} s.",
        "The audit plants canaries in its own data sets on a running service and tests them against the whole",
        "(ε, δ) curve of each certificate. docs/audit.md describes the method.",
        "",
        f"**{verdict(report)}.**",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
        *("| " + " | ".join(row(result)) + " |" for result in report.results),
        "",
        *(f"* {note}" for note in notes(report)),
        "",
        "The charged μ of scores is that of one score. ~ marks the μ of a sampled plan's ε at its δ; the audit still",
        "tested its whole curve.",
        LIMITS.format(alarm=report.false_alarm),
    ]
    return "\n".join(lines).rstrip() + "\n"
