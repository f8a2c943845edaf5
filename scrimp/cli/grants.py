"""`scrimp grants`: which keys may see a data set, and which may train on it. For its owner and admins."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from scrimp.cli import show
from scrimp.cli.session import Session, command
from scrimp.models import Grant

app = typer.Typer(no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(help="A data set's name or id.")]
KeyId = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="A key's id; its holder sees it with `scrimp keys self`. For admins also its name."
    ),
]


@command(app, "list")
def list_(session: Session, dataset: Dataset) -> None:
    """List every grant on a data set."""
    grants = list(session.client.grants(dataset))
    rows = [
        (each.key_id, each.key_name, each.key_role, each.access, _bound(each), show.when(each.created_at))
        for each in grants
    ]
    head = ("key", "name", "role", "access", "max ε per job", "granted")
    session.result(grants, lambda: show.table(session.console, head, rows))


@command(app, "set")
def set_(
    session: Session,
    dataset: Dataset,
    key_id: KeyId,
    access: Annotated[str, typer.Option(help="view | train (and submit jobs) | charge (for another system)")] = "train",
    max_epsilon_per_job: Annotated[
        float | None, typer.Option(help="The largest ε of one job of this key; default: the cap alone.")
    ] = None,
) -> None:
    """Grant a key access; replaces its earlier grant."""
    grant = session.client.set_grant(dataset, session.client.key_id_of(key_id), access, max_epsilon_per_job)
    bound = f", at most ε = {_bound(grant)} for one job" if _bound(grant) else ""
    said = Text(f"{grant.key_id} ({grant.key_name}) may {grant.access}{bound}")  # a name is not markup
    session.result(grant, lambda: session.console.print(said))


@command(app, "remove")
def remove(session: Session, dataset: Dataset, key_id: KeyId) -> None:
    """End a grant, at once. Jobs that were admitted under it continue."""
    key_id = session.client.key_id_of(key_id)
    session.client.remove_grant(dataset, key_id)
    session.result({"dataset": dataset, "key_id": key_id}, lambda: session.console.print(f"{key_id} has no grant"))


def _bound(grant: Grant) -> str:
    return "" if grant.max_epsilon_per_job is None else f"{grant.max_epsilon_per_job:g}"
