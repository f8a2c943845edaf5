"""`scrimp audit`: who did what, when and from where (admins only)."""

from __future__ import annotations

from dataclasses import asdict
from time import sleep
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.command_session import FAILED, Session, command, first, plain
from scrimp.models import AuditEntry
from scrimp.verify import recompute_audit

app = typer.Typer(no_args_is_help=True)
FOLLOW_S = 1.0
COLUMNS = ("seq", "at", "action", "outcome", "actor", "target", "address", "details")


@command(app, "list")
def list_(
    session: Session,
    of_key: Annotated[str | None, typer.Option(help="Only actions of this key (its id).")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, such as job.submitted.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Only actions on this target: a job, data set, key or webhook.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most entries to show.")] = 50,
) -> None:
    """Show the last entries, newest first."""
    entries = first(session.client.audit(key=of_key, action=action, target=target), limit)
    session.result(entries, lambda: show.table(session.console, COLUMNS, [_row(entry) for entry in entries]))


@command(app, "follow")
def follow(
    session: Session,
    since: Annotated[int, typer.Option(min=0, help="After this `seq`; 0: from the first one.")] = 0,
) -> None:
    """Print sealed entries, oldest first, one a line, as they come, until Ctrl-C. Use --json for an archive outside."""
    while True:
        for entry in session.client.audit(since=since):
            since = entry.seq or since
            if session.json:
                print(entry.model_dump_json(), flush=True)
            else:
                session.console.print("  ".join(_row(entry)), soft_wrap=True, markup=False)
        sleep(FOLLOW_S)


@command(app, "verify")
def verify(
    session: Session,
    head: Annotated[str | None, typer.Option(help="A head that you kept: the chain must contain it.")] = None,
) -> None:
    """Check the hash chain: by the service, and here from the entries. Exit code 1 if it is not valid."""
    verification = session.client.verify_audit()
    # The chain may have grown since the service checked it.
    lines = first(session.client.audit(since=0), verification.entries)
    recomputed = recompute_audit(lines)
    is_known = head is None or head in {line.hash for line in lines}
    answer = plain(verification) | {"recomputed_here": asdict(recomputed), "head_known": is_known}
    good = (
        verification.valid and is_known and recomputed.head == verification.head and recomputed.first_bad_entry is None
    )
    words = (
        f"{'valid' if good else 'NOT VALID'}: {verification.entries} entries, {verification.unsealed} not sealed yet"
    )
    session.result(answer, lambda: session.console.print(f"{words}\nhead {verification.head}", soft_wrap=True))
    if not good:
        raise typer.Exit(FAILED)


def _row(entry: AuditEntry) -> tuple[str, ...]:
    details = ", ".join(f"{name} {value}" for name, value in entry.details.items())
    place = "-" if entry.seq is None else str(entry.seq)
    cells = (entry.action, entry.outcome, entry.actor or "-", entry.target or "-", entry.address or "-")
    return (place, show.when(entry.at), *cells, details)
