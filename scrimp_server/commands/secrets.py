"""`scrimp secrets`: the service's own secrets, for its operator, where their files are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from scrimp_server.commands.service import PRIVATE, Home

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="api_key_pepper, session_key, data_hmac_key, webhook_key, parts_key …")]


@app.command("list")
def list_(home: Home = None) -> None:
    """List each secret by a public name, with the older ones that are still kept."""
    from app.renewal import rotation

    for each in rotation.states(_settings(home)):
        kept = f"  (kept: {', '.join(each.older)})" if each.older else ""
        print(f"{each.name:15} {each.id}{kept}")


@app.command()
def rotate(name: Name, home: Home = None) -> None:
    """Replace a secret. Then restart the service's processes, and finish."""
    from app.renewal import rotation

    done = _do(rotation.rotate, name, home)
    print(f"{name} is now {done.id}")
    if name in rotation.KEPT and name != "data_hmac_key":
        print(f"restart API, relay and workers; when nothing needs the old one: scrimp secrets finish {name}")
    else:
        print("restart API, relay and workers")


@app.command()
def seal(home: Home = None) -> None:
    """Seal what is stored of data sets in plaintext, from before SCRIMP_ENCRYPT_PARTS was on."""
    from app.db.engine import Database
    from app.renewal import rotation
    from core.errors import ServiceError

    settings = _settings(home)
    if not settings.encrypt_parts:
        print("scrimp secrets: set SCRIMP_ENCRYPT_PARTS=true first, and restart API and workers", file=sys.stderr)
        raise typer.Exit(1)
    db = Database.of(settings)
    try:
        count = rotation.seal(db, settings)
    except (ServiceError, OSError) as error:
        print(f"scrimp secrets: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        db.close()
    print(f"{count} files were sealed; backups, snapshots and the disk's free blocks may still have them in plaintext")


@app.command()
def finish(name: Name, home: Home = None) -> None:
    """Drop the older secrets that a rotation kept."""
    from app.renewal import rotation

    done = _do(rotation.finish, name, home)
    print(f"{name} is {done.id}" + (f", on top of {', '.join(done.older)}" if done.older else "; no older one is kept"))


def _settings(home: Any) -> Any:
    from scrimp_server.commands.service import set_home

    set_home(home)
    os.umask(PRIVATE)
    from app.settings import Settings

    return Settings()


def _do(what: Callable[..., Any], name: str, home: Any) -> Any:
    from app.db.engine import Database
    from app.webhooks.encryption import Unreadable
    from core.errors import ServiceError

    settings = _settings(home)
    db = Database.of(settings)
    try:
        return what(db, settings, name)
    except (ServiceError, Unreadable, ValueError) as error:
        print(f"scrimp secrets: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        db.close()
