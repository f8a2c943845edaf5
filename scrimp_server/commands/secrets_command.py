"""`scrimp secrets`: the service's own secrets, for its operator, where their files are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any

import typer

from scrimp_server.commands.service import Home, refused, settings_of

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="api_key_pepper, session_key, data_hmac_key, webhook_key, parts_key …")]


@app.command("list")
def list_(home: Home = None) -> None:
    """List each secret by a public name, with the older ones that are still kept."""
    from app.renewal import rotation

    for state in rotation.states(settings_of(home)):
        older = f"  (kept: {', '.join(state.older)})" if state.older else ""
        print(f"{state.name:15} {state.id}{older}")


@app.command()
def rotate(name: Name, home: Home = None) -> None:
    """Replace a secret. Then restart the service's processes, and finish."""
    from app.renewal import rotation

    state = _do(rotation.rotate, name, home)
    print(f"{name} is now {state.id}")
    if name in rotation.KEPT and name != "data_hmac_key":
        print(f"restart API, relay and workers; when nothing needs the old one: scrimp secrets finish {name}")
    else:
        print("restart API, relay and workers")


@app.command()
def seal(home: Home = None) -> None:
    """Seal what is stored of data sets in plaintext, from before SCRIMP_ENCRYPT_PARTS was on."""
    settings = settings_of(home)
    from app.db.database import Database
    from app.renewal import rotation
    from core.errors import ServiceError

    if not settings.encrypt_parts:
        print("scrimp secrets: set SCRIMP_ENCRYPT_PARTS=true first, and restart API and workers", file=sys.stderr)
        raise typer.Exit(1)
    with refused("secrets", ServiceError, OSError), closing(Database.of(settings)) as db:
        count = rotation.seal(db, settings)
    print(f"{count} files were sealed; backups, snapshots and the disk's free blocks may still have them in plaintext")


@app.command()
def finish(name: Name, home: Home = None) -> None:
    """Drop the older secrets that a rotation kept."""
    from app.renewal import rotation

    state = _do(rotation.finish, name, home)
    print(
        f"{name} is {state.id}" + (f", on top of {', '.join(state.older)}" if state.older else "; no older one is kept")
    )


def _do(action: Callable[..., Any], name: str, home: Any) -> Any:
    settings = settings_of(home)
    from app.db.database import Database
    from app.webhooks.encryption import Unreadable
    from core.errors import ServiceError

    with refused("secrets", ServiceError, Unreadable, ValueError), closing(Database.of(settings)) as db:
        return action(db, settings, name)
