"""`scrimp blocks`: what a data set grows by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import large, show
from scrimp.cli.command_session import Session, command
from scrimp.errors import ScrimpError
from scrimp.models import DataBlock

app = typer.Typer(no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(help="A data set's name or id.")]
Label = Annotated[str, typer.Argument(help="The block's label: lower-case letters, digits, '.', '_', '-'.")]


@command(app, "add")
def add(
    session: Session,
    dataset: Dataset,
    label: Label,
    records: Annotated[int, typer.Option(help="The declared number of its records (users); it is public.")],
    file: Annotated[Path | None, typer.Option(help="The data, in the data set's format.")] = None,
    path: Annotated[
        str | None, typer.Option(help="Instead: a file under the service's data root, or s3://bucket/key.")
    ] = None,
    edges: Annotated[Path | None, typer.Option(help="The edges of a graph, two ids a row.")] = None,
    edges_path: Annotated[str | None, typer.Option(help="Instead: where they are, as --path.")] = None,
    slots: Annotated[
        str | None, typer.Option(help='At most so many of each part, as JSON: \'{"train": 6000, "holdout": 1600}\'.')
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the service has read a large file.")] = True,
) -> None:
    """Append a block: data with the data set's declaration, and with records that no other block has. People may come
    back, within the bound on a person's records in all blocks. Files above 64 MiB are sent in pieces: run it again to
    resume."""
    if (file is None) == (path is None):
        raise ScrimpError("give the data as --file or as --path")
    try:
        places = None if slots is None else json.loads(slots)
    except ValueError as error:
        raise typer.BadParameter(f"--slots is not JSON: {error}") from None
    body, left = large.sent(session.client, {}, {"file": file, "edges_file": edges})
    with large.reading() as progress:
        block = session.client.blocks.add(
            dataset,
            label,
            records,
            left["file"],
            edges_file=left["edges_file"],
            slots=places,
            path=path,
            upload=body.get("upload"),
            edges_path=edges_path,
            edges_upload=body.get("edges_upload"),
            wait=wait,
            progress=progress,
        )
    _print(session, [block])


@command(app, "list")
def list_(session: Session, dataset: Dataset) -> None:
    """List a data set's blocks, with what is spent, held and left of each."""
    _print(session, session.client.blocks(dataset))


@command(app, "retire")
def retire(session: Session, dataset: Dataset, label: Label) -> None:
    """Retire a block for good: nothing more is admitted on it, and jobs on it can no longer be replayed. It frees no
    budget."""
    _print(session, [session.client.blocks.retire(dataset, label)])


def _print(session: Session, blocks: list[DataBlock]) -> None:
    rows = [(each.label, each.state, f"{each.shape.records_train:,}", *_shares(each), each.id) for each in blocks]
    head = ("block", "state", "to train on", "spent", "held", "left", "id")
    session.result(blocks, lambda: show.table(session.console, head, rows))
    console = show.console(stderr=True)
    for block in blocks:
        for warning in block.warnings or ():
            console.print(f"warning: {warning}", soft_wrap=True)
        if block.reading is not None and block.reading.problem is not None:
            console.print(f"{block.label}: {block.reading.problem['detail']}", soft_wrap=True)


def _shares(block: DataBlock) -> tuple[str, str, str]:
    if block.ledger is None:
        return "", "", ""
    accounts = [each for each in block.ledger.accounts.values() if each is not None]
    spent, held_share = (max(getattr(each, name) or 0.0 for each in accounts) for name in ("share_spent", "share_held"))
    return f"{spent:.1%}", f"{held_share:.1%}", f"{max(0.0, 1.0 - spent - held_share):.1%}"
