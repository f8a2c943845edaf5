"""Forecasts when a job would start that is submitted now: by the order of claims, with its weights and priorities.

It plays the claims that follow, as if nobody submitted more, no worker came or went, and all jobs took equally long:

    1. while a worker is free, or else when the job that has run longest ends, app.lifecycle.queue.fair chooses the next
    one
    2. until the new job is chosen

A key's own jobs come before it if their priority is as high; others' by their turns, never by their priority. It knows
only who waits, since when, and who runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import case, func, or_, select, true
from sqlalchemy.orm import Session

from app.db.models import Dataset, Job, Worker
from app.lifecycle.queue.fair import fairest, limits_and_weights
from app.lifecycle.queue.fronts import Candidate
from app.lifecycle.queue.presence import BEGINS
from app.lifecycle.queue.turns import Pair, Turn, Turns, turns_of
from app.lifecycle.states import ACTIVE, IS_DUE, NEEDS_GPU
from core.contracts.devices import Device
from core.contracts.job_spec import JobSpec
from core.ids import now

MOST_CLAIMS = 500
MOST_WORK = 20_000  # claims times pairs that wait
NEW = ""  # the new job's id


@dataclass(frozen=True)
class Ahead:
    """What comes before a new job.

    Attributes:
        claims: how many jobs are claimed first; if not `is_whole`, at least so many.
        ends: how many running jobs end first, over the number of workers.
    """

    claims: int
    ends: float
    is_whole: bool = True


@dataclass
class Queue:
    """Who waits and who runs.

    Attributes:
        waiting: how many jobs of each pair wait, the new one included and those that come after it left out.
        since: when the first of them was submitted.
        running: the pairs of running jobs, the one that has run longest first.
        turns: the last claims, and the latest of all.
        limits, weights: of keys: most running jobs, and turns.
        workers: how many jobs may run at once.
    """

    waiting: dict[Pair, int]
    since: dict[Pair, datetime]
    running: Sequence[Pair]
    turns: Turns
    limits: Mapping[str, int | None]
    weights: Mapping[str, int]
    workers: int = 1
    ends: int = field(default=0, init=False)

    def ahead(self, mine: Pair) -> Ahead | None:
        """Plays the claims until the pair's last job is taken; None if it never is: no worker, or a limit of 0."""
        running, claims = deque(self.running), 0
        limit = min(MOST_CLAIMS, max(1, MOST_WORK // len(self.waiting)))
        while self.workers:
            candidate = self._next(running) if len(running) < self.workers else None
            if candidate is None:
                if not running:
                    return None
                running.popleft()
                self.ends += 1
                continue
            pair, turn = candidate
            self.waiting[pair] -= 1
            if pair == mine and not self.waiting[pair]:
                return Ahead(claims, self.ends / self.workers)
            claims += 1
            if claims == limit:
                return Ahead(claims, self.ends / self.workers, is_whole=False)
            self.turns = self.turns.after(pair, turn)
            running.append(pair)
        return None

    def _next(self, running: Sequence[Pair]) -> tuple[Pair, Turn] | None:
        of_key = Counter(key for _owner, key in running)
        free = [
            Candidate(*pair, dataset_id=NEW, job_id=NEW, created_at=self.since[pair])
            for pair, count in self.waiting.items()
            if count and ((limit := self.limits[pair[1]]) is None or of_key[pair[1]] < limit)
        ]
        candidate = fairest(free, Counter(running), self.turns, self.weights)
        return None if candidate is None else (candidate.job.pair, candidate.turn)


def ahead_of(session: Session, key_id: str, owner: str, spec: JobSpec, lease_s: float) -> Ahead | None:
    """Forecasts what comes before a job of a key on an owner's data that is submitted now.

    Args:
        lease_s: a worker is alive that was seen within it.

    Returns:
        None if no worker that may take it is alive.
    """
    mine = (owner, key_id)
    listed = session.execute(select(Worker.name, Worker.devices).where(BEGINS), {"lease_s": lease_s}).all()
    gpus = {
        name: max((Device.model_validate(each).most_gpus for each in devices or ()), default=0)
        for name, devices in listed
    }
    on_gpus = spec.runtime.device == "cuda"
    able = [name for name, most in gpus.items() if not on_gpus or most >= spec.runtime.ranks]
    # A worker with a GPU takes jobs of both kinds.
    like = true() if all(gpus.values()) else NEEDS_GPU if on_gpus else ~NEEDS_GPU
    pair = (Dataset.owner_key, Job.key_id)
    # Jobs of the same key with a lower priority come after it.
    preferred = (Job.key_id == key_id) & (Dataset.owner_key == owner) & (spec.priority > Job.priority)
    counts = (func.sum(case((preferred, 0), else_=1)), func.min(Job.created_at))
    runs = select(*pair).join(Dataset, Dataset.id == Job.dataset_id).where(Job.study.is_(None))
    waiting = session.execute(
        runs.add_columns(*counts).where(like, Job.status == "queued", IS_DUE).group_by(*pair).order_by(*pair)
    )
    queue, since = {mine: 1}, {mine: now()}
    for of_owner, key, count, first in waiting:
        queue[of_owner, key] = queue.get((of_owner, key), 0) + count
        since[of_owner, key] = first
    busy = runs.where(Job.status.in_(ACTIVE), or_(like, Job.worker.in_(able)))
    running = session.execute(busy.order_by(Job.started_at, Job.id))
    limits, weights = limits_and_weights(session, {name for each in queue for name in each})
    turns = turns_of(session, {each for each, _key in queue})
    queue_of = Queue(queue, since, [(row[0], row[1]) for row in running], turns, limits, weights, len(able))
    return queue_of.ahead(mine)
