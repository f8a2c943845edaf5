"""The commands that run the service, for the `scrimp` of the client's distribution (entry point `commands`)."""

from __future__ import annotations

from collections.abc import Callable

import typer

from scrimp_server.commands import bench, doctor, replay, restore, secrets, service, upgrade

COMMANDS: tuple[Callable[..., None], ...] = (
    *(service.serve, service.prepare, service.api, service.relay, service.worker, doctor.doctor),
    *(upgrade.backup, upgrade.upgrade, restore.restore, replay.replay, bench.bench_extractors),
)


def register(app: typer.Typer) -> None:
    """Adds `serve`, `prepare`, `api`, `relay`, `worker`, `doctor`, `backup`, `upgrade`, `restore`, `replay`,
    `bench-extractors` and `secrets`."""
    for command in COMMANDS:
        app.command()(command)
    app.add_typer(secrets.app, name="secrets", help="The service's own secrets, for its operator.")
