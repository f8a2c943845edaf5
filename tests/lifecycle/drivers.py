"""Drivers of a test's cluster: they claim by the product's own claims, and end as the test says.

The cluster counts as Ray does (tests/worker/test_group.py has the real one): all ranks get a device, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.db.database import Database
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Claim
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.presence import Presence
from app.lifecycle.queue.room import Need, Room
from core.contracts.devices import Device
from tests.factories import AT_ONCE, add_dataset, add_key
from tests.lifecycle.conftest import Submit
from tests.lifecycle.test_fair import NO_RECORDS

LEASE_S = 3600.0
FREE: dict[str, Any] = {"privacy": None, "evaluation": None}


class Devices:
    """A cluster's devices, by their kind."""

    def __init__(self, cuda: int = 0, cpu: int = 0) -> None:
        self.all = Counter(cuda=cuda, cpu=cpu)
        self.free = self.all.copy()


@dataclass
class Driver:
    """One worker that runs jobs on the cluster."""

    db: Database
    pid: int
    devices: Devices
    held: Claim | None = None
    need: Need | None = None
    ranks: int = 0
    asked: list[Need] = field(default_factory=list)

    def __post_init__(self) -> None:
        gpu = Device(kind="cuda", index=0, name="A GPU", gpus=self.devices.all["cuda"], processes=1)
        self.presence = Presence(self.db, "host", self.pid, 5.0, devices=[gpu])
        self.presence.beat()

    def granted(self, need: Need) -> int:
        return self.ranks if need == self.need else 0

    def ask(self, need: Need) -> bool:
        self.give_up()
        self.asked.append(need)
        ranks = max(need.ranks, min(need.limit, self.devices.free[need.kind]))
        if ranks > self.devices.free[need.kind]:
            return False
        self.need, self.ranks = need, ranks
        self.devices.free[need.kind] -= ranks
        return True

    def give_up(self) -> None:
        if self.need is not None:
            self.devices.free[self.need.kind] += self.ranks
        self.need, self.ranks = None, 0

    def claim(self) -> Claim | None:
        """What it claims when it is woken; a busy one is not."""
        if self.held is None:
            room = Room(self.devices.all["cpu"], self.devices.all["cuda"])
            self.held = claim_next(self.db, NO_RECORDS, self.presence.name, LEASE_S, room, self)
            if self.held is None:
                self.give_up()
            return self.held
        return None

    def log(self) -> AttemptLog:
        assert self.held is not None
        return AttemptLog(self.db, self.held, lease_s=LEASE_S, max_attempts=3, cadence=AT_ONCE)

    def end(self, how: str = "succeeded") -> None:
        log = self.log()
        if how == "failed":
            log.fail("x", "x")
        elif how == "succeeded":
            log.succeed([], 0, [])
        else:
            log.gone("lost")
        self.held = None
        self.give_up()


def wake_all(drivers: Sequence[Driver]) -> list[Claim]:
    """All idle drivers look for work until none finds any."""
    claims: list[Claim] = []
    while found := [held for each in drivers if (held := each.claim()) is not None]:
        claims += found
    return claims


class Queue:
    """Jobs without privacy, each of a key that may use the one data set."""

    def __init__(self, db: Database, submit: Submit, keys: int = 4) -> None:
        self.db, self.submit, self.count = db, submit, 0
        self.dataset = add_dataset(db, privacy={"sensitivity": "public"})
        with db.write() as session:
            self.keys = [add_key(session, "analyst") for _ in range(keys)]

    def add(self, processes: int | str = 1, device: str = "cuda", key: int = 0, **more: Any) -> str:
        self.count += 1
        runtime = {"processes": processes, "device": device, **more}
        return self.submit(self.dataset, self.keys[key], str(self.count), runtime=runtime, **FREE)
