"""`scrimp replay`: runs a finished job's steps again and compares them, for an auditor with the data and the keys."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from scrimp_server.commands.service import Home, refused, settings_of

if TYPE_CHECKING:
    from worker.attempt.auditor import Replayed

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)


def replay(
    job: Annotated[str, typer.Argument(help="A finished job's id.")],
    samples: Annotated[
        int | None,
        typer.Option(help="A quick look: only as far as so many random stretches of steps reach.", min=1),
    ] = None,
    home: Home = None,
) -> None:
    """Run a finished job again and compare its digests and its model's hash.

    On a machine of the service, with its data and keys. Nothing is charged or changed. Exit code 1 if anything differs.
    """
    settings = settings_of(home)
    from app.db.database import Database
    from core.errors import ServiceError
    from worker.attempt import auditor
    from worker.attempt.device_survey import on_this_machine
    from worker.attempt.fork_server import ForkServer
    from worker.attempt.user_checks import user_of

    device = on_this_machine(settings.devices)[0]
    server = closing(ForkServer(settings.attempt_memory_bytes, device, user_of(settings)))
    errors = (ServiceError, auditor.ReplayFailedError)
    with refused("replay", *errors), closing(Database.of(settings)) as db, server as forks:
        replayed = auditor.replay(db, settings, forks, job, samples)
    for line in described(replayed):
        print(line)
    if not replayed.holds:
        raise typer.Exit(1)


def described(replayed: Replayed) -> list[str]:
    """What a replay found, line by line."""
    from worker.attempt.auditor import missed

    stretches = ", ".join(f"{each.first_step}-{each.last_step}" for each in replayed.chosen)
    lines = [f"chosen      {len(replayed.chosen)} of {replayed.stretches} stretches: steps {stretches}"]
    lines += [f"machine     {each}: a difference may be the machine's" for each in replayed.unlike]
    if replayed.differs_after is not None:
        lines.append(
            f"DIFFERS     after step {replayed.differs_after}: the run left its record, or the record is another run's"
        )
        return lines
    lines.append(f"same        all {len(replayed.compared)} digests up to step {replayed.chosen[-1].last_step}")
    is_whole = len(replayed.compared) == replayed.stretches
    if replayed.same_model is not None:
        lines.append("same        the model's file" if replayed.same_model else "DIFFERS     the model's file")
    else:
        lines.append("model       not compared: " + ("none is recorded" if is_whole else "the replay did not reach it"))
    for share in () if is_whole else SHARES:
        deviating = max(1, round(share * replayed.stretches))
        odds = missed(replayed.stretches, deviating, len(replayed.chosen))
        within = f"a deviation in {deviating} of {replayed.stretches} stretches"
        lines.append(f"missed      {within}: with probability at most {odds:.3g}")
    if not replayed.same_model:
        lines.append(
            "condition   the recorded digests are those of the run that made the model: others, written into the"
            " database afterwards, are found by the model's file alone"
        )
    return list(dict.fromkeys(lines))
