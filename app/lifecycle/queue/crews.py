"""Gangs: the GPUs of one machine that an attempt holds together, with a rank on each.

A crew is the workers that one command started, a process for each GPU. The worker that claims a job on k GPUs leads it:
it holds its own GPU and borrows k − 1 of its crew's. All or none, in the transaction of the claim, under the locks of
the crew's rows in the table of workers. Each claim of a crew's worker takes these locks first, in the order of names,
before any lock on a study, job, key or account. So of two claims the second sees what the first one holds.

Nothing has to be given back: an attempt holds its GPUs exactly while its job is running under its number. Whatever ends
that (success, failure, cancel, a crash, a lapsed lease) frees all of them at once. Only after a lapsed lease may the
ranks still live for a moment. Their GPUs are then lent again one lease later, or once their leader says that they have
ended.

Who waits for a gang: the job whose turn it is (app.lifecycle.queue.fair). If the crew has k equal GPUs but fewer are
free, a worker whose GPU is free keeps it for the gang, and takes only jobs that ask for a processor. So the free ones
grow by one with each end there, and a gang whose turn has come is claimed after at most k further ends in that crew. Of
several crews only the one with the most free keeps any; the others go on. Workers that can never run the gang do not
see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.clock import now_there
from app.db.database import Database
from app.db.models import Attempt, Job, Worker
from app.lifecycle.states import ACTIVE, DEVICE, IS_DUE, PROCESSES, notify
from core.contracts.devices import Device
from core.contracts.runtime import MOST_PROCESSES, Runtime, StoredRuntime

Kind = tuple[str, str | None, int | None]  # GPUs that compute alike: name, capability, memory


@dataclass(frozen=True)
class Member:
    """A worker with a GPU, in a crew."""

    crew: str
    device: Device


@dataclass(frozen=True)
class Pool:
    """The GPUs alike of one crew.

    Attributes:
        able: those of living workers, by their indexes.
        free: those of them that no attempt holds.
    """

    crew: str
    able: tuple[int, ...] = ()
    free: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """What a worker may claim with now.

    Attributes:
        most: the largest number of GPUs that an attempt may ever have here; 0 on a processor.
        crew: null for a worker that is in none.
        free: its own GPU, and then the others that it may borrow; of a crew's worker alone.
        rivals: the other pools, of its crew too.
        is_lent: another attempt holds its GPU, or it is not listed yet: it may only run jobs on its processor.
    """

    most: int
    crew: str | None = None
    free: tuple[int, ...] = ()
    rivals: tuple[Pool, ...] = ()
    is_lent: bool = False

    @classmethod
    def alone(cls, devices: Collection[str]) -> Place:
        """A worker in no crew, by the kinds of its devices."""
        return cls(int("cuda" in devices))

    def needs(self, runtime: Runtime, frozen: str | None) -> int:
        """How many GPUs an attempt needs here; 0: it runs on the processor.

        Args:
            frozen: the kind of device of the job's earlier ready attempts. Such a job goes on with fewer.
        """
        wanted, ranks = frozen or runtime.device, runtime.ranks
        if not self.most or wanted == "cpu" or runtime.shard != "none":
            return 0
        if frozen == "cuda":
            return min(ranks, self.most)
        return ranks if ranks <= self.most else 0

    def taken(self, runtime: Runtime, need: int) -> tuple[int, ...] | None:
        """The GPUs that a claim takes now; None if too few are free. `auto` takes all that are."""
        if need == 0 or self.crew is None:
            return ()
        if len(self.free) < need or self.is_lent:
            return None
        return self.free[: MOST_PROCESSES if runtime.processes == "auto" else need]

    def keeps(self, need: int) -> bool:
        """True if free GPUs stay free for a gang whose turn it is: nowhere else, among enough GPUs alike, are more of
        them free; of equal ones the first keep them, by the crew's name and an index."""
        mine = (-len(self.free), self.crew or "", min(self.free, default=0))
        rivals = (each for each in self.rivals if len(each.able) >= need)
        return all(mine < (-len(each.free), each.crew, min(each.free, default=0)) for each in rivals)


def place_of(session: Session, worker: str, member: Member, lease_s: float) -> Place:
    """What a crew's worker may claim with, under the locks of the crew's rows until the transaction ends.

    Args:
        lease_s: a worker is alive that was seen within it.
    """
    locked = select(Worker.name).where(Worker.crew == member.crew).order_by(Worker.name)
    listed = session.scalars(locked.with_for_update(key_share=True)).all()
    number, kind = member.device.index, kind_of(member.device)
    pools = _pools(session, lease_s, (member.crew, (number,)))
    mine = pools.get((member.crew, kind), Pool(member.crew))
    rivals = tuple(pool for name, pool in pools.items() if name != (member.crew, kind))
    is_lent = worker not in listed or number not in mine.free
    other_gpus = tuple(each for each in mine.free if each != number)
    free = other_gpus if is_lent else (number, *other_gpus)
    return Place(min(MOST_PROCESSES, max(1, len(mine.able))), member.crew, free, rivals, is_lent)


def largest(session: Session, lease_s: float) -> int:
    """The most GPUs alike that one attempt can have on living workers."""
    crews = max((len(each.able) for each in _pools(session, lease_s).values()), default=0)
    query = select(Worker.devices).where(Worker.seen_at > now_there(session) - timedelta(seconds=lease_s))
    has_one = any(_gpus(devices) for devices in session.scalars(query))
    return min(MOST_PROCESSES, max(crews, int(has_one)))


def sizes(session: Session, lease_s: float) -> dict[str, int]:
    """The most GPUs alike that one attempt can have in each living crew."""
    crews: dict[str, int] = {}
    for (crew, _kind), pool in _pools(session, lease_s).items():
        crews[crew] = min(MOST_PROCESSES, max(crews.get(crew, 0), len(pool.able)))
    return crews


def release(db: Database, job_id: str, number: int, gpus: Sequence[int]) -> None:
    """Says that the ranks of an attempt have ended, so that its GPUs may be lent again; and wakes workers for jobs that
    waited for them: a gang, and one for each GPU that was borrowed, whose workers heard of jobs that they could not
    take."""
    with db.write() as session:
        is_lost = Attempt.status.in_(("lost", "lapsed"))
        lost = update(Attempt).where(Attempt.job_id == job_id, Attempt.number == number, is_lost)
        session.execute(lost.values(gpus=None))
        _wake(session, len(gpus) - 1)


def leave_queue(session: Session, job: Job) -> None:
    """Wakes the workers whose GPUs were kept for a gang that leaves the queue unclaimed: they heard of jobs that they
    could not take. Does nothing for another job.

    Args:
        job: its row, locked by this transaction, with its status as it was.
    """
    runtime = StoredRuntime.of(job.spec).runtime
    if job.status == "queued" and runtime.ranks > 1 and runtime.device != "cpu":
        _wake(session, runtime.ranks - 1, but=job.id)


def kind_of(device: Device) -> Kind:
    """What GPUs of one gang have in common: ranks must compute the same bits."""
    return (device.name, device.capability, device.memory_bytes)


def _wake(session: Session, gpus: int, but: str = "") -> None:
    """Wakes a worker for the next gang, and one for each of so many GPUs."""
    waiting = (Job.status == "queued", Job.study.is_(None), Job.id != but, IS_DUE)
    queued = select(Job.id).where(*waiting).order_by(Job.created_at)
    gang = session.scalars(queued.where(PROCESSES.not_in(("1", "auto")), DEVICE != "cpu").limit(1)).all()
    queued_ids = session.scalars(queued.limit(max(0, gpus))).all()
    for job_id in dict.fromkeys((*gang, *queued_ids)):
        notify(session, job_id)


def _pools(
    session: Session, lease_s: float, asker: tuple[str, tuple[int, ...]] | None = None
) -> dict[tuple[str, Kind], Pool]:
    since = now_there(session) - timedelta(seconds=lease_s)
    rows = session.execute(select(Worker.crew, Worker.devices).where(Worker.crew.is_not(None), Worker.seen_at > since))
    able: defaultdict[tuple[str, Kind], set[int]] = defaultdict(set)
    for crew, devices in rows:
        for gpu in _gpus(devices):
            able[crew, kind_of(gpu)].add(gpu.index)
    in_use = _held(session, lease_s, asker)
    return {
        (crew, kind): Pool(crew, tuple(sorted(cards)), tuple(sorted(cards - in_use[crew])))
        for (crew, kind), cards in able.items()
    }


def _held(session: Session, lease_s: float, asker: tuple[str, tuple[int, ...]] | None) -> defaultdict[str, set[int]]:
    """The GPUs of each crew that attempts hold.

    Args:
        asker: the crew and the one GPU of the worker that asks: it claims nothing before its own process has ended.
    """
    query = select(Attempt.crew, Attempt.gpus).where(Attempt.crew.is_not(None))
    running = query.join(Job, (Job.id == Attempt.job_id) & (Job.attempt == Attempt.number)).where(
        Job.status.in_(ACTIVE)
    )
    # The processes of a lapsed lease end within one more, as their leader cannot renew it.
    recently = Attempt.ended_at > now_there(session) - timedelta(seconds=lease_s)
    lost = session.execute(query.where(Attempt.status.in_(("lost", "lapsed")), recently))
    rows = [*session.execute(running), *((crew, gpus) for crew, gpus in lost if (crew, gpus) != asker)]
    in_use: defaultdict[str, set[int]] = defaultdict(set)
    for crew, gpus in rows:
        in_use[crew].update(gpus or ())
    return in_use


def _gpus(devices: Sequence[object] | None) -> list[Device]:
    gpus = [Device.model_validate(each) for each in devices or ()]
    return [each for each in gpus if each.kind == "cuda"]
