"""`scrimp datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import show, show_reading
from scrimp.cli.session import Session, command, read_json

app = typer.Typer(no_args_is_help=True)

File = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="The data file; leave it out if SPEC has `path`.")
]
HoldoutFile = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A separate, public hold-out.")]


@command(app, "add")
def add(
    session: Session,
    spec: Annotated[Path, typer.Argument(help="A DatasetSpec (JSON); - reads standard input.")],
    file: File = None,
    holdout_file: HoldoutFile = None,
) -> None:
    """Register a data set with its privacy cap."""
    dataset = session.client.create_dataset(read_json(spec), file, holdout_file)
    session.result(dataset, lambda: show_reading.registered(session.console, dataset))


@command(app, "check")
def check(
    session: Session,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The data file.")],
    spec: Annotated[Path, typer.Option(help="A DatasetSpec (JSON); - reads standard input.")],
    holdout_file: HoldoutFile = None,
) -> None:
    """Check a file against its declaration; the service stores nothing."""
    found = session.client.check_dataset(read_json(spec), file, holdout_file)
    session.result(found, lambda: show_reading.checked(session.console, found))


@command(app, "list")
def list_(session: Session) -> None:
    """List all data sets."""
    datasets = list(session.client.datasets())
    session.result(datasets, lambda: show.datasets(session.console, datasets))


@command(app, "show")
def show_(session: Session, dataset: Annotated[str, typer.Argument(help="Name or id.")]) -> None:
    """Show one data set and its budget."""
    found = session.client.dataset(dataset)
    session.result(found, lambda: show.dataset(session.console, found))


@command(app, "delete-content")
def delete_content(session: Session, dataset: Annotated[str, typer.Argument(help="Name or id.")]) -> None:
    """Delete the data themselves, for good. The ledger stays, and the data cannot be registered again."""
    found = session.client.delete_content(dataset)
    session.result(found, lambda: session.console.print(f"the content of {found.name} is deleted; its ledger stays"))
