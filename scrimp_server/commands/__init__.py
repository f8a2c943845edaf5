"""The commands that run the service, for the `scrimp` of the client's distribution (entry point `commands`)."""

from __future__ import annotations

from collections.abc import Callable

import typer

from scrimp_server.commands import (
    bench,
    doctor_command,
    replay_command,
    restore_command,
    secrets_command,
    service,
    upgrade,
)

COMMANDS: tuple[Callable[..., None], ...] = (
    *(service.serve, service.prepare, service.api, service.relay, service.worker, doctor_command.doctor),
    *(upgrade.backup, upgrade.upgrade, restore_command.restore, replay_command.replay, bench.bench_extractors),
)


def register(app: typer.Typer) -> None:
    """Adds `serve`, `prepare`, `api`, `relay`, `worker`, `doctor`, `backup`, `upgrade`, `restore`, `replay`,
    `bench-extractors` and `secrets`."""
    for command in COMMANDS:
        app.command()(command)
    app.add_typer(secrets_command.app, name="secrets", help="The service's own secrets, for its operator.")
