"""The commands that run the service. They are the service's distribution's; without it each says what to install."""

from __future__ import annotations

import typer

from scrimp.extensions import SERVER, extension

SERVING = ("serve", "prepare", "api", "relay", "worker", "restore", "replay", "secrets")


def register(app: typer.Typer) -> None:
    """Adds the service's commands, or hidden ones in their place."""
    commands = extension("commands")
    if commands is not None:
        commands(app)
        return
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name in SERVING:
        app.command(name, hidden=True, context_settings=anything)(_missing)


def _missing(context: typer.Context) -> None:
    """Runs the service: its package is not installed here."""
    typer.echo(f"scrimp {context.info_name}: only the client is installed here; for the service: {SERVER}", err=True)
    raise typer.Exit(1)
