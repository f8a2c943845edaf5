"""Jobs that read several data sets at once: the blocks of a data set that grows. Each has an account of its own.

A unit lies in one block, so a job's cost is the same number on each block that it reads, and on no other (parallel
composition). What a job reads is what it holds on: the ledgers' entries say so, and no table beside them can differ.

Blocks are moved in the order of their ids, in one savepoint: two jobs on overlapping blocks cannot wait for each other
in a circle, and a refusal on the last block leaves the first untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, bindparam, or_, select
from sqlalchemy.orm import Session

from app.db.models import Account, Dataset, Job, LedgerEntry
from app.db.trip import Reply, Trip, round_trip
from app.ledger import accounts
from app.ledger.accounts import NOTHING, Hold, HoldTerms
from core.contracts.base import Document
from core.contracts.blocks import FIRST
from core.errors import BudgetError, PrivacyError

HELD = (
    select(LedgerEntry.dataset_id)
    .where(LedgerEntry.job_id == bindparam("job"), LedgerEntry.kind == "hold", LedgerEntry.once == bindparam("hold"))
    .order_by(LedgerEntry.dataset_id)
)


class Holds:
    """The same cost on each of several data sets, or on none: `accounts.Hold` for each, in the order of their ids.

    Raises:
        PrivacyError: as `accounts.Hold`; no data set is named, or one of them twice.
    """

    def __init__(self, trip: Trip, dataset_ids: Iterable[str], terms: HoldTerms) -> None:
        ids = sorted(dataset_ids)
        if not ids or len(set(ids)) != len(ids):
            raise PrivacyError("a job reads at least one block, and each of them once")
        self._holds = [Hold(trip, each, terms) for each in ids]

    def check(self, session: Session) -> None:
        """Checks all. An error must end the transaction, or be undone by a savepoint.

        Raises:
            BudgetError: as `accounts.hold_on`; its member `dataset` names the first that cannot pay.
            PrivacyError, Conflict, NotFound: as `accounts.hold_on`.
        """
        for hold in self._holds:
            try:
                hold.check(session)
            except BudgetError as refusal:
                refusal.members["dataset"] = hold.dataset_id
                raise

    def place(self, trip: Trip) -> None:
        """Moves all balances and writes the entries."""
        for hold in self._holds:
            hold.place(trip)

    @property
    def entries(self) -> list[LedgerEntry]:
        """The entries, once they are placed."""
        return [each.entry for each in self._holds]


def hold_all(
    session: Session,
    dataset_ids: Iterable[str],
    *,
    job_id: str,
    train: int,
    holdout: int,
    actor: str,
    memo: Document = NOTHING,
) -> list[LedgerEntry]:
    """Holds the same cost on each of several data sets, or on none. Raises as `Holds`."""
    terms = HoldTerms(job_id, train, holdout, actor, memo)
    with session.begin_nested():
        with round_trip(session.connection()) as trip:
            holds = Holds(trip, dataset_ids, terms)
        holds.check(session)
        with round_trip(session.connection()) as trip:
            holds.place(trip)
    return holds.entries


def post_all(
    session: Session, job_id: str, *, train: int, holdout: int, actor: str, memo: Document = NOTHING
) -> list[LedgerEntry]:
    """Posts the same amounts on each data set on which a job holds. Raises as `accounts.post`."""
    with session.begin_nested():
        return [
            accounts.post(session, dataset_id=each, job_id=job_id, train=train, holdout=holdout, actor=actor, memo=memo)
            for each in _held_by(session, job_id)
        ]


def void_all(session: Session, job_id: str, *, actor: str, memo: Document = NOTHING) -> list[LedgerEntry]:
    """Releases a job's holds on all data sets. Raises as `accounts.void`."""
    with session.begin_nested():
        return [
            accounts.void(session, dataset_id=each, job_id=job_id, actor=actor, memo=memo)
            for each in _held_by(session, job_id)
        ]


def draw_all(
    session: Session, job_id: str, *, study_id: str, train: int, holdout: int, actor: str
) -> list[LedgerEntry]:
    """Spends the same amounts from a study's hold on each data set. Raises as `accounts.draw`."""
    with session.begin_nested():
        return [
            accounts.draw(
                session,
                dataset_id=each,
                job_id=job_id,
                study_id=study_id,
                train=train,
                holdout=holdout,
                actor=actor,
            )
            for each in _held_by(session, study_id)
        ]


def left_of_holds(session: Session, job_id: str) -> tuple[int, int]:
    """What is left of a job's hold on each of its data sets.

    Raises:
        PrivacyError: there is no hold, or they differ: what moves one moves all.
    """
    left = {accounts.left_of_hold(session, each, job_id) for each in _held_by(session, job_id)}
    if len(left) != 1:
        raise PrivacyError("a job's holds on its blocks differ: their ledgers were changed from outside")
    return left.pop()


def held_on(session: Session, job_id: str) -> list[str]:
    """The data sets on which a job, a study or another system's charge holds or held, in the order of their ids.

    Empty on public data.
    """
    return list(session.scalars(HELD, {"job": job_id, "hold": f"hold:{job_id}"}))


def ask_held(trip: Trip, job_id: str) -> Reply:
    """Asks for the rows of `held_on`."""
    return trip.send(HELD, {"job": job_id, "hold": f"hold:{job_id}"})


def read_by(session: Session, job: Job) -> list[Dataset]:
    """The data sets whose records a job reads, in the order of their ids: those whose ledgers it, or its study, holds
    on.

    A job on public data reads its own data set.

    Raises:
        PrivacyError: private data would be read without a hold.
    """
    return read_under(session, job, held_on(session, job.parent_id or job.id))


def read_under(session: Session, job: Job, ledgers: Sequence[str]) -> list[Dataset]:
    """As `read_by`, of a job whose holds, or its study's, are on these ledgers."""
    paid = [session.get_one(Dataset, each) for each in ledgers or [job.dataset_id]]
    datasets = [each if each.pays_for is None else session.get_one(Dataset, each.pays_for) for each in paid]
    by_id = sorted(datasets, key=lambda dataset: dataset.id)
    if any(job.dataset_id not in (each.id, each.parent_id) for each in by_id):
        raise PrivacyError("a job may read the blocks of its own data set alone")
    if not ledgers and by_id[0].sensitivity == "private":
        raise PrivacyError("this job has no hold: it may read no private record")
    return by_id


def records_of(session: Session, ledger: str) -> Dataset:
    """The data set or block whose records a ledger is of."""
    row = session.get_one(Dataset, ledger)
    return row if row.pays_for is None else session.get_one(Dataset, row.pays_for)


def ledgers_of(session: Session, dataset_id: str) -> list[str]:
    """The ledgers of the records of one data set or block: its first, and the one that it moved to."""
    return [dataset_id, *session.scalars(select(Dataset.id).where(Dataset.pays_for == dataset_id))]


def paying(session: Session, dataset_id: str) -> Account:
    """The account that pays for what reads one data set or block now."""
    return accounts.account_of(session, ledgers_of(session, dataset_id)[-1])


def beside(dataset_id: str) -> ColumnElement[bool]:
    """The condition that a row's ledger belongs to a data set beside its own: a block's, or one that these moved to.
    Of a block alone it is the one that the block moved to."""
    return or_(Dataset.parent_id == dataset_id, Dataset.pays_for == dataset_id)


def family_of(session: Session, dataset_id: str) -> list[str]:
    """The ids of the ledgers of a data set and of the blocks that were appended to it, moved ones too, in their order;
    of a block named by its id, its own and the one that it moved to."""
    ids = select(Dataset.id).where(or_(Dataset.id == dataset_id, beside(dataset_id)))
    return list(session.scalars(ids.order_by(Dataset.id)))


def lock_family(session: Session, dataset_id: str) -> list[str]:
    """Like `family_of`, for a change of all blocks: no other such change and no append happens meanwhile, and all their
    accounts are locked, in the order in which holds lock them."""
    session.execute(select(Dataset.id).where(Dataset.id == dataset_id).with_for_update(key_share=True))
    members = family_of(session, dataset_id)
    for member_id in members:
        accounts.lock(session, member_id)
    return members


def label_of(block: Dataset) -> str:
    """The label by which jobs name a block."""
    return block.label or FIRST


def open_ones(session: Session, members: Iterable[str]) -> list[str]:
    """Those on which something may be admitted."""
    return [each for each in members if accounts.account_of(session, each).joined_into is None]


def lead(session: Session, dataset_id: str) -> Account:
    """The account whose cap and budgets are the data set's: its own while that is open, else an open block's, the
    smallest id. If none is open, the one with the smallest cap: a closed block's may have been lowered since."""
    members = family_of(session, dataset_id)
    candidates = [dataset_id, *(each for each in members if each != dataset_id)]
    accounts_of = [accounts.account_of(session, each) for each in candidates]
    lowest = min(accounts_of, key=lambda account: account.cap_epsilon)
    return next((each for each in accounts_of if each.joined_into is None), lowest)


def _held_by(session: Session, job_id: str) -> list[str]:
    dataset_ids = held_on(session, job_id)
    if not dataset_ids:
        raise PrivacyError("this job has no hold to settle")
    return dataset_ids
