"""The ledger's read-only queries. Only accounts.py moves accounts."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ConfigDict
from sqlalchemy import BigInteger, and_, cast, func, or_, select
from sqlalchemy.orm import Session, aliased

from app.db.models import Account, Charge, Dataset, Job, LedgerEntry
from core.contracts.base import Document, Epsilon, Unit
from core.errors import NotFound
from core.privacy.events import AccountEvents
from core.privacy.mechanism import MechanismConfig
from core.privacy.prices import Units
from core.privacy.quoted import Quoted


def dataset_with_account(session: Session, dataset_id: str) -> tuple[Dataset, Account]:
    """A private data set and its account.

    Raises:
        NotFound: no such data set, or a public one: it has no ledger.
    """
    dataset = session.get(Dataset, dataset_id)
    if dataset is None:
        raise NotFound("there is no such data set")
    account = session.get(Account, dataset.id)
    if account is None:
        raise NotFound("this data set is public: no privacy is claimed for it, so it has no ledger")
    return dataset, account


class _Protected(Document):
    model_config = ConfigDict(extra="ignore")

    unit: Unit


class _Declared(Document):
    model_config = ConfigDict(extra="ignore")

    privacy: _Protected


def unit_of(dataset: Dataset) -> Unit:
    """What a data set protects. Reads nothing else of its declaration: lists ask this of each data set."""
    return _Declared.model_validate(dataset.spec).privacy.unit


def page_of_entries(session: Session, dataset_id: str, *, after: int, job: str | None, limit: int) -> list[LedgerEntry]:
    """Oldest first; one more than requested, to know if there is a next page."""
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq > after)
    if job is not None:
        query = query.where(LedgerEntry.job_id == job)
    return list(session.scalars(query.order_by(LedgerEntry.seq).limit(limit + 1)))


class Posted(NamedTuple):
    """What a job, a trial or a study posted.

    Attributes:
        mechanism: None for a study: its trials have theirs.
        spent, held: by account. A trial's entry covers its share, and a study's own entry what its trials left.
        study: the study itself, or the trial's study.
        planned: for a study the event tree of its whole plan, by account.
    """

    mechanism: MechanismConfig | None
    spent: Units
    held: Units
    study: str | None = None
    planned: AccountEvents | None = None


def posted(session: Session, dataset_id: str) -> list[Posted]:
    """Every posted job in the order of settlement, including those of ledgers that were joined to this one."""
    post, hold = aliased(LedgerEntry), aliased(LedgerEntry)
    # A trial has no hold of its own, but a share of the study's.
    shares = (cast(Job.quote["charge"][account].as_string(), BigInteger) for account in ("train", "holdout"))
    held = (func.coalesce(*pair) for pair in zip((hold.train, hold.holdout), shares, strict=True))
    query = (
        select(Job.id, Job.parent_id, Job.mechanism, Job.quote["mechanism"], post.train, post.holdout, *held)
        .join(post, post.job_id == Job.id)
        .outerjoin(hold, and_(hold.job_id == Job.id, hold.kind == "hold", hold.dataset_id == post.dataset_id))
        .where(post.dataset_id.in_(_with_joined(session, dataset_id)), post.kind == "post")
        .order_by(post.dataset_id != dataset_id, post.dataset_id, post.seq)
    )
    return [
        Posted(
            _mechanism(mechanism),
            Units(train=spent_t, holdout=spent_h),
            Units(train=held_t, holdout=held_h),
            job_id if mechanism is None else parent_id,
            _planned(planned) if mechanism is None else None,
        )
        for job_id, parent_id, mechanism, planned, spent_t, spent_h, held_t, held_h in session.execute(query)
    ]


class Charged(NamedTuple):
    """A job, or a whole study, that posted something or holds something.

    Attributes:
        mechanism: None for a study.
        planned: for a study the event tree of its whole plan, by account.
        spent: what it and its trials have posted, by account.
    """

    mechanism: MechanismConfig | None
    planned: AccountEvents | None
    spent: Units


def charged(session: Session, dataset_id: str) -> list[Charged]:
    """Every job that posted something, or that still holds something, in the order of submission; those of joined
    ledgers too. A study and its trials are one job."""
    joined = _with_joined(session, dataset_id)
    top = func.coalesce(Job.parent_id, Job.id)
    sums = (func.sum(LedgerEntry.train).label("train"), func.sum(LedgerEntry.holdout).label("holdout"))
    posts = (
        select(top.label("job"), *sums)
        .join(Job, Job.id == LedgerEntry.job_id)
        .where(LedgerEntry.dataset_id.in_(joined), LedgerEntry.kind == "post")
        .group_by(top)
        .subquery()
    )
    holds = select(LedgerEntry.job_id).where(LedgerEntry.dataset_id.in_(joined), LedgerEntry.kind == "hold")
    is_open = and_(Job.id.in_(holds), Job.parent_id.is_(None), Job.finished_at.is_(None))
    query = (
        select(Job.mechanism, Job.quote["mechanism"], posts.c.train, posts.c.holdout)
        .outerjoin(posts, posts.c.job == Job.id)
        .where(or_(posts.c.job.is_not(None), is_open))
        .order_by(Job.created_at, Job.id)
    )
    return [
        Charged(
            _mechanism(mechanism),
            _planned(planned) if mechanism is None else None,
            Units(train=int(train or 0), holdout=int(holdout or 0)),
        )
        for mechanism, planned, train, holdout in session.execute(query)
    ]


def _mechanism(stored: object) -> MechanismConfig | None:
    return None if stored is None else MechanismConfig.model_validate(stored)


def _planned(stored: object) -> AccountEvents | None:
    return None if stored is None else AccountEvents.read(stored)


def is_charged_by_others(session: Session, dataset_id: str) -> bool:
    """True if another system's charge is held or posted, here or in a joined ledger: no job explains its amount."""
    joined = _with_joined(session, dataset_id)
    holds = select(LedgerEntry.job_id).where(LedgerEntry.dataset_id.in_(joined), LedgerEntry.kind == "hold")
    counted = select(Charge.id).where(Charge.id.in_(holds), Charge.status != "voided")
    return session.scalar(counted.limit(1)) is not None


def has_other_spending(session: Session, dataset_id: str) -> bool:
    """True if something is held or was spent that no job explains: another system's charge, or what a restored backup
    had forgotten, which may be one."""
    voided = select(Charge.id).where(Charge.status == "voided")
    unexplained = select(LedgerEntry.seq).where(
        LedgerEntry.dataset_id == dataset_id,
        LedgerEntry.kind.in_(("hold", "post")),
        LedgerEntry.job_id.not_in(select(Job.id)),
        LedgerEntry.job_id.not_in(voided),
    )
    return session.scalar(unexplained.limit(1)) is not None


def epsilon_of_only_job(session: Session, account: Account) -> Epsilon | None:
    """The planned ε of the one job, or study, that spent all that this account spent; None if several did."""
    mine = (LedgerEntry.dataset_id == account.dataset_id, LedgerEntry.kind == "post")
    top = select(func.coalesce(Job.parent_id, Job.id)).join(LedgerEntry, LedgerEntry.job_id == Job.id).where(*mine)
    first = session.scalar(top.order_by(LedgerEntry.seq).limit(1))
    if first is None:
        return None
    parts = select(Job.id).where(or_(Job.id == first, Job.parent_id == first))
    sums = select(func.sum(LedgerEntry.train), func.sum(LedgerEntry.holdout))
    spent = session.execute(sums.where(*mine, LedgerEntry.job_id.in_(parts))).one()
    # More was spent: by other jobs, by a joined ledger, or before a restored backup.
    if tuple(spent) != (account.train_spent, account.holdout_spent):
        return None
    return Quoted.of(session.get_one(Job, first).quote).epsilon


def _with_joined(session: Session, dataset_id: str) -> list[str]:
    """A data set and those whose ledgers were joined to its own, directly or through others."""
    found, last = [dataset_id], [dataset_id]
    while last:
        last = list(session.scalars(select(Account.dataset_id).where(Account.joined_into.in_(last))))
        found += last
    return found
