"""Is it up: the database, its migrations and the broker. `python -m app.system.health` asks from the command line."""

from __future__ import annotations

import json
import sys

from kombu.connection import Connection
from sqlalchemy import text

from app.db.engine import Database
from app.db.migrate import is_current
from app.lifecycle.broker import celery_options
from app.settings import Settings, get_settings


def checks(db: Database, settings: Settings) -> dict[str, str]:
    """What each part says: "ok" or the type of its error (a message may name hosts or paths)."""
    found: dict[str, str] = {}
    for name, check in (("database", _database), ("migrations", _migrations), ("broker", _broker)):
        try:
            check(db, settings)
            found[name] = "ok"
        except Exception as error:  # whatever it is, it is the answer
            found[name] = type(error).__name__
    return found


def _database(db: Database, _settings: Settings) -> None:
    with db.read() as session:
        session.execute(text("SELECT 1"))


def _migrations(db: Database, _settings: Settings) -> None:
    if not is_current(db.engine):
        raise RuntimeError("the database is not at the newest migration")


def _broker(_db: Database, settings: Settings) -> None:
    options = celery_options(settings)
    with Connection(
        options["broker_url"], connect_timeout=2, transport_options=options.get("broker_transport_options", {})
    ) as connection:
        connection.ensure_connection(max_retries=1, timeout=2)


def main() -> int:
    """For a container's health check: prints what each part says; 0 where all are well."""
    settings = get_settings()
    db = Database.of(settings)
    try:
        found = checks(db, settings)
    finally:
        db.close()
    print(json.dumps(found))  # noqa: T201 - a command's answer
    return int(any(state != "ok" for state in found.values()))


if __name__ == "__main__":
    sys.exit(main())
