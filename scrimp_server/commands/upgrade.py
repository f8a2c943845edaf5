"""`scrimp backup` and `scrimp upgrade`: an operator's two commands before and at a new release."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from scrimp_server.commands.service import Home, refused, settings_of


def backup(
    folder: Annotated[Path, typer.Argument(help="A folder of this backup's own; made if it is not there.")],
    home: Home = None,
) -> None:
    """Copy the embedded database and the storage into a folder, while the service runs; at last their SHA256SUMS.

    A folder without SHA256SUMS is no finished backup. The recorded heads and the secrets stay out: keep copies of those
    elsewhere (docs/production.md).
    """
    settings = settings_of(home)
    from scrimp_server.backup import BackupError, back_up

    with refused("backup", BackupError):
        for path in back_up(settings, folder):
            print(f"{path}  {path.stat().st_size:,} bytes")


def upgrade(
    home: Home = None,
    backed_up: Annotated[bool, typer.Option("--backed-up", help="PostgreSQL: a backup has been made.")] = False,
) -> None:
    """Move the database to this release: back it up, migrate it, verify every ledger and its recorded head.

    If a step fails, the database stays as it was. Works beside the last release's processes. Exit code 1 on failure.
    """
    settings = settings_of(home)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from scrimp_server.upgrading import UpgradeError
    from scrimp_server.upgrading import upgrade as move

    with refused("upgrade", UpgradeError):
        result = move(settings, has_backup=backed_up)
    if result.before == result.after:
        print(f"The database is at {result.after}, this release's: nothing to do.")
        return
    if result.backup is not None:
        print(f"backup    {result.backup} (private: remove it when you need it no more)")
    print(f"migrated  {result.before} to {result.after}")
    print(f"verified  {result.ledgers} ledgers of {result.entries:,} entries, and the heads recorded outside")
    print("Now restart the service with this release.")
