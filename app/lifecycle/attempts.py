"""What an attempt writes while it runs: write-ahead record, digests, released metrics, its end. All of it fenced.

The record is written at once. What callers see of a job on private data (events, progress, scores, warnings, its end)
is written at the next whole second, by `heartbeat` or with the end: app.lifecycle.cadence says why. What a crash takes
before that was seen by nobody, and is not charged; a replay makes it again.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.db.engine import Database
from app.db.models import ApiKey, Artifact, Attempt, Block, Job, Metric
from app.errors import PrivacyError
from app.lifecycle import studies
from app.lifecycle.cadence import Cadence
from app.lifecycle.claims import Claim, end_attempt, fence, give_back
from app.lifecycle.coverage import covered_steps
from app.lifecycle.states import append_event
from app.privacy.filters import load_numerics
from app.privacy.mechanism import MechanismConfig
from app.privacy.numerics import NumericsReport

Write = Callable[[Session, Job], None]


@dataclass(frozen=True)
class Begun:
    """What an attempt is told once it has proved that it holds its job.

    Attributes:
        published: the files of the job that artifacts' rows name, also where its study has taken them over: paths under
            the storage root.
        limits_s: how long the job may run, by its specification and by its key.
        ran_s: how long earlier attempts ran.
    """

    dataset_id: str
    published: frozenset[str]
    limits_s: tuple[float, ...] = ()
    ran_s: float = 0.0


class AttemptLog:
    """The database as an attempt's supervisor sees it. Every method is one transaction that first renews the lease.

    Raises:
        StaleAttempt: from every method, where another attempt has taken the job.
    """

    def __init__(
        self, db: Database, held: Claim, *, lease_s: float, max_attempts: int, cadence: Cadence | None = None
    ) -> None:
        self.db, self.held, self.lease_s, self.max_attempts = db, held, lease_s, max_attempts
        self.cadence = cadence or Cadence()
        self._ran_before: float | None = None
        self._began = time.monotonic()
        self._is_private: bool | None = None  # not looked at yet
        # What callers have not seen yet, in order: of progress the last step alone. A thread of its own tells it.
        self._news: list[tuple[str, Write]] = []
        self._lock = threading.RLock()
        self._cancelling = False

    def _fenced(self, session: Session) -> Job:
        ran_s = None if self._ran_before is None else self._ran_before + time.monotonic() - self._began
        job = fence(session, self.held, self.lease_s, ran_s)
        self._is_private = job.mechanism is not None
        return job

    def _ending(self, session: Session) -> Job:
        """As `_fenced`, for a write that may end the job: its study, where it is a run of one, is locked before it. The
        last news are written with it."""
        studies.lock(session, self.held.job_id)
        job = self._fenced(session)
        for _what, write in self._news:
            write(session, job)
        session.flush()
        return job

    @property
    def _waits(self) -> bool:
        """Says if news wait for a whole second: where privacy is claimed. Known once a write was fenced."""
        return self._is_private is not False and self.cadence.period_s > 0.0

    def _wait(self) -> None:
        """Before the end is written. Outside a transaction: it takes up to a second."""
        if self._waits:
            self.cadence.wait()

    def _tell(self, session: Session, job: Job, what: str, write: Write) -> None:
        """Writes now or at the next whole second what callers see."""
        if not self._waits:
            write(session, job)
            return
        self._news = [each for each in self._news if not each[0] == what == "progress"] + [(what, write)]

    def begin(self) -> Begun:
        """The attempt's first write: proves that it still holds the job, before it touches a file."""
        with self.db.write(urgent=True) as session:
            job = self._fenced(session)
            whose = [job.id] if job.parent_id is None else [job.id, job.parent_id]
            paths = session.scalars(select(Artifact.path).where(Artifact.job_id.in_(whose)))
            published = frozenset(path for path in paths if path.startswith(f"jobs/{job.id}/"))
            limits = (job.spec.get("runtime", {}).get("max_duration_s"), session.get_one(ApiKey, job.key_id).max_job_s)
            self._ran_before = job.ran_s
            given = tuple(float(limit) for limit in limits if limit is not None)
            return Begun(job.dataset_id, published, given, job.ran_s)

    def may_run_s(self, seconds: float) -> float:
        """How long from now an attempt that has so many seconds left may run: on private data to the next whole second
        after them. An end between two of them would tell to a fraction when the work was done."""
        if not self._waits or math.isinf(seconds):
            return seconds
        return self.cadence.at_tick_s(max(seconds, 0.0))

    def heartbeat(self) -> bool:
        """Renews the lease and, in a new second, tells the news; whether a person asked to cancel.

        A wish to cancel counts from a whole second on too: how many steps had started at a moment that a caller chose
        would tell the time of a step.
        """
        with self._lock:
            is_time = self.cadence.ticked()
            with self.db.write(urgent=True) as session:
                job = self._fenced(session)
                is_time = is_time or not self._waits
                for _what, write in self._news if is_time else ():
                    write(session, job)
                cancelling = job.status == "cancelling"
            if is_time:
                self._news, self._cancelling = [], cancelling
            return self._cancelling

    def ready(self, device: str, numerics: NumericsReport, fallbacks: Sequence[str] = ()) -> None:
        """The data are loaded; `fallbacks` are the layers whose gradients are formed record by record."""
        said = {"device": device, "fallbacks": list(fallbacks), "numerics": numerics.model_dump(mode="json")}
        with self._lock, self.db.write(urgent=True) as session:
            job = self._fenced(session)
            self._tell(session, job, "ready", lambda session, job: append_event(session, job.id, "ready", said))

    def start_block(self, first_step: int, last_step: int) -> bool:
        """Writes ahead that steps first…last START. False where the attempt must stop instead (cancelled).

        Steps that were started before under the same salt are a replay: not counted again.

        Raises:
            PrivacyError: more steps would be started than the job's hold covers.
        """
        with self.db.write(urgent=True) as session:
            job = self._fenced(session)
            if self._cancelling if self._waits else job.status == "cancelling":
                return False
            salt = _segment_at(job, first_step)["salt"]
            under_salt = _started_under(session, job.id, salt)
            new = max(0, last_step - max(under_salt, first_step - 1))
            if new and job.steps_started + new > covered_steps(session, job):
                raise PrivacyError("this block would start more steps than the job's hold covers")
            if new:
                job.steps_started += new
            self._add_block(session, salt, first_step, last_step)
            return True

    def record_digest(self, step: int, digest: str) -> None:
        """The state after `step`, at a block's end; what the block made may leave only now.

        Raises:
            PrivacyError: another digest is recorded for that step and salt; the child should have seen it.
        """
        with self._lock, self.db.write(urgent=True) as session:
            job = self._fenced(session)
            salt = _segment_at(job, step)["salt"]
            if step == 0:
                self._add_block(session, salt, 0, 0)
            blocks = session.scalars(
                select(Block).where(Block.job_id == job.id, Block.salt == salt, Block.last_step == step)
            ).all()
            if not blocks:
                raise PrivacyError("a digest without a block that was started")
            for block in blocks:
                if block.digest not in (None, digest):
                    raise PrivacyError("a replay differs from what was recorded, and went on under the same keys")
                block.digest = digest
            if step > 0:
                self._tell(session, job, "progress", lambda session, job: _progress(session, job, step))

    def name_key(self, key_id: str) -> None:
        """Notes which server secret keys the first segment, at the first claim."""
        with self.db.write(urgent=True) as session:
            job = self._fenced(session)
            job.segments = [each | {"key_id": each["key_id"] or key_id} for each in job.segments]

    def resalt(self, matched_step: int, key_id: str) -> dict[str, Any]:
        """A replay was not identical: fresh salt from the step after the last match. Returns the new segment.

        Steps under the new salt are charged again, out of the same hold: at most `allowed_steps` of them.
        """
        with self._lock, self.db.write(urgent=True) as session:
            job = self._fenced(session)
            segment: dict[str, Any] = {"from_step": matched_step + 1, "salt": secrets.token_hex(32), "key_id": key_id}
            job.segments = [each for each in job.segments if each["from_step"] <= matched_step] + [segment]
            self._tell(session, job, "mismatch", lambda session, job: _mismatch(session, job, matched_step))
            return segment | {"allowed_steps": max(0, covered_steps(session, job) - job.steps_started)}

    def record_metric(self, metric: dict[str, Any]) -> None:
        """A released number, with those of its `parts` that are of the same release, in one transaction.

        A replayed one is the same number; a second value for a step is dropped, never released.

        Raises:
            PrivacyError: more releases than the mechanism was charged for, or something that it does not declare.
        """
        parts, whole = metric.get("parts", ()), {name: value for name, value in metric.items() if name != "parts"}
        with self._lock, self.db.write(urgent=True) as session:
            job = self._fenced(session)
            named = f"metric {whole['name']} "
            waiting = [what for what, _write in self._news if what.startswith(named)]
            known = session.get(Metric, (job.id, whole["name"], whole["step"])) is not None
            if known or f"{named}{whole['step']}" in waiting:
                return
            if job.mechanism is not None:
                of_name = select(func.count()).where(Metric.job_id == job.id, Metric.name == whole["name"])
                before = (session.scalar(of_name) or 0) + len(waiting)
                mechanism = MechanismConfig.model_validate(job.mechanism)
                _check_declared(mechanism, whole, {each["name"] for each in parts}, before)
            release = [*(whole | each | {"released_by": "post_processing"} for each in parts), whole]
            self._tell(session, job, f"{named}{whole['step']}", lambda session, job: _release(session, job, release))

    def succeed(self, artifacts: list[dict[str, Any]], steps_effective: int, warnings: list[str]) -> None:
        self._wait()
        with self.db.write(urgent=True) as session:
            job = self._ending(session)
            session.add_all(Artifact(job_id=job.id, **each) for each in artifacts)
            job.step = steps_effective
            job.warnings = [*job.warnings, *warnings]
            studies.end(session, job, "succeeded")
            end_attempt(session, job, job.status)  # failed, where more was recorded than the hold covers

    def cancelled(self) -> None:
        load_numerics()
        self._wait()
        with self.db.write(urgent=True) as session:
            job = self._ending(session)
            end_attempt(session, job, "cancelled")
            studies.end(session, job, "cancelled")

    def fail(self, code: str, message: str, *, whole: bool = False) -> None:
        """The attempt's own error: releases nothing of what was held, once a step was started; `whole`: also before."""
        self._wait()
        with self.db.write(urgent=True) as session:
            job = self._ending(session)
            end_attempt(session, job, "failed")
            studies.end(session, job, "failed", failure={"code": code, "message": message}, own_fault=True, whole=whole)

    def outcome(self) -> str:
        """What became of this attempt, for the log; "unknown" while the database is away."""
        try:
            with self.db.read() as session:
                status = select(Attempt.status).where(
                    Attempt.job_id == self.held.job_id, Attempt.number == self.held.attempt
                )
                return session.scalar(status) or "unknown"
        except SQLAlchemyError:
            return "unknown"

    def gone(self, how: Literal["lost", "crashed"]) -> None:
        """Back to the queue: this worker is stopping, or the attempt's process died without a last word."""
        load_numerics()
        self._wait()
        with self.db.write(urgent=True) as session:
            give_back(session, self._ending(session), how, self.max_attempts)

    def recorded(self) -> tuple[Job, dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
        """The job; the blocks recorded by salt, which a replay is compared with; the metrics released so far."""
        with self.db.read() as session:
            job = session.get_one(Job, self.held.job_id)
            blocks: dict[str, list[dict[str, Any]]] = {segment["salt"]: [] for segment in job.segments}
            for block in session.scalars(select(Block).where(Block.job_id == job.id).order_by(Block.id)):
                if block.salt in blocks:
                    blocks[block.salt].append(
                        {"first_step": block.first_step, "last_step": block.last_step, "digest": block.digest}
                    )
            metrics = session.execute(select(Metric.name, Metric.step).where(Metric.job_id == job.id))
            return job, blocks, [{"name": name, "step": step} for name, step in metrics]

    def _add_block(self, session: Session, salt: str, first_step: int, last_step: int) -> None:
        same = select(Block.id).where(
            Block.job_id == self.held.job_id,
            Block.salt == salt,
            Block.first_step == first_step,
            Block.last_step == last_step,
        )
        if session.scalar(same) is not None:
            return
        session.add(
            Block(
                job_id=self.held.job_id,
                attempt=self.held.attempt,
                salt=salt,
                first_step=first_step,
                last_step=last_step,
                digest=None,
            )
        )
        session.flush()


def _progress(session: Session, job: Job, step: int) -> None:
    job.step = step
    append_event(session, job.id, "progress", {"step": step, "steps": job.steps})


def _mismatch(session: Session, job: Job, matched_step: int) -> None:
    said = f"a replay differed after step {matched_step}: fresh noise from there, charged again"
    job.warnings = [*job.warnings, said]
    append_event(session, job.id, "replay_mismatch", {"matched_step": matched_step})


def _release(session: Session, job: Job, metrics: list[dict[str, Any]]) -> None:
    """All of one release, or nothing of it."""
    for each in metrics:
        session.add(Metric(job_id=job.id, **each))
        append_event(session, job.id, "metric", each)


def _check_declared(mechanism: MechanismConfig, metric: dict[str, Any], parts: set[str], before: int) -> None:
    """Raises PrivacyError unless the mechanism was charged for one more of this number."""
    name, released_by = metric["name"], metric["released_by"]
    declared = next((each for each in mechanism.scores if each.metric == name), None)
    if released_by in ("noisy_count", "noisy_sum"):
        if declared is None or before >= declared.times or not parts <= declared.parts:
            raise PrivacyError("more numbers would be released than the mechanism was charged for")
    elif parts:
        raise PrivacyError("parts go with the noisy sum that they are of")
    elif released_by == "post_processing" and (name != "clipping_norm" or mechanism.training.adaptive is None):
        raise PrivacyError("this is not made of anything that was charged")


def _segment_at(job: Job, step: int) -> dict[str, Any]:
    """The segment whose salt keys `step`."""
    return max((s for s in job.segments if s["from_step"] <= step), key=lambda segment: int(segment["from_step"]))


def _started_under(session: Session, job_id: str, salt: str) -> int:
    """The last step that was ever started under a salt; 0 where none was."""
    last = select(func.max(Block.last_step)).where(Block.job_id == job_id, Block.salt == salt)
    return int(session.scalar(last) or 0)
