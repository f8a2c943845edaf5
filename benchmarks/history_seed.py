"""Fills a fresh service with a long history: ledger entries that verify, and jobs with all their rows.

    SCRIMP_HOME=DIR SCRIMP_DATABASE_URL=URL python -m benchmarks.history_seed --entries 1000000 --jobs 1000000

A few jobs run through the product's own functions first: priced, held, claimed, started, settled. The history is their
copies. Each copy has every row of its original (job, attempts, blocks, events, metrics, artifacts) under an id, a name,
tags, times and a key of its own. Ledger entries are made by the product's `new_entry` from the originals' amounts and
memos, so hashes, stated balances and heads follow from each other. The account's row, the sub-account's row and the
counts of keys become what so many moves would have left. The test compares a small history with `verify`.

Triggers refuse to move an account by more than one entry. The tool takes them off while it writes, in one transaction,
so it refuses a database that has any job already.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from sqlalchemy import Connection, Table, func, select, text, update  # noqa: E402

from app.audit import audit_chain  # noqa: E402
from app.budgets import service as budgets  # noqa: E402
from app.budgets.schemas import BudgetSetting  # noqa: E402
from app.chain import digest  # noqa: E402
from app.db.database import Database  # noqa: E402
from app.db.models import (  # noqa: E402
    Account,
    Artifact,
    Attempt,
    AuditEntry,
    AuditHead,
    Block,
    Job,
    JobEvent,
    LedgerEntry,
    Metric,
    SubAccount,
    table_of,
)
from app.jobs import steering  # noqa: E402
from app.jobs.labels import stored  # noqa: E402
from app.keys.service import Caller  # noqa: E402
from app.ledger import running_sums  # noqa: E402
from app.ledger.entries import Kind, Move, new_entry  # noqa: E402
from app.ledger.memos import HeldFor, Settled  # noqa: E402
from app.lifecycle import measures  # noqa: E402
from app.settings import Settings, get_settings  # noqa: E402
from core.ids import new_id, now  # noqa: E402
from tests.dashboard.scene import Scene  # noqa: E402
from tests.factories import NO_HEADS, add_key  # noqa: E402

PEOPLE = 50
TEAM = 5  # of them spend within a sub-account
OPEN = 8  # holds at a time
BATCH = 5_000
SIGMAS = (8_000.0, 9_000.0, 10_000.0, 12_000.0, 15_000.0, 20_000.0, 30_000.0, 50_000.0)
TAGS = ("baseline", "paper", "sweep", "q3", "final")
NAMES = ("logistic regression", "wide net", "small batch", "ablation", "replay of Tuesday")
DETAILS = (Attempt, Block, JobEvent, Metric, Artifact)
STATED = ("balance", "budget")  # members of a memo that `new_entry` adds
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Original:
    """A job that the product's own functions made.

    Attributes:
        rows: by table, its rows as the driver's texts.
        hold, settled: its entries; None on public data, and for a settlement that is still to come.
        ran_s: seconds of its attempts, by the attempts' own times.
    """

    rows: dict[Table, list[dict[str, Any]]]
    hold: LedgerEntry | None
    settled: LedgerEntry | None
    salt: str
    audit: Sequence[AuditEntry]


@dataclass
class History:
    """What was made.

    Attributes:
        dataset, public: the data sets, the first with the ledger.
        entries: of the ledger.
        spent, held: of the training account.
        jobs: of both data sets, without queued ones.
        by_key: what the jobs of each key spent.
        some: the id of a copied job that succeeded.
    """

    dataset: str
    public: str
    scene: Scene
    entries: int = 0
    spent: int = 0
    held: int = 0
    jobs: int = 0
    by_key: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    some: str = ""


class Seeder:
    """Writes copies of jobs, and the ledger's entries of them.

    Args:
        db: a migrated database without jobs.
        settings: a home with secrets; the originals' model files are written there.
    """

    def __init__(self, db: Database, settings: Settings) -> None:
        with db.read() as session:
            if session.scalar(select(Job.id).limit(1)) is not None:
                raise SystemExit("this database has jobs: a history is made in a fresh service's alone")
        self.db, self.scene, self.people = db, Scene(db, settings), list[str]()
        self._number, self._started = 0, now() - 900 * DAY

    def fill(self, entries: int, jobs: int, queued: int = 0) -> History:
        """Makes a history.

        Args:
            entries: of the ledger, about: two of each private job.
            jobs: about; those beyond half the entries are on public data.
            queued: further private jobs that wait for a worker, each with its open hold.
        """
        private, public = self._datasets()
        history = History(private, public, self.scene)
        originals, waiting = self._originals(private, public)
        account = self._account(private)
        made = account.entries
        pairs = max(0, (entries - made) // 2)
        if 2 * jobs < entries:
            raise SystemExit("a private job has two entries: ask for at least half as many jobs as entries")
        with self.db.read() as session:
            own = session.scalar(select(SubAccount).where(SubAccount.dataset_id == private))
        assert own is not None
        ledger = _Ledger(account, own, set(self.people[:TEAM]))
        while audit_chain.seal(self.db):
            pass
        with self.db.write() as session, _unprotected(session.connection()):
            connection = session.connection()
            self._log = _Log(connection)
            settled = [each for each in originals if each.hold is not None]
            self._write(connection, settled, pairs, ledger, history)
            free = [each for each in originals if each.hold is None]
            self._write(connection, free, max(0, jobs - pairs - len(originals)), ledger, history)
            self._write(connection, [waiting], queued, ledger, history)
            ledger.save(connection)
            self._log.save(connection)
            running_sums.write(session, [private])  # the trigger was away
            if connection.dialect.name == "postgresql":  # and so were those of tags
                split = "unnest(string_to_array(trim(both ',' from tags), ',')) AS part(value)"
                columns = "part.value, created_at, jobs.id, name, dataset_id"
                rows = f"SELECT {columns} FROM jobs CROSS JOIN {split} WHERE tags <> ''"  # noqa: S608
                connection.execute(text(f"INSERT INTO job_tags (tag, created_at, job_id, name, dataset_id) {rows}"))
        with self.db.write() as session:
            for key, seconds in ledger.ran_s.items():
                measures.count_within(session, measures.KEY_SECONDS, key, amount=seconds)
        self._analyze()
        history.entries = ledger.account.entries
        history.spent, history.held = ledger.balances
        return history

    def _analyze(self) -> None:
        """What a server's own housekeeping does with so many rows."""
        is_server = self.db.engine.dialect.name == "postgresql"
        with self.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE" if is_server else "ANALYZE")

    def _datasets(self) -> tuple[str, str]:
        scene = self.scene
        terms: dict[str, Any] = {"records": 20_000, "cap": {"epsilon": 8.0, "delta": 1e-5}, "filter": "rdp"}
        with self.db.write() as session:
            self.people = [add_key(session, "analyst") for _ in range(PEOPLE - 1)] + [scene.analyst.id]
        private, public = scene.dataset("history", **terms), scene.public_dataset("digits")
        with self.db.write() as session:
            setting = BudgetSetting(epsilon=4.0, keys=self.people[:TEAM])
            budgets.put(session, Caller(scene.owner.id, "owner", "owner"), private, "team", setting, None)
        return private, public

    def _originals(self, private: str, public: str) -> tuple[list[Original], Original]:
        """Jobs of each end: succeeded at several prices, failed in the middle, cancelled before a step; on public data;
        and one that waits."""
        scene = self.scene
        plan: dict[str, Any] = {"evaluation": None, "length": {"steps": 10}}
        done = []
        for sigma in SIGMAS:
            job = scene.job(private, f"σ = {sigma:g}", privacy={"noise_multiplier": sigma}, **plan)
            log = scene.start(job)
            scene.step(log, 10)
            scene.finish(log)
            done.append(job)
        failed = scene.job(private, "too large", privacy={"noise_multiplier": 11_000.0}, **plan)
        log = scene.start(failed)
        scene.step(log, 4)
        log.fail("out-of-memory", "The attempt ran out of memory; set a smaller physical_batch_size.")
        scene.certify(failed)
        dropped = scene.job(private, "not this one", privacy={"noise_multiplier": 11_500.0}, **plan)
        steering.cancel(self.db, scene.admin.caller, dropped, NO_HEADS)
        free: dict[str, Any] = {"privacy": None, "sampling": {"kind": "full_batch"}}
        plain = scene.succeeded(public, "baseline", [0.81, 0.88, 0.9, 0.91], std=0.0, **free)
        queued = scene.job(private, "waits", privacy={"noise_multiplier": 12_500.0}, **plan)
        return [self._read(each) for each in (*done, failed, dropped, plain)], self._read(queued)

    def _read(self, job_id: str) -> Original:
        with self.db.read() as session:
            job = session.get_one(Job, job_id)
            entries = session.scalars(select(LedgerEntry).where(LedgerEntry.job_id == job_id)).all()
            kinds = {each.kind: each for each in entries}
            connection = session.connection()
            rows = {table_of(Job): _texts(connection, table_of(Job), "id", job_id)}
            rows |= {table_of(each): _texts(connection, table_of(each), "job_id", job_id) for each in DETAILS}
            settled = kinds.get("post") or kinds.get("void")
            log = session.scalars(select(AuditEntry).where(AuditEntry.target == job_id).order_by(AuditEntry.id)).all()
            return Original(rows, kinds.get("hold"), settled, job.segments[0].salt, log)

    def _account(self, dataset: str) -> SimpleNamespace:
        with self.db.read() as session:
            row = session.execute(select(table_of(Account)).where(table_of(Account).c.dataset_id == dataset)).one()
            return SimpleNamespace(**row._mapping)

    def _write(
        self, connection: Connection, originals: Sequence[Original], count: int, ledger: _Ledger, history: History
    ) -> None:
        """Writes copies of these jobs in turn, a batch at a time."""
        if not count:
            return
        left = count
        rows: dict[Table, list[dict[str, Any]]] = defaultdict(list)
        while left:
            for _ in range(min(BATCH, left)):
                original = originals[self._number % len(originals)]
                key = self.people[(self._number * 7) % PEOPLE]
                job_id, at = self._copy(original, key, rows)
                if original.hold is not None:
                    rows[ENTRIES] += ledger.take(original, job_id, key, at, history)
                history.some = job_id if original.settled is not None else history.some
                history.jobs += 1
            left -= min(BATCH, left)
            if not left:
                rows[ENTRIES] += ledger.end()
            for table, batch in rows.items():
                _insert(connection, table, batch)
                batch.clear()

    def _copy(self, original: Original, key: str, rows: dict[Table, list[dict[str, Any]]]) -> tuple[str, datetime]:
        """Adds the rows of a copy; returns its id and when it was submitted."""
        number = self._number = self._number + 1
        job_id, salt = new_id("job"), f"{number:064x}"
        at = self._started + number * timedelta(seconds=60)
        moment = stamp(at)
        times = dict.fromkeys(("created_at", "started_at", "finished_at", "notified_at", "ended_at"), moment)
        tags = stored([TAGS[number % len(TAGS)], f"week-{number // 10_000}"]) if number % 3 else ""
        own = {
            "id": job_id,
            "key_id": key,
            "idempotency_key": job_id,
            "name": f"{NAMES[number % len(NAMES)]} {number}",
            "tags": tags,
            "segments": original.rows[JOBS][0]["segments"].replace(original.salt, salt),
        }
        for table, found in original.rows.items():
            changes = own if table is JOBS else {"job_id": job_id}
            for row in found:
                made = row | changes
                made |= {name: value for name, value in times.items() if made.get(name) is not None}
                if table is BLOCKS:
                    made |= {"salt": salt}
                    del made["id"]
                rows[table].append(made)
        rows[AUDIT] += (self._log.sealed(each, job_id, key, at) for each in original.audit)
        return job_id, at


JOBS, BLOCKS, ENTRIES, ACCOUNTS = (table_of(each) for each in (Job, Block, LedgerEntry, Account))
SUBS, AUDIT, AUDIT_HEAD = (table_of(each) for each in (SubAccount, AuditEntry, AuditHead))
TYPED = (ENTRIES, AUDIT)  # their rows are Python's values


class _Log:
    """The audit log, sealed as it grows."""

    def __init__(self, connection: Connection) -> None:
        self._id = connection.scalar(select(func.max(AUDIT.c.id))) or 0
        self._seq, self._hash = connection.execute(select(AUDIT_HEAD.c.seq, AUDIT_HEAD.c.hash)).one()

    def sealed(self, of: AuditEntry, job_id: str, key: str, at: datetime) -> dict[str, Any]:
        """The next entry: a copy about another job."""
        self._id, self._seq = self._id + 1, self._seq + 1
        named = ("action", "address", "user_agent", "outcome", "details")
        row = {name: getattr(of, name) for name in named} | {"id": self._id, "seq": self._seq, "at": at}
        row |= {"target": job_id, "actor": key if of.actor else None, "prev_hash": self._hash}
        self._hash = digest(audit_chain.content(SimpleNamespace(**row)))
        return row | {"hash": self._hash}

    def save(self, connection: Connection) -> None:
        """Sets the log's head."""
        connection.execute(update(AUDIT_HEAD).values(seq=self._seq, hash=self._hash))
        if connection.dialect.name == "postgresql":
            connection.execute(
                text("SELECT setval(pg_get_serial_sequence('audit_entries', 'id'), :id)"), {"id": self._id}
            )


class _Ledger:
    """Holds and settlements one after the other, as `new_entry` states them: OPEN holds are open at a time."""

    def __init__(self, account: SimpleNamespace, own: SubAccount, team: set[str]) -> None:
        self.account, self._own, self._team = account, own, team
        self._taken = [own.train_spent, own.train_held]
        self._open = list[tuple[Original, str, str, datetime]]()
        self._history: History | None = None
        self.ran_s: defaultdict[str, float] = defaultdict(float)

    @property
    def balances(self) -> tuple[int, int]:
        """(spent, held) of the training account."""
        return self.account.train_spent, self.account.train_held

    def take(self, original: Original, job_id: str, key: str, at: datetime, history: History) -> Iterator[Any]:
        """Holds; and settles the oldest open hold if there are enough. Jobs that wait stay open."""
        self._history = history
        held = original.hold
        assert held is not None
        self.account.train_held += held.train
        own = key in self._team
        if own:
            self._taken[1] += held.train
        memo = HeldFor.model_validate({name: value for name, value in held.memo.items() if name not in STATED})
        move = Move("hold", job_id, (held.train, 0), f"hold:{job_id}", key, memo, budget=self._own.id if own else None)
        yield self._entry(move, at)
        if original.settled is not None:
            self._open.append((original, job_id, key, at))
        if len(self._open) > OPEN:
            yield self._settle(*self._open.pop(0))

    def end(self) -> Iterator[Any]:
        """Settles what is open."""
        while self._open:
            yield self._settle(*self._open.pop(0))

    def _settle(self, original: Original, job_id: str, key: str, at: datetime) -> dict[str, Any]:
        held, settled = original.hold, original.settled
        assert held is not None and settled is not None and self._history is not None
        self.account.train_held -= held.train
        self.account.train_spent += settled.train
        if key in self._team:
            self._taken[0] += settled.train
            self._taken[1] -= held.train
        self._history.by_key[key] += settled.train
        self.ran_s[key] += 1.0
        memo = Settled.model_validate({name: value for name, value in settled.memo.items() if name not in STATED})
        kind, released = cast(Kind, settled.kind), (settled.train_released, 0)
        spent = (settled.train, 0)
        move = Move(kind, job_id, spent, f"settle:{job_id}", settled.actor, memo, released=released)
        return self._entry(move, at)

    def _entry(self, move: Move, at: datetime) -> dict[str, Any]:
        self.account.entries += 1
        row = dict(new_entry(self.account, move))
        self.account.head = row["hash"]
        return row

    def save(self, connection: Connection) -> None:
        """Sets the account's row and the sub-account's."""
        moved = {name: getattr(self.account, name) for name in ("train_spent", "train_held", "entries", "head")}
        connection.execute(update(ACCOUNTS).where(ACCOUNTS.c.dataset_id == self.account.dataset_id).values(moved))
        taken = {"train_spent": self._taken[0], "train_held": self._taken[1]}
        connection.execute(update(SUBS).where(SUBS.c.id == self._own.id).values(taken))


def stamp(at: datetime) -> str:
    """A time as both databases read it."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _texts(connection: Connection, table: Table, key: str, value: str) -> list[dict[str, Any]]:
    """Rows as the database writes them out, without the types of their columns."""
    names = [each.name for each in table.columns]
    cast = "::text" if connection.dialect.name == "postgresql" else ""
    columns = ", ".join(f'"{name}"{cast}' for name in names)
    found = connection.execute(text(f'SELECT {columns} FROM {table.name} WHERE "{key}" = :value'), {"value": value})  # noqa: S608
    return [dict(zip(names, row, strict=True)) for row in found]


def _insert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows through the driver: `COPY` on PostgreSQL."""
    if not rows:
        return
    if table in TYPED:
        kinds = {each.name: each.type.dialect_impl(connection.dialect) for each in table.columns}
        convert = {name: kind.bind_processor(connection.dialect) for name, kind in kinds.items()}
        rows = [{name: (convert[name] or _same)(value) for name, value in row.items()} for row in rows]
    names = list(rows[0])
    driver: Any = connection.connection.driver_connection
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ([row[name] for name in names] for row in rows)
    if connection.dialect.name != "postgresql":
        marks = ", ".join("?" * len(names))
        driver.executemany(f"INSERT INTO {table.name} ({quoted}) VALUES ({marks})", values)  # noqa: S608
        return
    with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({quoted}) FROM STDIN") as copy:
        for row in values:
            copy.write_row(row)


def _same(value: Any) -> Any:
    return value


@contextmanager
def _unprotected(connection: Connection) -> Iterator[None]:
    """Without the triggers of the ledger and of the audit log, within the transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield
        return
    guarded = "('accounts', 'ledger_entries', 'audit_entries', 'audit_head')"
    named = f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN {guarded}"  # noqa: S608
    triggers = connection.execute(text(named)).all()
    for name, _sql in triggers:
        connection.execute(text(f"DROP TRIGGER {name}"))
    yield
    for _name, sql in triggers:
        connection.exec_driver_sql(sql)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--entries", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--queued", type=int, default=0, help="further jobs that wait for a worker")
    asked = parser.parse_args()
    settings = get_settings()  # SCRIMP_HOME and SCRIMP_DATABASE_URL of a prepared service
    db, began = Database.of(settings), time.monotonic()
    history = Seeder(db, settings).fill(asked.entries, asked.jobs, asked.queued)
    db.close()
    print(f"{history.dataset}: {history.entries} entries, {history.jobs} jobs, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
