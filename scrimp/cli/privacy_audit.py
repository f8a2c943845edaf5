"""`scrimp audit privacy`: tests the certificates' claims against the service's releases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.command_session import FAILED, Session

CANARIES = 8000
FALSE_ALARM = 1e-3


def privacy(
    session: Session,
    kinds: Annotated[str, typer.Option(help="quick, all, or names separated by commas.")] = "quick",
    canaries: Annotated[
        int, typer.Option(min=200, max=200_000, help="About how many of each kind; half are in.")
    ] = CANARIES,
    false_alarm: Annotated[
        float,
        typer.Option(min=1e-12, max=0.1, help="The probability of a fault found in an honest service, over all tests."),
    ] = FALSE_ALARM,
    name: Annotated[str, typer.Option(help="The beginning of its data sets' and jobs' names.")] = "audit",
    report: Annotated[Path | None, typer.Option(help="Also write a Markdown report to this file.")] = None,
) -> None:
    """Plant canaries in its own data sets, train on them, and test the certificates. Exit code 1 on a violation."""
    from scrimp.audit import audit_report as said
    from scrimp.audit.audited_kinds import chosen
    from scrimp.audit.run import Audit

    try:
        wanted = chosen(kinds)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    began = time.monotonic()
    result = Audit(session.client, wanted, canaries, false_alarm, name).run()
    if report is not None:
        line = f"scrimp audit privacy --kinds {kinds} --canaries {canaries}"
        report.write_text(said.markdown(result, line, time.monotonic() - began), encoding="utf-8")

    def render() -> None:
        show.table(session.console, said.COLUMNS, [said.row(result) for result in result.results])
        for note in said.notes(result):
            session.console.print(note, markup=False, soft_wrap=True)
        session.console.print(said.verdict(result), markup=False, soft_wrap=True)

    session.result(said.plain(result), render)
    if not result.passed:
        raise typer.Exit(FAILED)
