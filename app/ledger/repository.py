"""The ledger's read-only queries. Only accounts.py moves accounts."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, and_, cast, func, select
from sqlalchemy.orm import Session, aliased

from app.db.models import Account, Dataset, Job, LedgerEntry
from app.errors import NotFound


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

    mechanism: dict[str, Any] | None
    spent: dict[str, int]
    held: dict[str, int]
    study: str | None = None
    planned: dict[str, Any] | None = None


def posted(session: Session, dataset_id: str) -> list[Posted]:
    """Every posted job in the order of settlement, including those of ledgers that were joined to this one."""
    post, hold = aliased(LedgerEntry), aliased(LedgerEntry)
    # A trial has no hold of its own, but a share of the study's.
    shares = (cast(Job.quote["charge"][account].as_string(), BigInteger) for account in ("train", "holdout"))
    held = (func.coalesce(*pair) for pair in zip((hold.train, hold.holdout), shares, strict=True))
    query = (
        select(Job.id, Job.parent_id, Job.mechanism, Job.quote["mechanism"], post.train, post.holdout, *held)
        .join(post, post.job_id == Job.id)
        .outerjoin(hold, and_(hold.job_id == Job.id, hold.kind == "hold"))
        .where(post.dataset_id.in_(_with_joined(session, dataset_id)), post.kind == "post")
        .order_by(post.dataset_id != dataset_id, post.dataset_id, post.seq)
    )
    return [
        Posted(
            mechanism,
            {"train": spent_t, "holdout": spent_h},
            {"train": held_t, "holdout": held_h},
            job_id if mechanism is None else parent_id,
            planned if mechanism is None else None,
        )
        for job_id, parent_id, mechanism, planned, spent_t, spent_h, held_t, held_h in session.execute(query)
    ]


def _with_joined(session: Session, dataset_id: str) -> list[str]:
    """A data set and those whose ledgers were joined to its own, directly or through others."""
    found, last = [dataset_id], [dataset_id]
    while last:
        last = list(session.scalars(select(Account.dataset_id).where(Account.joined_into.in_(last))))
        found += last
    return found
