"""The commands that run the service, for the `scrimp` of the client's distribution (entry point `commands`)."""

from __future__ import annotations

import typer

from scrimp_server.commands import bench, doctor, replay, restore, secrets, service, upgrade


def register(app: typer.Typer) -> None:
    """Adds `serve`, `prepare`, `api`, `relay`, `worker`, `doctor`, `backup`, `upgrade`, `restore`, `replay`,
    `bench-extractors` and `secrets`."""
    service.register(app)
    doctor.register(app)
    upgrade.register(app)
    restore.register(app)
    replay.register(app)
    bench.register(app)
    app.add_typer(secrets.app, name="secrets", help="The service's own secrets, for its operator.")
