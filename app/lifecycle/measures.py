"""What processes count, added up in the database, so that each answer of /metrics is of all processes together.

Memory shared by prometheus_client's processes would need one folder on one host. The database has every process of
every host, and counts survive restarts. A process adds what it has counted every FLUSH_S and when it ends: a killed one
loses its last seconds.

Counts are of requests, prices, ends of processes, audits and seconds of jobs. Their labels are routes, statuses,
signals and keys, never jobs or data sets.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import ColumnElement, delete, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.db.clock import now_there
from app.db.database import Database
from app.db.models import Measure, table_of
from app.db.upsert import insert_into

logger = logging.getLogger(__name__)
FLUSH_S = 10.0
FRESH = timedelta(seconds=6 * FLUSH_S)  # an older gauge is of a process that has ended
KEPT = timedelta(hours=1)
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ALL = ""  # the process of a count
SUM = "sum"

Labels = tuple[str, ...]
Series = tuple[str, Labels]


@dataclass(frozen=True)
class Metric:
    """A metric that processes count.

    Attributes:
        kind: a histogram's series have one label more: the index of the bucket, or SUM.
    """

    name: str
    says: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: Labels = ()


REQUESTS = Metric("scrimp_http_requests", "Requests.", "counter", ("method", "route", "status"))
SECONDS = Metric("scrimp_http_request_seconds", "Time to answer a request.", "histogram", ("method", "route"))
PRICES = Metric("scrimp_prices", "Prices, by how each was found.", "counter", ("found",))
PRICING_QUEUE = Metric("scrimp_pricing_queue", "Requests that wait for a process that prices.", "gauge")
ENDS = Metric(
    "scrimp_attempt_processes",
    "Ended processes of attempts: exit code, signal, or `supervisor` (a cancel, a limit, a stop).",
    "counter",
    ("ended",),
)
EXCEEDED_AUDITS = Metric(
    "scrimp_audits_exceeded", "Audits that contradict what their job claims: workers' logs name it.", "counter"
)
# Not with the others: its keys' names are read with it, and there may be many.
KEY_SECONDS = Metric(
    "scrimp_key_job_seconds", "Whole seconds of ended attempts: the 100 keys with the most.", "counter", ("key",)
)
# Attempts whose rows the retention has deleted: /metrics adds them to those that are there.
SHORTENED_ATTEMPTS = Metric("scrimp_shortened_attempts", "Attempts that are kept as a count.", "counter", ("outcome",))
METRICS = {each.name: each for each in (REQUESTS, SECONDS, PRICES, PRICING_QUEUE, ENDS, EXCEEDED_AUDITS)}


class Measures:
    """The counts of one process. Thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._process = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._counts: defaultdict[Series, float] = defaultdict(float)
        self._gauges: dict[str, Callable[[], float]] = {}
        self._written: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def count(self, metric: Metric, *labels: str) -> None:
        """Adds one to a series of a counter."""
        with self._lock:
            self._counts[metric.name, labels] += 1

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Adds one value to a series of a histogram."""
        with self._lock:
            self._counts[metric.name, (*labels, str(bisect_left(BOUNDS, value)))] += 1
            self._counts[metric.name, (*labels, SUM)] += value

    def watch(self, metric: Metric, reader: Callable[[], float]) -> None:
        """Has a gauge of this process read at each flush."""
        self._gauges[metric.name] = reader

    def start(self) -> None:
        """Starts the thread that flushes."""
        self._thread = threading.Thread(target=self._run, name="measures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and flushes for the last time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(FLUSH_S)
        self._quietly(0.0)

    def flush(self, gauges: dict[str, float] | None = None) -> None:
        """Adds what was counted before to the database. Writes nothing if there is nothing new.

        One at a time: what another flush has taken is there once it has ended.

        Raises:
            SQLAlchemyError: the database does not answer; the counts are kept for the next time.
        """
        with self._flushing:
            self._flush(gauges)

    def _flush(self, gauges: dict[str, float] | None) -> None:
        readings = {name: reader() for name, reader in self._gauges.items()} if gauges is None else gauges
        # A gauge that stays 0 need not be fresh: without a row it is 0.
        gauges = {name: value for name, value in readings.items() if value or self._written.get(name)}
        with self._lock:
            counts, self._counts = self._counts, defaultdict(float)
        if not counts and not gauges:
            return
        try:
            with self._db.write() as session:
                at = now_there(session)
                # In one order, so that two processes never wait for each other.
                _add(session, [_row(*series, ALL, value, at) for series, value in sorted(counts.items())])
                _set(session, [_row(name, (), self._process, value, at) for name, value in sorted(gauges.items())])
                if gauges:
                    old = (Measure.process != ALL, Measure.written_at < at - KEPT)
                    session.execute(delete(Measure).where(*old))
        except SQLAlchemyError:
            with self._lock:
                for series, value in counts.items():
                    self._counts[series] += value
            raise
        self._written.update(gauges)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._quietly()

    def _quietly(self, all_gauges: float | None = None) -> None:
        try:
            self.flush(None if all_gauges is None else dict.fromkeys(self._gauges, all_gauges))
        except SQLAlchemyError as error:  # the database is away for a while
            logger.warning("cannot add up what this process counted: %s", type(error).__name__)


def count_within(session: Session, metric: Metric, *labels: str, amount: float = 1.0) -> None:
    """Adds to a series of a counter with the caller's transaction: for what no killed process may lose.

    It is written last, at the commit. All processes write to the same row: whoever holds it waits for no other lock.
    """
    if "measures" not in session.info:
        session.info["measures"] = defaultdict[Series, float](float)
        event.listen(session, "before_commit", _write_counts)
    session.info["measures"][metric.name, labels] += amount


def _write_counts(session: Session) -> None:
    if session.in_nested_transaction():  # the end of a savepoint
        return
    session.flush()
    counts: dict[Series, float] = session.info["measures"]
    at = now_there(session)
    _add(session, [_row(*series, ALL, value, at) for series, value in sorted(counts.items())])
    counts.clear()


def series_of(session: Session, metric: Metric, limit: int) -> list[tuple[Labels, float]]:
    """The largest series of a counter, the largest first."""
    query = select(Measure.labels, Measure.value).where(Measure.name == metric.name, Measure.process == ALL)
    rows = session.execute(query.order_by(Measure.value.desc(), Measure.labels).limit(limit))
    return [(tuple(json.loads(labels)), value) for labels, value in rows]


def totals(session: Session) -> dict[Series, float]:
    """The series of all processes together: counts, and the sum of fresh gauges."""
    fresh = (Measure.process == ALL) | (Measure.written_at > now_there(session) - FRESH)
    sums: defaultdict[Series, float] = defaultdict(float)
    for name, labels, value in session.execute(select(Measure.name, Measure.labels, Measure.value).where(fresh)):
        sums[name, tuple(json.loads(labels))] += value
    return dict(sums)


Row = dict[str, str | float | datetime]


def _row(name: str, labels: Labels, process: str, value: float, at: datetime) -> Row:
    return {"name": name, "labels": json.dumps(labels), "process": process, "value": value, "written_at": at}


def _add(session: Session, rows: Sequence[Row]) -> None:
    """Adds each row's value to what is there."""
    _upsert(session, rows, lambda old, new: old + new)


def _set(session: Session, rows: Sequence[Row]) -> None:
    """Replaces what is there."""
    _upsert(session, rows, lambda _old, new: new)


def _upsert(
    session: Session,
    rows: Sequence[Row],
    merged: Callable[[ColumnElement[float], ColumnElement[float]], ColumnElement[float]],
) -> None:
    table = table_of(Measure)
    for row in rows:
        new = insert_into(session, table).values(row)
        changed = {"value": merged(table.c.value, new.excluded.value), "written_at": new.excluded.written_at}
        session.execute(new.on_conflict_do_update(index_elements=["name", "labels", "process"], set_=changed))
