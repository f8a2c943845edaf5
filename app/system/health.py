"""Health: the state of each part by name. `python -m app.system.health` asks from the command line, for a container's
check."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Literal

from sqlalchemy import func, select, text
from starlette.concurrency import run_in_threadpool

from app.db.database import Database
from app.db.migrate import serves
from app.db.models import Account, Dataset, LedgerCheck
from app.db.skew import skew_s
from app.ledger.transparency.heads import Heads
from app.lifecycle.queue.presence import living, present
from app.settings import Settings, get_settings
from app.storage import objects
from core.ids import now

# Without these the API cannot serve any request. Without the broker or pricing, priced jobs still queue, and workers
# are notified again.
NEEDED = ("database", "migrations", "storage")
MAX_SKEW_S = 5.0
FRESH_S = 1.0


def checks(db: Database, settings: Settings) -> dict[str, str]:
    """Each part's state: "ok" or the type of its error (a message may name hosts or paths)."""
    probes: tuple[tuple[str, Callable[[Database, Settings], None]], ...] = (
        ("database", _database),
        ("migrations", _migrations),
        ("storage", _storage),
        ("broker", _broker),
        ("clock", _clock),
        ("ledger", _ledger),
    )
    if settings.attempt_uid is not None:
        probes += (("attempts", _attempts),)
    results: dict[str, str] = {}
    for name, check in probes:
        try:
            check(db, settings)
            results[name] = "ok"
        except Exception as error:  # any error is the answer
            results[name] = type(error).__name__
    return results


class Readiness:
    """The last result of `checks`, cached for `FRESH_S`: anybody may ask, and a hundred requests at once cost one
    check."""

    def __init__(self, look: Callable[[], dict[str, str]]) -> None:
        self._look, self._turn = look, asyncio.Lock()
        self._found: dict[str, str] = {}
        self._at = -math.inf

    async def checks(self) -> dict[str, str]:
        async with self._turn:
            if time.monotonic() - self._at > FRESH_S:
                self._found = await run_in_threadpool(self._look)
                self._at = time.monotonic()
            return self._found


def status(results: dict[str, str]) -> Literal["ready", "degraded", "not ready"]:
    """ "ready", "degraded" (requests are still served, or queue) or "not ready"."""
    down = {name for name, state in results.items() if state != "ok"}
    if down & set(NEEDED):
        return "not ready"
    return "degraded" if down else "ready"


def _database(db: Database, _settings: Settings) -> None:
    with db.read() as session:
        session.execute(text("SELECT 1"))


def _migrations(db: Database, _settings: Settings) -> None:
    if not serves(db.engine):
        raise RuntimeError("the database is not at the newest migration: run `scrimp prepare`")


class StorageFullError(Exception):
    """Half of the reserve that data files leave is taken, by what cannot be refused."""


def _storage(_db: Database, settings: Settings) -> None:
    roots = {settings.storage_root, settings.arrivals_root}
    for root in roots:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(b"ready")
            probe.flush()
    if settings.object_store:
        objects.of(settings).marker("ready")  # a key that is not there: an answer is enough
    if settings.heads_store:
        Heads.of(settings).epoch()
    if min(shutil.disk_usage(root).free for root in roots) < settings.disk_reserve_bytes // 2:
        raise StorageFullError


class LedgerBehindError(Exception):
    """The database has lost entries of a data set's ledger."""


class LedgerInvalidError(Exception):
    """The last full verification of a ledger found it wrong."""


class LedgerUncheckedError(Exception):
    """A ledger was not verified for twice its interval: no relay runs, or it does not get there."""


def _ledger(db: Database, settings: Settings) -> None:
    overdue = now() - 2 * timedelta(hours=settings.ledger_check_hours)
    unchecked = (
        select(Dataset.id)
        .join(Account, Account.dataset_id == Dataset.id)
        .outerjoin(LedgerCheck, LedgerCheck.dataset_id == Dataset.id)
        .where(func.coalesce(LedgerCheck.checked_at, Dataset.created_at) < overdue)
    )
    with db.read() as session:
        for error, query in (
            (LedgerBehindError, select(LedgerCheck.dataset_id).where(LedgerCheck.behind.is_not(None))),
            (LedgerInvalidError, select(LedgerCheck.dataset_id).where(LedgerCheck.problem.is_not(None))),
            (LedgerUncheckedError, unchecked),
        ):
            if session.scalar(query.limit(1)) is not None:
                raise error


class ClockSkewError(Exception):
    """A process' own clock differs from the database's."""


def _clock(db: Database, settings: Settings) -> None:
    """Leases do not use this clock; displayed times and the expiry of keys do."""
    if max(map(abs, skews(db, settings.lease_s).values())) > MAX_SKEW_S:
        raise ClockSkewError


def skews(db: Database, lease_s: float) -> dict[str, float]:
    """How far the clocks of this process and of the living workers are ahead of the database's, in seconds."""
    skews_s = {"api": skew_s(db)}
    with db.read() as session:
        return skews_s | {each.name: each.skew_s for each in present(session, lease_s) if each.skew_s is not None}


class AttemptUserError(Exception):
    """No living worker's attempts have the user of SCRIMP_ATTEMPT_UID, or some have another.

    A worker that may not change its attempts' user does not start, and says why.
    """


def _attempts(db: Database, settings: Settings) -> None:
    with db.read() as session:
        alive = living(session, settings.lease_s)
    if {(worker.sandbox or {}).get("uid") for worker in alive} != {settings.attempt_uid}:
        raise AttemptUserError


def _broker(_db: Database, settings: Settings) -> None:
    # Loaded at the first check: they take a tenth of the API's start.
    from kombu.connection import Connection  # noqa: PLC0415

    from app.lifecycle.broker import celery_options  # noqa: PLC0415

    options = celery_options(settings)
    with Connection(
        options["broker_url"], connect_timeout=2, transport_options=options.get("broker_transport_options", {})
    ) as connection:
        connection.ensure_connection(max_retries=1, timeout=2)


def main() -> int:
    """Prints each part's state; returns 0 if every needed part is well."""
    settings = get_settings()
    with closing(Database.of(settings)) as db:
        results = checks(db, settings)
    print(json.dumps(results))  # noqa: T201 - a command's answer
    return int(status(results) == "not ready")


if __name__ == "__main__":
    sys.exit(main())
