"""`scrimp graphs`: models of one's own, uploaded for one's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scrimp.cli.command_session import Session, command
from scrimp.cli.command_tables import Call, Parameter, register
from scrimp.cli.large import uploading
from scrimp.models import Graph

app = typer.Typer(no_args_is_help=True)
SHA256 = Parameter(Annotated[str, typer.Argument(metavar="SHA256", help="Its SHA-256, as `list` shows it.")])


@command(app, "upload")
def upload(
    session: Session,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file of scrimp.export_graph.")],
) -> None:
    """Upload a model of your own, for jobs of your key."""
    with uploading(file) as progress:
        graph = session.client.upload_graph(file, progress)
    session.result(graph, lambda: _told(session.console, graph))


def _told(console: Console, graph: Graph) -> None:
    console.print(f'model: {{"kind": "graph", "upload": "{graph.sha256}"}}', markup=False, soft_wrap=True)
    message = (
        f"{graph.inputs} numbers in, {graph.outputs} out; trains {graph.trained:,} of {graph.parameters:,} parameters"
    )
    console.print(message, markup=False)


register(
    app,
    Call(
        "list",
        "graphs",
        "List the models that your key uploaded, the newest first.",
        ("sha256", "bytes", "inputs", "outputs", "trained", "used=used_at"),
    ),
)
register(
    app,
    Call("delete", "delete_graph", "Delete one; models that were trained stay.", "it is deleted", {"sha256": SHA256}),
)
