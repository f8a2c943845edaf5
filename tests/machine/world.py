"""A deployment without processes: a database, the records outside it, and a clock that the machine moves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from app.datasets import growth as growing
from app.datasets.moving import follow
from app.db import clock
from app.db.database import Database
from app.db.models import ApiKey, Dataset, Job
from app.keys.service import Caller
from app.ledger import accounts, behind
from app.ledger.block_accounts import family_of, lead, lock_family
from app.ledger.second import open_first
from app.ledger.transparency.heads import Heads
from app.lifecycle import claims
from app.lifecycle.sweeper import PAST
from app.settings import Settings
from core.contracts.dataset_spec import Cap, DatasetSpec
from core.contracts.filter_names import Plan
from core.errors import InvalidRequest, LimitError
from core.ids import now
from core.privacy import foreign_claims as claim_prices
from core.privacy import pricing
from core.privacy.price_requests import FitRequest, PlanRequest
from core.privacy.prices import Largest, Price, Units
from tests import servers
from tests.factories import dataset_spec, slots_for

DELTA = 1e-5
ORDER = 16  # of the filter to which a data set with a plan moves: under it each cap here has a budget
RECORDS = 10_000
KEYS = ("key_a", "key_b", "key_c")
LEASE_S = 3600.0  # nothing lapses by itself
OWNER = Caller(KEYS[0], "owner", "admin")


@cache
def _price(request: str) -> Price:
    return pricing.price(PlanRequest.model_validate_json(request))


class Prices:
    """The real prices, each made once in this process; `last` is the newest. What else would fit has tests of its
    own, and so have the comparisons of accountants."""

    last: Price

    def of(self, _key_id: str) -> Prices:
        return self

    def price(self, request: PlanRequest) -> Price:
        self.last = _price(request.model_dump_json())
        return self.last

    def price_claim(self, request: claim_prices.ClaimRequest) -> int:
        return claim_prices.price(request).units

    def largest_that_fits(self, _plan: PlanRequest | FitRequest, _remaining: Units) -> Largest:
        return Largest(epsilon=None)

    def compare(self, _request: object) -> Any:
        raise LimitError("not compared here")

    basic = compare


@cache
def units(epsilon: float, order: int | None = None, delta: float = DELTA) -> int:
    """The units of an ε under a filter: `rdp` of an order, else `gdp`. 0 if it has none."""
    try:
        return accounts.filter_for("gdp" if order is None else "rdp", order).budget(epsilon, delta)
    except InvalidRequest:
        return 0


class World:
    """One data set and its blocks. Backups are copies of the whole database; the records outside stay."""

    def __init__(self, settings: Settings, server: str | None = None) -> None:
        self.settings, self.server = settings, server
        self.db = Database.of(settings)
        self.heads, self.prices = Heads.of(settings), Prices()
        self.backups = 0
        self.opened: list[str] = []  # databases on the server that this world made
        with self.db.write() as session:
            for each in KEYS:
                if session.get(ApiKey, each) is None:  # another process of the same deployment was first
                    session.add(ApiKey(id=each, name=each, role="admin", secret_hmac="00", created_at=now()))

    def close(self) -> None:
        self.db.close()
        for url in self.opened:
            servers.drop_database(self.server or "", url)

    def register(self, dataset_id: str, cap: float, plan: Plan | None = None) -> None:
        """A data set whose units are known: it may grow."""
        spec = dataset_spec(name=f"of-{dataset_id}")
        spec["privacy"] |= {"records": RECORDS, "cap": {"epsilon": cap, "delta": DELTA}}
        if plan is not None:
            spec["privacy"] |= {"plan": plan, "order": ORDER}
        self._add(dataset_id, spec["name"], spec, cap, parent_id=None, label=None)

    def append(self, first: str, block_id: str, label: str) -> None:
        """Appends a block, as app.datasets.growth does once it has read the file and compared its units."""
        to = growing.growing(self.db, OWNER, first)
        if behind.forgotten(self.db, self.heads, to.owner_key) is not None:
            raise behind.refusal("the database has lost a block of this owner")
        with self.db.read() as session:
            recorded = {each: behind.read_recorded(self.heads, each) for each in family_of(session, first)}
        with self.db.read() as session:
            for each, head in recorded.items():
                behind.require_current(session, head, each)
            cap = lead(session, first)
        fields = {"parent_id": first, "label": label}
        self._add(block_id, f"{to.name}/{label}", to.spec.model_dump(mode="json"), cap.cap_epsilon, **fields)
        with self.db.write() as session:  # the service does it in the block's own transaction
            lock_family(session, first)
            follow(session, first, session.get_one(Dataset, block_id), OWNER.id)
        behind.record_soon(self.db, self.heads, block_id)

    def _add(self, dataset_id: str, name: str, spec: dict[str, Any], cap: float, **fields: Any) -> None:
        of = DatasetSpec.model_validate(spec)
        now_cap = Cap(epsilon=cap, delta=DELTA)
        parsed = of.model_copy(update={"privacy": of.privacy.model_copy(update={"cap": now_cap})})
        sizes = {"records_train": RECORDS * 4 // 5, "records_holdout": RECORDS // 5}
        places = slots_for(RECORDS * 4 // 5, RECORDS // 5).model_dump(mode="json")
        row = {
            "id": dataset_id,
            "name": name,
            "owner_key": OWNER.id,
            "sensitivity": "private",
            "spec": parsed.model_dump(mode="json"),
            "shape": {**sizes, "features": 2, "outputs": 2, "sparse": False, "slots": places},
            "parts": {},
            "content_sha256": "0" * 64,
            "content_hmac": dataset_id,
            "units_sha256": "0" * 64,
            "created_at": now(),
        }
        with self.db.write() as session:
            session.add(Dataset(**row, **fields))
            session.flush()
            open_first(session, session.get_one(Dataset, dataset_id), parsed)

    def backup(self) -> str:
        """The URL of a copy of the database as it is now."""
        self.backups += 1
        if self.server is None:
            copy = self.settings.home / f"backup-{self.backups}.db"
            with self.db.engine.connect() as connection:
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql(f"VACUUM INTO '{copy}'")
            return f"sqlite:///{copy}"
        self.db.close()
        url = servers.new_database(self.server, servers.database_name(self.settings.effective_database_url))
        self.opened.append(url)
        return url

    def rewind(self, url: str) -> None:
        """Every process ends, and the database is a backup's again. The backup itself stays as it is.

        Time passes: every lease of the backup is over, and no entry has the second of one that was forgotten. Otherwise
        the same charge could be posted again by the very same entry, and nothing would be lost.
        """
        self.db.close()
        if self.server is None:
            self.backups += 1
            copy = self.settings.home / f"used-{self.backups}.db"
            shutil.copy(url.removeprefix("sqlite:///"), copy)
            url = f"sqlite:///{copy}"
        else:
            url = servers.new_database(self.server, servers.database_name(url))
            self.opened.append(url)
        self.settings = self.settings.model_copy(update={"database_url": url})
        self.db = Database(url)
        TIME.rewinds += 1
        self.lapse("later")

    def lapse(self, how: str) -> None:
        """Time passes for all leases and waits: SQLite's clock moves, or begins anew with the machine."""
        if self.server is not None:
            with self.db.write() as session:
                leased = update(Job).where(Job.lease_until.is_not(None))
                session.execute(leased.values(lease_until=0.0, lease_clock=PAST))
        elif how == "reboot":
            TIME.boot, TIME.up_s = f"{TIME.boot}+", 1.0
        else:
            TIME.up_s += 2 * LEASE_S


# Of this process: the clock that SQLite's leases are judged by, and how wrong the time of day is.
TIME = SimpleNamespace(boot="boot", up_s=1.0, ahead_s=0.0, rewinds=0)


@contextmanager
def moved_clocks() -> Iterator[None]:
    """The machine's clocks instead of the real ones; a job that was taken back twice waits until time passes."""
    wrong = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=TIME.ahead_s + TIME.rewinds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.ids.datetime", wrong)
        patch.setattr(clock, "boot", lambda: TIME.boot)
        patch.setattr(clock, "boottime", lambda: TIME.up_s)
        patch.setattr(claims, "backoff_s", lambda gone: 0.0 if gone < 2 else LEASE_S)
        TIME.boot, TIME.up_s, TIME.ahead_s, TIME.rewinds = "boot", 1.0, 0.0, 0
        yield


def said(error: Exception) -> str:
    """An error with its members, for a report."""
    return f"{error} {json.dumps(getattr(error, 'members', {}), default=str)}"
