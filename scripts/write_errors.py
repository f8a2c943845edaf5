"""Writes docs/errors.md from the error tree and the causes of failures: `make openapi`. Tests compare them."""

from __future__ import annotations

from pathlib import Path

from app.lifecycle.failures import ADVICE
from app.web.openapi import kinds, meaning_of
from core.errors import PrivacyError, RequestError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
HEAD = """# Errors

Every error answer is `application/problem+json` (RFC 9457): `type`, `title`, `status`, `detail`, and members of its own
kind. `type` is `/problems/<code>`; it is stable, and programs may branch on it. `detail` is for people. A refused
request costs nothing. `make openapi` writes this page.

| code | status | what is wrong | what to do |
|---|---|---|---|
"""
FAILURES = """
## Why a job failed

A failed job has a `failure.code` from a closed set. It holds no value of private data ([leaves.md](leaves.md) says
why). The operator's log has the cause. A job that succeeded can have learned nothing; a warning then says so and what
helps. A quote says beforehand what is readable, and at which ε.

| code | what to do |
|---|---|
"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """A row for each problem, by status, and one for each cause of a failure."""
    problems = [(kind.statuses, kind.code, kind.description, kind.advice) for kind in kinds().values()]
    problems += [
        ((error.status,), error.code, meaning_of(error), error.advice) for error in (RequestError, PrivacyError)
    ]
    rows = "".join(
        f"| `{code}` | {', '.join(map(str, statuses))} | {meaning} | {advice} |\n"
        for statuses, code, meaning, advice in sorted(problems)
    )
    causes = "".join(f"| `{code}` | {advice} |\n" for code, advice in ADVICE.items())
    return HEAD + rows + FAILURES + causes


if __name__ == "__main__":
    main()
