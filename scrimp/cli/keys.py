"""`scrimp keys`: made, listed and revoked by admins."""

from __future__ import annotations

from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import Session, command

app = typer.Typer(no_args_is_help=True)


@command(app, "create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    role: Annotated[str, typer.Option(help="admin | owner (registers data) | analyst (trains on it)")] = "analyst",
) -> None:
    """Make a key. Its token is printed this once."""
    made = session.client.create_key(name, role)

    def render() -> None:
        session.console.print(f"{made.key.id}  {made.key.role}  {made.key.name}")
        session.console.print(f"[bold]{made.token}[/]", soft_wrap=True)
        session.console.print("The service keeps only a keyed hash of it: store it now.", style="dim")

    session.result(made, render)


@command(app, "list")
def list_(session: Session) -> None:
    """All keys, revoked ones too."""
    keys = list(session.client.keys())
    rows = [(key.id, key.name, key.role, show.when(key.created_at), show.when(key.revoked_at)) for key in keys]
    session.result(keys, lambda: show.table(session.console, ("id", "name", "role", "created", "revoked"), rows))


@command(app, "revoke")
def revoke(session: Session, key_id: str) -> None:
    """Revoke a key, at once and for good. Its jobs go on."""
    key = session.client.revoke_key(key_id)
    session.result(key, lambda: session.console.print(f"{key.id} ({key.name}) is revoked"))
