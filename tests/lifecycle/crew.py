"""A crew of a test: workers that declare GPUs, claim by the product's own claims, and end as the test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Attempt, Job
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Claim
from app.lifecycle.queue.crews import Member, release
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.fronts import Room
from app.lifecycle.queue.presence import Presence
from app.lifecycle.states import ACTIVE
from core.contracts.devices import Device
from tests.factories import AT_ONCE
from tests.lifecycle.test_fair import BOTH, NO_RECORDS

LEASE_S = 3600.0


def gpu(index: int, name: str = "A GPU") -> Device:
    return Device(kind="cuda", index=index, name=name, memory_bytes=2**34, capability="9.0")


@dataclass
class Hand:
    """One worker: a GPU of a crew, or its processor alone."""

    db: Database
    pid: int
    device: Device | None
    crew: str | None = None
    processes: int = 1
    held: Claim | None = None
    presence: Presence = field(init=False)

    def __post_init__(self) -> None:
        devices = [self.device or Device(kind="cpu", index=0, name="A processor")]
        self.presence = Presence(self.db, "host", self.pid, 5.0, devices=devices, crew=self.crew)
        self.presence.beat()

    def claim(self, lease_s: float = LEASE_S) -> Claim | None:
        """What it claims when it is woken; a busy one is not."""
        if self.held is not None:
            return None
        kinds = BOTH if self.device is not None else frozenset(("cpu",))
        member = Member(self.crew, self.device) if self.crew is not None and self.device is not None else None
        self.held = claim_next(
            self.db, NO_RECORDS, self.presence.name, lease_s, kinds, Room(self.processes), member=member
        )
        return self.held

    def log(self) -> AttemptLog:
        assert self.held is not None
        return AttemptLog(self.db, self.held, lease_s=LEASE_S, max_attempts=3, cadence=AT_ONCE)

    def end(self, how: str) -> None:
        """The attempt ends, and its leader says so, as the worker does."""
        assert self.held is not None
        log, held = self.log(), self.held
        if how == "failed":
            log.fail("x", "x")
        elif how == "succeeded":
            log.succeed([], 0, [])
        else:
            log.gone("lost" if how == "lost" else "crashed")
        if held.gpus:
            release(self.db, held.job_id, held.attempt, held.gpus)
        self.held = None


def crew_of(db: Database, size: int, name: str = "crew") -> list[Hand]:
    base = sum(map(ord, name)) * 100
    return [Hand(db, base + index, gpu(index), name) for index in range(size)]


def in_use(db: Database, crew: str = "crew") -> Counter[int]:
    """How many running attempts hold each GPU."""
    held = select(Attempt.gpus).join(Job, (Job.id == Attempt.job_id) & (Job.attempt == Attempt.number))
    with db.read() as session:
        found = session.scalars(held.where(Attempt.crew == crew, Job.status.in_(ACTIVE)))
        return Counter(index for gpus in found for index in gpus or ())


def wake(hands: Sequence[Hand]) -> list[Claim]:
    """All idle workers look for work until none finds any."""
    found: list[Claim] = []
    while claimed := [held for hand in hands if (held := hand.claim()) is not None]:
        found += claimed
    return found
