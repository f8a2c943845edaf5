"""`scrimp audit-bundle`: everything that a reader of certificates checks, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from scrimp.cli import show
from scrimp.cli.command_session import Session
from scrimp.cli.trust import Dated, HistoryFile, HistoryNumber, PublicKey, Root, Witnesses, trust_of

SIGNS = {0: "[green]✓[/]", 1: "[red]✗[/]", 2: "[yellow]![/]"}


def audit_bundle(
    session: Session,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Certificates, their envelopes, and delivered files.")
    ],
    public_key: PublicKey = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
    brief: Annotated[bool, typer.Option("--brief", help="The checks alone, without the words.")] = False,
) -> None:
    """Verify, recompute and explain certificates, and find delivered files in them. Offline, from the files alone.

    The exit code is the worst of all checks: 1 if something does not hold, 2 if the signer was not checked or a
    file cannot be read, 0 if all is well.
    """
    from scrimp.audit_bundle import Verdict, examine

    trust = trust_of([public_key] if public_key else None, root, history, history_number, witness, dated)
    findings = examine(files, trust)

    def told() -> None:
        for finding in findings:
            session.console.print(f"[bold]{escape(finding.file)}[/]", soft_wrap=True)
            for name, verdict, detail in finding.checks:
                sign = f"{SIGNS[verdict]} {name:<10}"
                session.console.print(f"  {sign} {escape(detail)}", soft_wrap=True, highlight=False)
            if not brief:
                show.sections(session.console, finding.sections)

    answer = [
        {
            "file": each.file,
            "status": int(each.verdict),
            "checks": [
                {"check": name, "status": int(verdict), "detail": detail} for name, verdict, detail in each.checks
            ],
            "recomputed": each.printed,
            "words": dict(each.sections),
        }
        for each in findings
    ]
    session.result(answer, told)
    status = Verdict.worst(each.verdict for each in findings)
    if status:
        raise typer.Exit(int(status))
