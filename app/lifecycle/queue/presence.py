"""The list of workers: each worker reports itself every `heartbeat_s`. For people, and
for releases (app.lifecycle.queue.fair): other claims and leases do not use it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import Float, Select, and_, bindparam, case, delete, false, func, select
from sqlalchemy.orm import Session

from app.db.clock import Ago, now_there
from app.db.database import Database
from app.db.models import Job, Worker
from app.db.skew import skew_s
from app.lifecycle.states import ACTIVE
from core.contracts.devices import Device, kind_of
from core.contracts.runtime import Runtime
from core.contracts.sandbox import Sandbox
from core.ids import now

logger = logging.getLogger(__name__)
FORGOTTEN_AFTER = timedelta(days=1)


class Presence:
    """Keeps one worker's row fresh from a separate thread, as the worker itself may be busy with a job for hours.

    Args:
        sandbox: the limits on its attempts; None: unknown.
        devices: what it computes on, or what tells it at each beat; None: unknown.

    Attributes:
        release: the name of its code and libraries; None: unknown.
        finishes: it takes only jobs that its release began.
        volume: where it reads data files (app.ingest); None: it runs jobs.
        stopping: set when it is told to stop: its release's jobs no longer wait for it.
    """

    release: str | None = None
    finishes = False
    volume: str | None = None
    stopping: threading.Event | None = None

    def __init__(
        self,
        db: Database,
        host: str,
        pid: int,
        interval_s: float,
        sandbox: Sandbox | None = None,
        devices: Sequence[Device] | Callable[[], Sequence[Device]] | None = None,
    ) -> None:
        self.db, self.host, self.pid, self.interval_s = db, host, pid, interval_s
        self.sandbox, self.devices = sandbox, devices
        self.started_at = now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    @property
    def name(self) -> str:
        """The worker's name: host and process id."""
        return f"{self.host}:{self.pid}"

    def start(self) -> None:
        """Lists the worker, and starts the thread."""
        self._quietly(self.beat)
        self._thread.start()

    def stop(self) -> None:
        """Removes the worker from the list. A worker that dies instead is listed as not alive for a day."""
        self._stop.set()
        self._thread.join(self.interval_s)
        self._quietly(self._leave)

    def beat(self) -> None:
        """Updates this worker's row, and removes rows of workers not seen for a day."""
        skew = skew_s(self.db)
        devices = self.devices() if callable(self.devices) else self.devices
        with self.db.write() as session:
            seen_at = now_there(session)
            row = Worker(
                name=self.name,
                host=self.host,
                pid=self.pid,
                started_at=self.started_at,
                seen_at=seen_at,
                skew_s=skew,
                sandbox=None if self.sandbox is None else self.sandbox.model_dump(mode="json"),
                devices=None if devices is None else [each.model_dump(mode="json") for each in devices],
                release=None if self.stopping is not None and self.stopping.is_set() else self.release,
                finishes=self.finishes,
                volume=self.volume,
                card=None if not devices else devices[0].card,
            )
            session.merge(row)  # a restarted container has the same host and pid
            session.execute(delete(Worker).where(Worker.seen_at < seen_at - FORGOTTEN_AFTER))

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            self._quietly(self.beat)

    def _leave(self) -> None:
        with self.db.write() as session:
            session.execute(delete(Worker).where(Worker.name == self.name))

    @staticmethod
    def _quietly(action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # the database is away for a while, or the cluster that tells of its devices
            logger.warning("cannot update the list of workers: %s", type(error).__name__)


def workers(session: Session) -> list[tuple[Worker, str | None]]:
    """Lists the workers seen in the last day, the last seen first, each with the job that it runs."""
    query = (
        select(Worker, Job.id)
        .outerjoin(Job, (Job.worker == Worker.name) & Job.status.in_(ACTIVE))
        .order_by(Worker.seen_at.desc(), Worker.name)
    )
    # A killed worker may still hold one job by its lease, and its name may hold another from before.
    by_name: dict[str, tuple[Worker, str | None]] = {}
    for worker, job in session.execute(query):
        by_name.setdefault(worker.name, (worker, job))
    return list(by_name.values())


def is_alive(worker: Worker, lease_s: float, at: datetime) -> bool:
    """Returns True if a worker was seen within a lease's time before `at`, a moment by the database's clock."""
    return worker.seen_at > at - timedelta(seconds=lease_s)


def present(session: Session, lease_s: float) -> list[Worker]:
    """Reads the workers that were seen within a lease's time, ingest workers too."""
    at = now_there(session)
    return [worker for worker, _job in workers(session) if is_alive(worker, lease_s, at)]


def living(session: Session, lease_s: float) -> list[Worker]:
    """Reads those of them that run jobs."""
    return list(filter(runs_jobs, present(session, lease_s)))


def runs_jobs(worker: Worker) -> bool:
    """Returns False for an ingest worker."""
    return worker.volume is None


LEASE_S = bindparam("lease_s", type_=Float(53))
# A worker lives, and runs jobs; it begins new ones too. Bind `lease_s`.
LIVES = and_(Worker.seen_at > Ago(LEASE_S), Worker.volume.is_(None))
BEGINS = and_(LIVES, ~func.coalesce(Worker.finishes, false()))


def _most_gpus() -> Select[int]:
    """The most GPUs that a living worker begins one more job on: 0 without any. Bind `lease_s`."""
    device = Worker.devices[0]
    gpus = case((device["kind"].as_string() == "cuda", func.coalesce(device["gpus"].as_integer(), 1)), else_=0)
    return select(func.coalesce(func.max(gpus), 0)).where(BEGINS)


MOST_GPUS = _most_gpus()


class GpuWorkers:
    """Tells what living workers have: GPUs, and processes and GPUs for one job.

    Asks the database when it is first asked, so other requests pay nothing.
    """

    def __init__(self, db: Database, lease_s: float) -> None:
        self._db, self.lease_s = db, lease_s
        self._listed: list[tuple[Device, bool]] | None = None

    def lack(self, runtime: Runtime, ready: str | None) -> Literal["cuda", "gpus", "processes"] | None:
        """What no living worker has for a job: a GPU, so many GPUs for one job, or so many processes.

        Args:
            ready: the kind of device of its earlier ready attempts; such a job goes on with fewer processes, and on a
                worker that begins no other.
        """
        kind, fits_any = kind_of(runtime.device, ready), ready is not None or runtime.ranks == 1
        if kind == "cpu" and fits_any:
            return None
        devices = [device for device, begins in self._seen() if begins or ready is not None]
        if kind == "cuda" and all(device.kind == "cpu" for device in devices):
            return "cuda"
        if fits_any:
            return None
        if kind == "cuda":
            return None if any(device.most_gpus >= runtime.ranks for device in devices) else "gpus"
        return None if any((device.processes or 1) >= runtime.ranks for device in devices) else "processes"

    def _seen(self) -> list[tuple[Device, bool]]:
        """The devices of living workers, and whether these begin new jobs."""
        if self._listed is None:
            seen = select(Worker.devices, Worker.finishes).where(LIVES)
            with self._db.read() as session:
                rows = session.execute(seen, {"lease_s": self.lease_s}).all()
            self._listed = [(Device.model_validate(each), not row[1]) for row in rows for each in row[0] or ()]
        return self._listed
