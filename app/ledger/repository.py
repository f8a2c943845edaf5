"""The ledger's read-only queries. Only accounts.py moves accounts."""

from __future__ import annotations

import json
from typing import NamedTuple

from pydantic import ConfigDict
from sqlalchemy import BigInteger, Text, and_, case, cast, func, null, or_, select
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
    """What a job, a trial or a study posted, and how many jobs posted the same.

    Attributes:
        mechanism: None for a study: its trials have theirs.
        spent, held: by account, of one of them. A trial's entry covers its share, and a study's own entry what its
            trials left.
        study: the study itself, or the trial's study.
        planned: for a study the event tree of its whole plan, by account.
    """

    mechanism: MechanismConfig | None
    spent: Units
    held: Units
    study: str | None = None
    planned: AccountEvents | None = None
    times: int = 1


# A job's documents as texts, which both databases group by; a reader decodes those that differ.
MECHANISM = cast(Job.mechanism, Text)
PLANNED = case((Job.mechanism.is_(None), cast(Job.quote["mechanism"], Text)), else_=null())


def posted(session: Session, dataset_id: str) -> list[Posted]:
    """What was posted, jobs alike together, in the order of the first settlement of each kind; including those of
    ledgers that were joined to this one."""
    post, hold = aliased(LedgerEntry), aliased(LedgerEntry)
    # A trial has no hold of its own, but a share of the study's.
    shares = (cast(Job.quote["charge"][account].as_string(), BigInteger) for account in ("train", "holdout"))
    held_parts = [func.coalesce(*pair) for pair in zip((hold.train, hold.holdout), shares, strict=True)]
    study = case((Job.mechanism.is_(None), Job.id), else_=Job.parent_id)
    job = (
        select(
            study.label("study"),
            MECHANISM.label("mechanism"),
            PLANNED.label("planned"),
            post.train,
            post.holdout,
            held_parts[0].label("held_train"),
            held_parts[1].label("held_holdout"),
            (post.dataset_id != dataset_id).label("is_joined"),
            post.dataset_id,
            post.seq,
        )
        .join(post, post.job_id == Job.id)
        .outerjoin(hold, and_(hold.job_id == Job.id, hold.kind == "hold", hold.dataset_id == post.dataset_id))
        .where(post.dataset_id.in_(_with_joined(session, dataset_id)), post.kind == "post")
        .subquery()
    )
    columns = list(job.c)[:-1]
    query = (
        select(*columns, func.count())
        .group_by(*columns)
        .order_by(job.c.is_joined, job.c.dataset_id, func.min(job.c.seq))
    )
    return [
        Posted(
            _mechanism(mechanism),
            Units(train=spent_t, holdout=spent_h),
            Units(train=held_t, holdout=held_h),
            of_study,
            _planned(planned),
            count,
        )
        for of_study, mechanism, planned, spent_t, spent_h, held_t, held_h, _, _, count in session.execute(query)
    ]


class Charged(NamedTuple):
    """Jobs alike, or whole studies, that posted something or hold something.

    Attributes:
        mechanism: None for a study.
        planned: for a study the event tree of its whole plan, by account.
        spent: what they and their trials have posted together, by account: each of them something, or none of them.
    """

    mechanism: MechanismConfig | None
    planned: AccountEvents | None
    spent: Units
    jobs: int = 1


def charged(session: Session, dataset_id: str) -> list[Charged]:
    """The jobs that posted something, or that still hold something, jobs alike together, in the order of the first
    submission of each kind; those of joined ledgers too. A study and its trials are one job."""
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
    train, holdout = (func.coalesce(each, 0) for each in (posts.c.train, posts.c.holdout))
    job = (
        select(
            MECHANISM.label("mechanism"),
            PLANNED.label("planned"),
            (train > 0).label("on_train"),
            (holdout > 0).label("on_holdout"),
            train.label("train"),
            holdout.label("holdout"),
            Job.created_at,
            Job.id,
        )
        .outerjoin(posts, posts.c.job == Job.id)
        .where(or_(posts.c.job.is_not(None), is_open))
        .subquery()
    )
    columns = list(job.c)[:4]
    query = (
        select(job.c.mechanism, job.c.planned, func.sum(job.c.train), func.sum(job.c.holdout), func.count())
        .group_by(*columns)
        .order_by(func.min(job.c.created_at), func.min(job.c.id))
    )
    return [
        Charged(_mechanism(mechanism), _planned(planned), Units(train=int(spent_t), holdout=int(spent_h)), count)
        for mechanism, planned, spent_t, spent_h, count in session.execute(query)
    ]


def _mechanism(stored: str | None) -> MechanismConfig | None:
    return None if stored is None else MechanismConfig.model_validate_json(stored)


def _planned(stored: str | None) -> AccountEvents | None:
    return None if stored is None else AccountEvents.read(json.loads(stored))


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
    ids, last = [dataset_id], [dataset_id]
    while last:
        last = list(session.scalars(select(Account.dataset_id).where(Account.joined_into.in_(last))))
        ids += last
    return ids
