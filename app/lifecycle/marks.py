"""What left a job's attempts, recorded outside the database: started steps, and released numbers.

A backup of the database forgets what a job started and released since. The ledger's head does not tell, because the
job's hold is in both. So each private job has a mark beside the heads (app.ledger.transparency.outside_records), never
restored with the database:

    started steps, salts     on disk before an attempt may run them
    digested steps           on disk before a result of them leaves
    released numbers         on disk before callers can read them

Guarantee: all that left a job is in its mark or in its row. `adopt` raises the row to the mark before an attempt runs
and before the job is settled, so that a charge counts the larger of the two. What the mark has and the row lacks was
lost with the database: its digests too. So the job goes on under fresh keys, after the last step with a digest here.

A mark is a file that only grows, by a line for each start of steps and each release; together they are the mark. What
a job with many scores writes does not grow with them, and two writers lose nothing of each other. A crash may cut off
the last line: nothing left by it, and it does not count. Anything else that is no line of this job is damage.

Only the newest attempt writes: each begins with a line of its own, and a line is refused after that of a later attempt.
So what an attempt that lost its job would write late is neither counted nor released. A mark that was removed, as its
job has ended, has no line that another could follow: it is not made anew.

A mark shows nothing that callers do not see: counts of steps, released numbers, and SHA-256 of random salts.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Block, Job, Metric
from app.ledger.behind import refusal
from app.ledger.transparency.heads import Heads
from app.ledger.transparency.outside_records import Record, Records, records_of
from app.lifecycle.states import FINISHED, append_event, get_job
from app.settings import Settings
from core.contracts.base import Document
from core.contracts.stored_documents import Number, SaltedSteps
from core.errors import StaleAttempt, TransientError, Unavailable

ENDING = ".mark"
NONE = -1  # no step has a digest
NAMED = "sha256:"
REWOUND = "a backup was restored while the job ran: what left it before is charged, and it goes on with fresh noise"


class Mark(Document):
    """What left one job.

    Attributes:
        attempt: writes the mark: its number, or a larger one where the database was set back and counts anew.
        steps_started: over all attempts, as the job's row counts them.
        salts: SHA-256 of each salt under which steps were started, with the last step that has a digest; NONE: none.
        released: released numbers, with all numbers of the same release.
    """

    version: Literal[1] = 1
    job: str
    dataset: str
    attempt: Annotated[int, Field(ge=0)] = 0
    steps_started: Annotated[int, Field(ge=0)] = 0
    salts: Mapping[str, int] = Field(default_factory=dict)
    released: tuple[Number, ...] = ()

    def started(self, steps: int, salt: str) -> Mark:
        """With so many started steps, the last of them under this salt."""
        name = name_of(salt)
        salts = self.salts if name in self.salts else {**self.salts, name: NONE}
        return self.model_copy(update={"steps_started": steps, "salts": salts})

    def digested(self, step: int, salt: str) -> Mark:
        """With a digest of this step, if steps were started under its salt."""
        name = name_of(salt)
        last = self.salts.get(name)
        return self if last is None else self.model_copy(update={"salts": {**self.salts, name: max(last, step)}})

    def with_released(self, numbers: Iterable[Number]) -> Mark:
        """With the numbers of one more release. Histograms stay out: a job keeps its last one alone."""
        plain = (each.model_copy(update={"histogram": None}) for each in numbers)
        return self.model_copy(update={"released": (*self.released, *plain)})

    def since(self, earlier: Mark | None) -> Mark:
        """The part that an earlier state of this mark lacks."""
        if earlier is None:
            return self
        salts = {name: last for name, last in self.salts.items() if earlier.salts.get(name) != last}
        return self.model_copy(update={"salts": salts, "released": self.released[len(earlier.released) :]})

    def joined(self, *marks: Mark) -> Mark:
        """The larger of several marks, in each part."""
        salts: dict[str, int] = {}
        released: dict[tuple[str, int], Number] = {}
        for mark in (self, *marks):
            for name, last in mark.salts.items():
                salts[name] = max(salts.get(name, NONE), last)
            for number in mark.released:
                released.setdefault((number.name, number.step), number)  # what is there stays
        attempt = max(mark.attempt for mark in (self, *marks))
        steps = max(mark.steps_started for mark in (self, *marks))
        return self.model_copy(
            update={"attempt": attempt, "steps_started": steps, "salts": salts, "released": tuple(released.values())}
        )


class Marks:
    """The marks of a deployment. Safe for any number of threads, processes and hosts that share the records."""

    def __init__(self, records: Records) -> None:
        self._records = records

    @classmethod
    def of(cls, settings: Settings) -> Marks:
        """The marks in these settings: where the heads lie."""
        return cls(records_of(settings))

    def examine(self, job_ids: Iterable[str]) -> tuple[dict[str, Mark], dict[str, str]]:
        """The marks of these jobs, and what is wrong with those that cannot be read; jobs without one are left out.

        Raises:
            Unavailable: the bucket does not answer.
        """
        ids = list(job_ids)
        marks, problems = dict[str, Mark](), dict[str, str]()
        for job_id, record in zip(ids, self._records.read_all([f"{each}{ENDING}" for each in ids]), strict=True):
            try:
                mark = _parsed(job_id, record)
            except TransientError as error:
                problems[job_id] = error.message
            else:
                marks |= {} if mark is None else {job_id: mark}
        return marks, problems

    def read(self, job_ids: Iterable[str]) -> dict[str, Mark]:
        """The marks of these jobs; those without one are left out.

        Raises:
            TransientError: one is damaged or cannot be read: what left that job is unknown.
            Unavailable: the bucket does not answer.
        """
        marks, problems = self.examine(job_ids)
        for problem in problems.values():
            raise TransientError(problem)
        return marks

    def append(self, part: Mark, after: int | None = None) -> None:
        """Adds a part to a job's mark; on disk before this returns.

        Args:
            after: the attempt that wrote it last, as this one, which begins, has read it; 0: the mark is new.

        Raises:
            StaleAttempt: a later attempt writes the mark, or another one has begun since it was read; or the mark was
                removed, as its job has ended.
            TransientError: it cannot be written, or the mark's end is damaged.
        """

        def follows(end: bytes) -> None:
            lines = _lines(part.job, end)
            last = lines[-1].attempt if lines else 0
            if after is None and not lines:
                raise StaleAttempt(f"the mark of {part.job} was removed: the job has ended")
            if last > part.attempt if after is None else last != after:
                raise StaleAttempt(f"attempt {last} writes the mark of {part.job}")

        try:
            self._records.append(f"{part.job}{ENDING}", part.model_dump_json(), follows)
        except (OSError, Unavailable) as error:
            raise TransientError(f"the mark of {part.job} cannot be written: {type(error).__name__}") from None

    def jobs(self) -> list[str]:
        """The jobs that have a mark. Raises Unavailable."""
        return [name.removesuffix(ENDING) for name in self._records.names(ENDING)]

    def remove(self, job_id: str) -> None:
        """Removes a job's mark."""
        self._records.remove(f"{job_id}{ENDING}")

    def set_aside(self, job_id: str) -> None:
        """Removes a damaged mark; what can be read of it stays beside, under another name."""
        (record,) = self._records.read_all([f"{job_id}{ENDING}"])
        if isinstance(record, Record):
            aside = f"{job_id}{ENDING}.damaged-{hashlib.sha256(record.content).hexdigest()[:16]}"
            self._records.put(aside, record.content.decode(errors="replace"), None)
        self.remove(job_id)


def name_of(salt: str) -> str:
    """A salt's name in marks: keys are derived from the salt, so it is written nowhere else. A name names itself."""
    return salt if salt.startswith(NAMED) else NAMED + hashlib.sha256(salt.encode()).hexdigest()


def mark_of(session: Session, job: Job, attempt: int = 0) -> Mark:
    """The mark that a job's rows make, for an attempt to write."""
    salts: dict[str, int] = {}
    blocks = select(Block.salt, Block.last_step, Block.digest).where(Block.job_id == job.id, Block.last_step > 0)
    for salt, last_step, digest in session.execute(blocks):
        name = name_of(salt)
        salts[name] = max(salts.get(name, NONE), NONE if digest is None else last_step)
    return Mark(job=job.id, dataset=job.dataset_id, attempt=attempt, steps_started=job.steps_started, salts=salts)


def adopt(session: Session, job: Job, mark: Mark) -> bool:
    """Raises an unfinished job's rows to its mark, in the caller's transaction. Returns True if the database was set
    back: then the job goes on under fresh keys.

    Args:
        job: its row, locked by this transaction.
    """
    if job.status in FINISHED or job.mechanism is None:
        return False
    if not (mark.steps_started or mark.salts or mark.released):  # as a job's first attempt finds it
        return False
    for released in mark.released:
        if session.get(Metric, (job.id, released.name, released.step)) is None:
            release(session, job, (released,))
    database_mark = mark_of(session, job)
    lost = [each for each in mark.salts if each not in database_mark.salts]
    lost_digests = _last_digests(job, mark.joined(database_mark)) != _last_digests(job, database_mark)
    if mark.steps_started <= job.steps_started and not lost and not lost_digests:
        return False
    # Started, under a salt that the database has forgotten: under its name, so that it is counted.
    session.add_all(
        Block(job_id=job.id, attempt=job.attempt, salt=each, first_step=1, last_step=1, digest=None) for each in lost
    )
    job.steps_started = max(job.steps_started, mark.steps_started)
    last = _last_match(session, job)
    fresh = SaltedSteps(from_step=last + 1, salt=secrets.token_hex(32), key_id=None)
    job.segments = (*(each for each in job.segments if each.from_step <= last), fresh)
    job.warnings = [*(each for each in job.warnings if each != REWOUND), REWOUND]
    session.flush()
    return True


def adopt_all(session: Session, marks: Mapping[str, Mark], states: Collection[str]) -> None:
    """As `adopt`, for several jobs, as far as they are in one of these states; locks their rows.

    A live attempt writes what it has recorded in the mark itself, at the next whole second.
    """
    for job_id, mark in sorted(marks.items()):
        job = get_job(session, job_id, lock=True)
        if job.status in states:
            adopt(session, job, mark)


def around(db: Database, marks: Marks, job_id: str, *, itself: bool = True) -> dict[str, Mark]:
    """The marks of a job and of what may end with it: of a trial, the unfinished trials of its study.

    Args:
        itself: also the job's own.

    Raises:
        TransientError, Unavailable: as `Marks.read`.
    """
    with db.read() as session:
        study = session.scalar(select(Job.parent_id).where(Job.id == job_id))
        ids = set() if study is None else set(unfinished(session, study))
    return marks.read(sorted(ids | {job_id} if itself else ids - {job_id}))


def outside(db: Database, heads: Heads, job_id: str) -> dict[str, Mark]:
    """The marks of a job and of a study's trials, as far as they have not ended, before they are cancelled.

    Raises:
        Conflict: `ledger-behind`: one is damaged, so that it is unknown what left the job.
        Unavailable: the bucket does not answer.
    """
    with db.read() as session:
        jobs = unfinished(session, job_id)
    try:
        return Marks(heads.records).read(jobs)
    except TransientError as error:
        raise refusal(error.message) from None


def release(session: Session, job: Job, numbers: Iterable[Number]) -> None:
    """Writes all numbers of one release, in the caller's transaction. A job keeps its last histogram alone."""
    for number in numbers:
        if number.histogram is not None:
            session.execute(update(Metric).where(Metric.job_id == job.id).values(histogram=None))
        session.add(Metric(job_id=job.id, **dict(number)))
        append_event(session, job.id, "metric", number.model_copy(update={"histogram": None}))


def unfinished(session: Session, job_id: str) -> list[str]:
    """A job's id, and those of a study's trials, as far as they have not ended."""
    same_job = (Job.id == job_id) | (Job.parent_id == job_id)
    return list(session.scalars(select(Job.id).where(same_job, Job.status.not_in(FINISHED)).order_by(Job.id)))


def _last_digests(job: Job, mark: Mark) -> dict[str, int]:
    """The last step with a digest under each of the job's salts, as far as that salt still keys steps."""
    ends = [each.from_step for each in job.segments[1:]] + [job.steps + 1]
    return {
        name: min(mark.salts.get(name, NONE), end - 1)
        for name, end in zip((name_of(each.salt) for each in job.segments), ends, strict=True)
    }


def _last_match(session: Session, job: Job) -> int:
    """The last step, or 0 for the first state, with a digest here under the keys that the job has for it."""
    ends = [each.from_step for each in job.segments[1:]] + [job.steps + 1]
    last = NONE
    for segment, end in zip(job.segments, ends, strict=True):
        mine = (Block.job_id == job.id, Block.salt == segment.salt, Block.digest.is_not(None), Block.last_step < end)
        last = max(last, session.scalar(select(func.coalesce(func.max(Block.last_step), NONE)).where(*mine)) or 0)
    return last


def _parsed(job_id: str, record: Record | OSError | None) -> Mark | None:
    """A job's mark; None if no line of it was ever whole."""
    if isinstance(record, OSError):
        raise TransientError(f"the mark of {job_id} cannot be read: {type(record).__name__}")
    lines = [] if record is None else _lines(job_id, record.content)
    return lines[0].joined(*lines[1:]) if lines else None


def _lines(job_id: str, content: bytes) -> list[Mark]:
    """The whole lines of a job's mark, or of its end.

    Raises:
        TransientError: one is damaged, or what comes after them is not the beginning of a line.
    """
    *complete, torn = content.split(b"\n")
    beginning = f'{{"version":1,"job":"{job_id}"'.encode()
    torn = torn.rstrip(b"\0")  # a file system may have extended the file before it wrote the line
    if not (torn.startswith(beginning) or beginning.startswith(torn)):
        raise TransientError(f"the mark of {job_id} is damaged after line {len(complete)}")
    try:
        lines = [Mark.model_validate_json(each) for each in complete]
    except ValidationError as error:
        raise TransientError(f"the mark of {job_id} cannot be read: {type(error).__name__}") from None
    if any(each.job != job_id for each in lines):
        raise TransientError(f"the mark of {job_id} belongs to another job")
    return lines
