"""An attempt's writes while it runs: write-ahead record, digests, released metrics and its end. All are fenced.

The record is written at once. What callers see of a job on private data (events, progress, scores, warnings, its end)
is written at the next whole second, by `heartbeat` or with the end; app.lifecycle.cadence explains why. A crash may
lose such news. Released numbers are in the job's mark by then (app.lifecycle.marks), from which the next attempt
releases them; they are charged.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import ApiKey, Artifact, Attempt, Block, Job, Metric, Worker
from app.ledger.block_accounts import held_on, read_under
from app.lifecycle import block_rows, learning, measures, study_states
from app.lifecycle.attempt_records import Begun, Recorded, Resalted, StartedBlock
from app.lifecycle.cadence import Cadence
from app.lifecycle.claims import Claim, Gone, end_attempt, fence, fence_alone, give_back
from app.lifecycle.coverage import covered_steps, training_of
from app.lifecycle.job_events import Mismatch, Part, Progress, Rank, Ranks, Ready
from app.lifecycle.marks import Mark, Marks, adopt, adopt_all, around, mark_of, release
from app.lifecycle.settle import Cause
from app.lifecycle.states import IDLE, STOPPING, append_event, enqueue
from core.contracts.devices import Kind
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import ArtifactFile, Failure, Number, SaltedSteps
from core.errors import PrivacyError, TransientError
from core.privacy.canary_bound import EXCEEDED, Finding
from core.privacy.filters import load_numerics
from core.privacy.mechanism import MechanismConfig, TrainingMechanism
from core.privacy.numerics import NumericsReport

logger = logging.getLogger(__name__)
Write = Callable[[Session, Job], None]


class AttemptLog:
    """An attempt's supervisor's access to the database. Every method is one transaction that first renews the lease.

    Args:
        marks: where what leaves is recorded before it does; None: nothing leaves (the auditor).

    Raises:
        StaleAttempt: from every method, if another attempt has taken the job.
    """

    def __init__(
        self,
        db: Database,
        claim: Claim,
        *,
        lease_s: float,
        max_attempts: int,
        cadence: Cadence | None = None,
        marks: Marks | None = None,
    ) -> None:
        self.db, self.held, self.lease_s, self.max_attempts, self.marks = db, claim, lease_s, max_attempts, marks
        self._mark: Mark | None = None  # what left so far; None: not begun, or public data
        self._on_disk: Mark | None = None  # as far as it is recorded
        self.cadence = cadence or Cadence()
        self._ran_before: float | None = None
        self._ran_at_save: float | None = None
        self._began = time.monotonic()
        self._is_private: bool | None = None  # not read yet
        self._training: TrainingMechanism | None = None  # what the job has paid for; None: not begun, or public data
        # News that callers have not seen yet, in order; for progress only the last step. A separate thread writes it.
        self._news: list[tuple[str, Write]] = []
        self._lock = threading.RLock()
        self._is_stopping = False

    @property
    def _ran_s(self) -> float | None:
        return None if self._ran_before is None else self._ran_before + time.monotonic() - self._began

    @contextmanager
    def _recording(self) -> Iterator[Session]:
        """A transaction while the attempt runs. What it tells counts once it is committed."""
        with self._lock:
            news = self._news
            try:
                with self.db.write(urgent=True) as session:
                    yield session
            except BaseException:
                self._news = news
                raise

    def _fenced(self, session: Session) -> Job:
        job = fence(session, self.held, self.lease_s, self._ran_s)
        if self._is_private is None:
            self._training = training_of(job)
            self._is_private = self._training is not None
        return job

    def _fenced_alone(self, session: Session) -> Row[Any]:
        """As `_fenced`, without the job's documents.

        Raises:
            TransientError: the database was set back since the attempt wrote to it.
        """
        if self._is_private is None:
            self._fenced(session)
        job = fence_alone(session, self.held, self.lease_s, self._ran_s)
        if self._mark is not None and job.steps_started < self._mark.steps_started:
            raise TransientError("the database has forgotten steps of this attempt: a backup was restored")
        return job

    @contextmanager
    def _ending(self) -> Iterator[tuple[Session, Job]]:
        """A transaction that may end the job, at the next tick. It locks the study first if the job is a trial, and
        writes the last news.

        Raises:
            TransientError: the attempt has not begun, and the job's mark cannot be read: its lease lapses.
        """
        self._wait()
        # The database may have been set back, under this attempt, before it began, or while a study's trials waited.
        marks = {} if self.marks is None else around(self.db, self.marks, self.held.job_id, itself=self._mark is None)
        mark = marks.pop(self.held.job_id, self._mark)
        with self.db.write(urgent=True) as session:
            study_states.lock(session, self.held.job_id)
            job = self._fenced(session)
            for _what, write in self._news:
                write(session, job)
            session.flush()
            if mark is not None:
                adopt(session, job, mark)
            adopt_all(session, marks, IDLE)
            yield session, job

    def _note(self, mark: Mark) -> None:
        """Records what is about to leave, on disk before this returns. Call it outside a transaction: with SQLite all
        other writers would wait for the disk, or for a bucket.

        Raises:
            TransientError: it cannot be recorded: nothing may leave.
        """
        if self.marks is not None:
            self.marks.append(mark.since(self._on_disk))
        self._mark = self._on_disk = mark

    @property
    def _waits(self) -> bool:
        """True if news waits for a whole second, as it does where privacy is claimed. Known after a fenced write."""
        return self._is_private is not False and self.cadence.period_s > 0.0

    def _wait(self) -> None:
        """Waits for the tick before the end is written. Call it outside a transaction: it takes up to a second."""
        if self._waits:
            self.cadence.wait()

    def _tell(self, session: Session, action: str, write: Write) -> None:
        """Writes news for callers now or at the next whole second."""
        if not self._waits:
            write(session, session.get_one(Job, self.held.job_id))
            return
        self._news = [each for each in self._news if not each[0] == action == "progress"] + [(action, write)]

    def begin(self) -> Begun:
        """Makes the attempt's first write, before it touches a file: proves that it still holds the job.

        Raises:
            TransientError: the job's mark cannot be read, or written.
        """
        earlier = None if self.marks is None else self.marks.read([self.held.job_id]).get(self.held.job_id)
        with self.db.write(urgent=True) as session:
            dataset = self._fenced(session).dataset_id
        last = 0 if earlier is None else earlier.attempt
        # The job is still this attempt's, so a mark with its number or a later one is of before the database was set
        # back.
        begun = Mark(job=self.held.job_id, dataset=dataset, attempt=max(self.held.attempt, last + 1))
        if self.marks is not None and self._is_private:
            self.marks.append(begun, after=last)
            earlier = self.marks.read([self.held.job_id]).get(self.held.job_id)  # no earlier attempt adds to it now
        with self.db.write(urgent=True) as session:
            job = self._fenced(session)
            if earlier is not None:
                adopt(session, job, earlier)
            self._mark = mark_of(session, job, begun.attempt) if self._is_private else None
            job_ids = [job.id] if job.parent_id is None else [job.id, job.parent_id]
            paths = session.scalars(select(Artifact.path).where(Artifact.job_id.in_(job_ids)))
            published = frozenset(path for path in paths if path.startswith(f"jobs/{job.id}/"))
            runtime = JobSpec.model_validate(job.spec).runtime
            limits = (runtime.max_duration_s, session.get_one(ApiKey, job.key_id).max_job_s)
            self._ran_before = job.ran_s
            limits_set = tuple(float(limit) for limit in limits if limit is not None)
            ledgers = held_on(session, job.parent_id or job.id)
            read_under(session, job, ledgers)  # refuses to read without a hold
            return Begun(job.dataset_id, tuple(ledgers) or (job.dataset_id,), published, limits_set, job.ran_s)

    def may_run_s(self, seconds: float) -> float:
        """Returns how long from now an attempt with `seconds` left may run: on private data until the next whole second
        after them. An end between two whole seconds would reveal its time to a fraction of a second."""
        if not self._waits or math.isinf(seconds):
            return seconds
        return self.cadence.at_tick_s(max(seconds, 0.0))

    def heartbeat(self) -> bool:
        """Renews the lease and, in a new second, writes the news. Returns True if the job is to be cancelled or paused.

        That too takes effect at a whole second: the number of steps started at a moment that a caller chose
        would reveal the time of a step.
        """
        with self._lock:
            is_time = self.cadence.ticked()
            with self.db.write(urgent=True) as session:
                job = self._fenced(session)
                is_time = is_time or not self._waits
                for _what, write in self._news if is_time else ():
                    write(session, job)
                is_stopping = job.status in STOPPING
            if is_time:
                self._news, self._is_stopping = [], is_stopping
            return self._is_stopping

    def ready(
        self,
        device: Kind,
        numerics: NumericsReport,
        fallbacks: Sequence[str] = (),
        fitted_rows: int | None = None,
        processes: Sequence[int] = (),
    ) -> None:
        """Reports that the data are loaded. Later attempts run on the same kind of device, in passes of the same size,
        on the same number of threads, and first on workers of the same release.

        Args:
            fallbacks: the layers with gradients formed record by record.
            fitted_rows: the rows of a pass that fit in the device's memory, if they are fewer than the quote's.
            processes: the pids of the attempt's ranks.

        Raises:
            PrivacyError: earlier attempts ran on another kind of device, or in passes of another size.
        """
        ready_event = Ready(device=device, processes=tuple(processes), fallbacks=tuple(fallbacks), numerics=numerics)

        def tell(session: Session, job: Job) -> None:
            mine = (Attempt.job_id == job.id, Attempt.number == job.attempt)
            session.execute(update(Attempt).where(*mine).values(device=device))
            append_event(session, job.id, "ready", ready_event)

        with self._recording() as session:
            job = self._fenced(session)
            if job.device is None:
                job.device, job.fitted_rows = device, fitted_rows
            elif (job.device, job.fitted_rows) != (device, fitted_rows):
                raise PrivacyError("an attempt must run on the kind of device, and in passes of the size, of the first")
            mine = select(Worker.release, Worker.card).where(Worker.name == self.held.worker)
            release, card = session.execute(mine).one_or_none() or (None, None)
            job.release = release or job.release
            job.card = None if device == "cpu" else card or job.card
            if job.threads is None:  # also of a job that was ready before threads were stored
                job.threads = numerics.threads
            self._tell(session, "ready", tell)

    def start_block(self, first_step: int, last_step: int, digest: str | None = None) -> bool:
        """Records in advance that steps first…last START. Returns False if the attempt must stop instead.

        Steps that were started before under the same salt are a replay: they are not counted again.

        Args:
            digest: of the state before them, which is recorded in the same transaction, as by `record_digest`, also
                if the attempt must stop; None: it is recorded.

        Raises:
            PrivacyError: more steps would start than the job's hold covers; or as `record_digest`.
            TransientError: the mark cannot be written, or the database was set back meanwhile.
        """
        with self._recording() as session:
            job = self._fenced_alone(session)
            mark = self._mark
            if digest is not None:
                mark = self._digested(session, job, first_step - 1, digest)
            is_stopping = self._is_stopping if self._waits else job.status in STOPPING
            if not is_stopping:
                steps = first_step, last_step
                started, salt = block_rows.start(session.connection(), job, self.held.attempt, steps, self._training)
                mark = None if mark is None else mark.started(started, salt)
        self._mark = mark
        if not is_stopping and mark is not None:
            self._note(mark)
        return not is_stopping

    def record_digest(self, step: int, digest: str) -> None:
        """Records the state's digest after `step`, at a block's end; the block's results may be released only now.

        Raises:
            PrivacyError: another digest is recorded for that step and salt; the child should have noticed it.
            TransientError: the database was set back meanwhile.
        """
        with self._recording() as session:
            job = self._fenced_alone(session)
            mark = self._digested(session, job, step, digest)
        self._mark = mark

    def _digested(self, session: Session, job: Row[Any], step: int, digest: str) -> Mark | None:
        """Records a digest. Returns the mark with it: on disk before the next block starts, or a result leaves."""
        salt = block_rows.record_digest(session.connection(), job, self.held.attempt, step, digest)
        if step > job.step:  # not while it repeats what callers have seen
            self._tell(session, "progress", lambda session, job: _progress(session, job, step))
        return self._mark if self._mark is None or step == 0 else self._mark.digested(step, salt)

    def require_held(self) -> None:
        """Proves that this attempt still holds the job, before it writes what is not in the database."""
        with self._recording() as session:
            self._fenced(session)

    def saved(self) -> None:
        """Notes that the job's state was saved: the next attempt goes on from here, so a pause no longer gives the time
        before back."""
        if self._ran_before is not None:
            self._ran_at_save = self._ran_before + time.monotonic() - self._began

    def name_key(self, key_id: str) -> Recorded:
        """Records at the first claim which server secret keys the first segment. Returns as `recorded`."""
        with self.db.write(urgent=True) as session:
            job = self._fenced(session)
            job.segments = tuple(each.model_copy(update={"key_id": each.key_id or key_id}) for each in job.segments)
            return _recorded(session, job)

    def resalt(self, matched_step: int, key_id: str) -> Resalted:
        """Starts a fresh salt after the last matching step, as a replay was not identical.

        Steps under the new salt are charged again, out of the same hold: at most `allowed_steps` of them.
        """
        with self._recording() as session:
            job = self._fenced(session)
            segment = SaltedSteps(from_step=matched_step + 1, salt=secrets.token_hex(32), key_id=key_id)
            job.segments = (*(each for each in job.segments if each.from_step <= matched_step), segment)
            self._tell(session, "mismatch", lambda session, job: _mismatch(session, job, matched_step))
            return Resalted(segment, max(0, covered_steps(session, job) - job.steps_started))

    def record_metric(self, number: Number, parts: Sequence[Part] = ()) -> None:
        """Records a released number and the `parts` of the same release: in the mark, and then for callers.

        A replay gives the same number; a second value for a step is dropped, never released. An attempt that lost the
        job while it wrote the mark tells nothing: the number is charged, and the next attempt releases it.

        Raises:
            PrivacyError: there are more releases than the charge covers, or the mechanism does not declare this one.
            TransientError: the mark cannot be written.
        """
        prefix = f"metric {number.name} "
        numbers = [*(each.of(number) for each in parts), number]
        with self._lock:
            with self.db.write(urgent=True) as session:
                job = self._fenced(session)
                waiting = [action for action, _write in self._news if action.startswith(prefix)]
                is_recorded = session.get(Metric, (job.id, number.name, number.step)) is not None
                if is_recorded or f"{prefix}{number.step}" in waiting:
                    return
                if job.mechanism is not None:
                    of_name = select(func.count()).where(Metric.job_id == job.id, Metric.name == number.name)
                    count = (session.scalar(of_name) or 0) + len(waiting)
                    mechanism = MechanismConfig.model_validate(job.mechanism)
                    _check_declared(mechanism, number, {each.name for each in parts}, count)
            if self._mark is not None:
                self._note(self._mark.with_released(numbers))
            with self._recording() as session:
                job = self._fenced(session)
                self._tell(session, f"{prefix}{number.step}", lambda session, job: release(session, job, numbers))

    def succeed(
        self,
        artifacts: Sequence[ArtifactFile],
        steps_effective: int,
        warnings: list[str],
        ranks: Sequence[Rank] = (),
        audit: Finding | None = None,
    ) -> None:
        """Ends the job as succeeded, with its artifacts, the report of its ranks on public data, and what its canaries
        show."""
        if self._mark is not None:
            self._note(self._mark)  # with the last digest
        with self._ending() as (session, job):
            session.add_all(Artifact(job_id=job.id, **dict(each)) for each in artifacts)
            job.step = steps_effective
            job.warnings = [*learning.still_true(session, job), *warnings, *learning.warnings(session, job)]
            if ranks:
                append_event(session, job.id, "ranks", Ranks(ranks=tuple(ranks)))
            if audit is not None:
                append_event(session, job.id, "audited", audit)
                if audit.exceeded:
                    job.warnings = [*job.warnings, EXCEEDED]
                    measures.count_within(session, measures.EXCEEDED_AUDITS)
            study_states.end(session, job, "succeeded")
            end_attempt(session, job, job.status)  # failed if more was recorded than the hold covers
        if audit is not None and audit.exceeded:
            holder = (self.held.attempt, self.held.job_id, self.held.worker)
            logger.error("attempt %d of %s by %s: its canaries contradict the claim of its job", *holder)

    def cancelled(self) -> None:
        """Ends the job as cancelled."""
        load_numerics()
        with self._ending() as (session, job):
            end_attempt(session, job, "cancelled")
            study_states.end(session, job, "cancelled")

    def stopped(self) -> None:
        """Ends the attempt because a person asked: the job is cancelled or paused, or queued if it was resumed since.

        A cancel that follows a pause wins: it is decided here, under the lock on the job's row. Of a paused
        attempt's time only what the next one does not repeat counts against the job's limit.
        """
        load_numerics()
        with self._ending() as (session, job):
            self._stopped(session, job)

    def fail(self, code: str, message: str, cause: Cause = Cause.ERROR) -> None:
        """Ends the job as failed. Once a step was started, nothing of the hold is released; at a time limit also
        before."""
        with self._ending() as (session, job):
            end_attempt(session, job, "failed")
            study_states.end(session, job, "failed", failure=Failure(code=code, message=message), cause=cause)

    def outcome(self) -> str:
        """Returns this attempt's status, for the log; "unknown" while the database is away."""
        try:
            with self.db.read() as session:
                status = select(Attempt.status).where(
                    Attempt.job_id == self.held.job_id, Attempt.number == self.held.attempt
                )
                return session.scalar(status) or "unknown"
        except SQLAlchemyError:
            return "unknown"

    def gone(self, outcome: Gone) -> None:
        """Returns the job to the queue: this worker is stopping, or the attempt's process died without a report. If a
        person asked for the end too, an attempt that is lost has ended as that person asked, as in `stopped`."""
        load_numerics()
        with self._ending() as (session, job):
            if outcome != "crashed" and job.status in STOPPING:
                self._stopped(session, job)
            else:
                give_back(session, job, outcome, self.max_attempts)

    def _stopped(self, session: Session, job: Job) -> None:
        if job.status == "cancelling":
            end_attempt(session, job, "cancelled")
            study_states.end(session, job, "cancelled")
            return
        end_attempt(session, job, "paused")
        if self._ran_before is not None:
            job.ran_s = self._ran_before if self._ran_at_save is None else self._ran_at_save
        if job.status == "pausing":
            study_states.park(session, job)
        else:
            enqueue(session, job)

    def recorded(self) -> Recorded:
        """Returns the job, its recorded blocks by salt (to compare a replay with), and the metrics released so far."""
        with self.db.read() as session:
            return _recorded(session, session.get_one(Job, self.held.job_id))


def _recorded(session: Session, job: Job) -> Recorded:
    blocks: dict[str, list[StartedBlock]] = {segment.salt: [] for segment in job.segments}
    for block in session.scalars(select(Block).where(Block.job_id == job.id).order_by(Block.id)):
        if block.salt in blocks:
            blocks[block.salt].append(StartedBlock(block.first_step, block.last_step, block.digest))
    metrics = session.scalars(select(Metric).where(Metric.job_id == job.id).order_by(Metric.step))
    return job, blocks, [Number.model_validate(each, from_attributes=True) for each in metrics]


def _progress(session: Session, job: Job, step: int) -> None:
    job.step = step
    append_event(session, job.id, "progress", Progress(step=step, steps=job.steps))


def _mismatch(session: Session, job: Job, matched_step: int) -> None:
    detail = f"a replay differed after step {matched_step}: fresh noise from there, charged again"
    job.warnings = [*job.warnings, detail]
    append_event(session, job.id, "replay_mismatch", Mismatch(matched_step=matched_step))


def _check_declared(mechanism: MechanismConfig, number: Number, parts: set[str], count: int) -> None:
    """Raises PrivacyError unless the charge covers one more release of this number."""
    name, released_by = number.name, number.released_by
    declared = next((each for each in mechanism.scores if each.metric == name), None)
    if released_by in ("noisy_count", "noisy_sum"):
        if declared is None or count >= declared.times or not parts <= declared.parts:
            raise PrivacyError("more numbers would be released than the charge covers")
    elif parts:
        raise PrivacyError("`parts` must come with their noisy sum")
    elif released_by == "post_processing" and not _is_derived(mechanism, name):
        raise PrivacyError("this number is not derived from a charged release")


def _is_derived(mechanism: MechanismConfig, name: str) -> bool:
    """True for a number that a charged release decides: an adaptive norm, or the rate of the best of several runs."""
    if name == "learning_rate":
        return mechanism.selection is not None
    return name == "clipping_norm" and mechanism.training.adaptive is not None
