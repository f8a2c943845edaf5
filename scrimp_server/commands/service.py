"""`scrimp serve` for one machine; `scrimp prepare|api|relay|worker` for a deployment that starts each separately."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from app.settings import Settings

T = TypeVar("T")
DEVICES = re.compile(r"auto|cuda|(cpu|cuda:\d{1,3})(,(cpu|cuda:\d{1,3}))*")


def _checked_devices(value: str | None) -> str | None:
    if value is not None and not DEVICES.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is not auto, cpu, cuda, or a list such as cuda:0,cuda:1")
    return value


# Files of the service and its children are private, even in a home that others can enter.
PRIVATE = 0o077
Host = Annotated[str | None, typer.Option(help="Address to listen on (SCRIMP_HOST; default 127.0.0.1).")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on (SCRIMP_PORT; default 8100).")]
Home = Annotated[Path | None, typer.Option(help="Folder that keeps everything (SCRIMP_HOME; default ~/.scrimp).")]

Devices = Annotated[
    str | None,
    typer.Option(
        callback=_checked_devices,
        help="What workers compute on: auto, cpu, cuda, or names such as cuda:0,cuda:1 (SCRIMP_DEVICES; default auto: "
        "every GPU, or the processor if there is none).",
    ),
]


Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=8,
        help="The most processes that a worker runs for one job (SCRIMP_WORKER_PROCESSES; default: its processors).",
    ),
]


Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run jobs' processes on the machines of this Ray cluster, of which this is one: its head's host:port, or "
        "auto (SCRIMP_RAY_ADDRESS).",
    ),
]


Drain = Annotated[
    bool,
    typer.Option(
        "--drain",
        help="Tell the workers of this home and machine to stop, and wait: each ends its job's block of steps, for "
        "at most SCRIMP_DRAIN_S, saves the job's state and gives it back.",
    ),
]


Ingest = Annotated[
    bool,
    typer.Option(
        "--ingest",
        help="Read the data files of registrations in place of the API's processes, and run no job. Needs the volume "
        "that they keep these files on, and of their secrets data_hmac_key and parts_key.",
    ),
]


def serve(host: Host = None, port: Port = None, home: Home = None, devices: Devices = None) -> None:
    """Run the whole service on this machine: API, relay and a worker for each device. Ctrl-C stops it."""
    _set(host, port, home, devices)
    from scrimp_server.serve import serve

    raise typer.Exit(_run("serve", serve))


def prepare(home: Home = None) -> None:
    """Make or migrate the database, the secrets and the first admin key, then exit."""
    _set(None, None, home)
    from scrimp_server.serve import prepare

    print(f"admin key: {_run('prepare', prepare)}")


def api(host: Host = None, port: Port = None, home: Home = None) -> None:
    """Run the API alone, in this process."""
    _become("api", host, port, home)


def relay(home: Home = None) -> None:
    """Run the relay alone: it notifies workers, issues certificates and takes back lost jobs."""
    _become("relay", None, None, home)


def worker(
    home: Home = None,
    devices: Devices = None,
    processes: Processes = None,
    drain: Drain = False,
    ray: Ray = None,
    ingest: Ingest = False,
) -> None:
    """Run a worker alone: a process for each device, which runs one job at a time."""
    _set(None, None, home, devices, processes, ray)
    if drain:
        _drain()
        return
    if ingest:
        from app.settings import Settings
        from scrimp_server.draining import present

        present(Settings().home)
        _become("ingest", None, None, home)
    from scrimp_server.serve import work

    raise typer.Exit(_run("worker", work))


def _drain() -> None:
    from app.settings import Settings
    from scrimp_server.draining import terminate, wait_for

    locks = terminate(Settings().home)
    if not locks:
        print("no worker of this home runs here")
        return
    print(f"waits for the end of {', '.join(map(str, locks))} (process numbers)", flush=True)
    wait_for(locks)
    print(f"{len(locks)} stopped")


def settings_of(home: Path | None) -> Settings:
    """The settings with this option; what the process writes from now on is private."""
    _set(None, None, home)
    os.umask(PRIVATE)
    from app.settings import Settings

    return Settings()


@contextmanager
def refused(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Exits with 1 and the reason at one of these errors."""
    try:
        yield
    except errors as error:
        print(f"scrimp {command}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _set(
    host: str | None,
    port: int | None,
    home: Path | None,
    devices: str | None = None,
    processes: int | None = None,
    ray: str | None = None,
) -> None:
    """Turns options into settings, for this process and its children."""
    settings_given = {
        "HOST": host,
        "PORT": port,
        "HOME": home.absolute() if home else None,
        "DEVICES": devices,
        "WORKER_PROCESSES": processes,
        "RAY_ADDRESS": ray,
    }
    os.environ.update({f"SCRIMP_{name}": str(value) for name, value in settings_given.items() if value is not None})


def _run(command: str, service: Callable[[], T]) -> T:
    """Runs a service in this process. Exits with 1 and the reason if it cannot start."""
    from scrimp_server.serve import ServeError

    os.umask(PRIVATE)
    with refused(command, ServeError):
        return service()


def _become(service: str, host: str | None, port: int | None, home: Path | None) -> None:
    _set(host, port, home)
    os.umask(PRIVATE)
    from scrimp_server.serve import commands

    arguments = commands()[service]
    os.execv(arguments[0], arguments)  # noqa: S606 - our own interpreter, a fixed list
