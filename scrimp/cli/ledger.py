"""`scrimp ledger`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import FAILED, Session, command, plain, read_json
from scrimp.verify import recompute_chain

app = typer.Typer(no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(help="A data set's name or id.")]


@command(app, "show")
def show_(session: Session, dataset: Dataset) -> None:
    """Show what is spent, held and left, with other accountants' figures."""
    ledger = session.client.ledger(dataset)
    session.result(ledger, lambda: show.ledger(session.console, dataset, ledger))


@command(app, "forecast")
def forecast(
    session: Session,
    dataset: Dataset,
    file: Annotated[Path, typer.Argument(help="A JobSpec (JSON); - reads standard input.")],
) -> None:
    """Show how many jobs like this one still fit, exactly. Free; nothing is written."""
    found = session.client.forecast(dataset, read_json(file))
    session.result(found, lambda: show.forecast(session.console, found))


@command(app, "entries")
def entries(
    session: Session, dataset: Dataset, job: Annotated[str | None, typer.Option(help="Only this job's.")] = None
) -> None:
    """List every line of the ledger, oldest first."""
    found = list(session.client.ledger_entries(dataset, job))
    session.result(found, lambda: show.entries(session.console, found))


@command(app, "verify")
def verify(
    session: Session,
    dataset: Dataset,
    head: Annotated[str | None, typer.Option(help="A head that you kept: the chain must contain it.")] = None,
) -> None:
    """Check hash chain and balances: by the service, and here from the entries. Exit code 1 if they are not valid."""
    dataset_id = session.client.dataset(dataset).id
    found = session.client.verify_ledger(dataset_id)
    # The chain may have grown since the service checked it.
    lines = list(islice(session.client.ledger_entries(dataset_id), found.entries))
    here = recompute_chain(dataset_id, lines)
    known = head is None or head in {line.hash for line in lines}
    session.result(
        plain(found) | {"recomputed_here": asdict(here), "head_known": known},
        lambda: show.verification(session.console, found, here, known),
    )
    if not (found.valid and known and here.head == found.head and here.first_bad_entry is None):
        raise typer.Exit(FAILED)
