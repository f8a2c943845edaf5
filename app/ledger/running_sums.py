"""The running sums of what each key spent (app.db.spending_table), recomputed from the posts of their ledgers.

A trigger moves the sums with each post. A verification recomputes and compares them, and an operator's command writes
them anew: `scrimp restore --sums`. What a post draws on is its hold: its own, or that of its trial's study.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    CompoundSelect,
    FromClause,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased
from sqlalchemy.sql.functions import FunctionElement

from app.audit import record as audit
from app.db.database import Database
from app.db.models import Account, Dataset, LedgerCheck, LedgerEntry, SpentByKey, table_of
from app.ledger.block_accounts import family_of, lock_family
from app.ledger.repository import dataset_with_account
from core.ids import now

SPENT = table_of(SpentByKey)
MOVED = ("charges", "family_charges", "train", "holdout")
PROBLEM = "the running sums of what keys spent do not follow from the entries: an operator rebuilds them"


class DayOf(FunctionElement[str]):
    """The day of a time in UTC, in SQL, as the trigger writes it."""

    type = String(10)
    inherit_cache = True


@compiles(DayOf, "postgresql")
def _day_of_server(element: DayOf, compiler: Any, **options: Any) -> str:
    return f"to_char({compiler.process(element.clauses, **options)} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


@compiles(DayOf, "sqlite")
def _day_of_file(element: DayOf, compiler: Any, **options: Any) -> str:
    return f"substr({compiler.process(element.clauses, **options)}, 1, 10)"


def _members() -> BindParameter[Sequence[str]]:
    """The ledgers that a statement is about: a statement is built once, and run for each data set."""
    return bindparam("members", expanding=True)


def recomputed() -> CompoundSelect[Any]:
    """Selects the rows that the posts of `members` make: those of a data set and all its blocks, so that a charge
    on several counts once among them."""
    post, hold = LedgerEntry, aliased(LedgerEntry)
    holder = func.coalesce(LedgerEntry.memo["hold"].as_string(), post.job_id)

    def is_first(columns: Sequence[InstrumentedAttribute[str]], order: Sequence[Any]) -> ColumnElement[int]:
        # A post without a holder belongs to no other one.
        place = func.row_number().over(partition_by=(*columns, holder), order_by=order)
        return case((or_(holder.is_(None), place == 1), 1), else_=0)

    posts = (
        select(
            post.dataset_id,
            func.coalesce(hold.actor, post.actor).label("key_id"),
            DayOf(post.created_at).label("day"),
            is_first([post.dataset_id], [post.seq]).label("charges"),
            is_first([], [post.seq, post.created_at, post.dataset_id]).label("family_charges"),
            post.train,
            post.holdout,
            post.created_at,
        )
        .outerjoin(hold, and_(hold.dataset_id == post.dataset_id, hold.once == "hold:" + holder))
        .where(post.kind == "post", post.dataset_id.in_(_members()))
        .cte("posts")
    )
    last = func.max(posts.c.created_at, type_=posts.c.created_at.type).label("last_at")

    def of(day: ColumnElement[str], *by: ColumnElement[Any]) -> Select[Any]:
        keys = (posts.c.dataset_id, posts.c.key_id)
        sums = [cast(func.sum(posts.c[name]), SPENT.c[name].type).label(name) for name in MOVED]
        return select(*keys, day.label("day"), *sums, last).group_by(*keys, *by)

    return union_all(of(literal("", String(10))), of(posts.c.day, posts.c.day))


def problem_of(session: Session, dataset_id: str) -> str | None:
    """How the running sums of a ledger differ from its posts; None if they do not.

    Each comparison is one statement, which sees one moment. Which block of a data set counts a charge for all of them,
    and so on which day, may depend on the order of commits, for no order of entries holds across ledgers: with the
    first block's these counts are compared as sums over the blocks, and over the days of several.
    """
    dataset = session.get_one(Dataset, dataset_id)
    members = [dataset_id] if dataset.parent_id is not None else family_of(session, dataset_id)
    problem = _difference(("dataset_id", "key_id", "day"), ("charges", "train", "holdout"))
    family = _difference(("key_id", "day" if len(members) == 1 else "is_total"), ("family_charges",))
    comparisons = (problem,) if dataset.parent_id is not None else (problem, family)
    parameters = {"members": members}
    return PROBLEM if any(session.execute(each, parameters).first() is not None for each in comparisons) else None


def total_of(session: Session, dataset_id: str) -> str | None:
    """How the running sums of all keys together, and of all days, differ from what the account has spent; None if they
    do not. One statement, which sees one moment."""
    wrong = [
        getattr(Account, f"{name}_spent")
        != select(func.coalesce(func.sum(SPENT.c[name]), 0))
        .where(SPENT.c.dataset_id == Account.dataset_id, of_days)
        .scalar_subquery()
        for name in ("train", "holdout")
        for of_days in (SPENT.c.day == "", SPENT.c.day != "")
    ]
    drift = select(Account.dataset_id).where(Account.dataset_id == dataset_id, or_(*wrong))
    return None if session.scalar(drift) is None else PROBLEM


@cache
def _difference(by: tuple[str, ...], sums: tuple[str, ...]) -> Select[Any]:
    """Selects where the stored sums of `members` less the recomputed ones are not zero."""
    fresh_sums = recomputed().subquery()

    def keys(source: FromClause) -> list[ColumnElement[Any]]:
        columns = {**source.c, "is_total": case((source.c.day == "", 1), else_=0).label("is_total")}
        return [columns[name] for name in by]

    stored = select(*keys(SPENT), *(SPENT.c[name] for name in sums)).where(SPENT.c.dataset_id.in_(_members()))
    less = select(*keys(fresh_sums), *((-fresh_sums.c[name]).label(name) for name in sums))
    both = union_all(stored, less).subquery()
    differs = or_(*(func.sum(both.c[name]) != 0 for name in sums))
    return select(literal(1, Integer)).select_from(both).group_by(*(both.c[name] for name in by)).having(differs)


def rebuild(db: Database, dataset: str) -> int:
    """Writes the running sums of a data set and its blocks anew from their posts, which cannot move meanwhile, and asks
    for a new verification. May run beside the service.

    Args:
        dataset: an id or a name; of a block the whole data set's sums are written.

    Returns:
        The number of rows.

    Raises:
        NotFound: no such data set, or a public one.
    """
    with db.write() as session:
        dataset_id = session.scalar(select(Dataset.id).where(or_(Dataset.id == dataset, Dataset.name == dataset)))
        row, _account = dataset_with_account(session, dataset_id or dataset)
        members = lock_family(session, row.parent_id or row.id)
        write(session, members)
        for member_id in members:
            audit.record(session, "ledger.sums_rebuilt", member_id)
            check = session.get(LedgerCheck, member_id) or LedgerCheck(dataset_id=member_id)
            check.requested_at = now()
            session.add(check)
        count = select(func.count()).select_from(SPENT).where(SPENT.c.dataset_id.in_(members))
        return session.scalar(count) or 0


def write(session: Session, members: Sequence[str]) -> None:
    """Replaces the rows of these ledgers by the recomputed ones."""
    session.execute(delete(SPENT).where(SPENT.c.dataset_id.in_(members)))
    columns = ("dataset_id", "key_id", "day", *MOVED, "last_at")
    session.execute(insert(SPENT).from_select(columns, recomputed()), {"members": members})
