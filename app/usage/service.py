"""What jobs took of the machines and of the budgets: by month, data set and team.

A job counts in the month in which it ended, like its post on the ledger. What still runs is not in it. All figures are
sums of numbers that the caller may see one by one: times of attempts, sizes of files, posts of ledgers. A caller who
does not own a data set reads the keys of others as one.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Select,
    SQLColumnExpression,
    String,
    case,
    cast,
    column,
    extract,
    func,
    literal,
    select,
    union_all,
    values,
)
from sqlalchemy.orm import Session

from app.db.models import Account, ApiKey, Artifact, Attempt, Dataset, Job, SpentByKey, SubAccountKey
from app.db.table_base import UtcDateTime
from app.grants.service import require, visible
from app.keys.service import Caller
from app.ledger.accounts import filter_for
from app.web.pagination import decode_cursor, encode_cursor
from core import leaves
from core.contracts.base import Deferred
from core.errors import InvalidRequest
from core.ids import now
from core.spreadsheets import plain

MOST_MONTHS = 36
USUAL_MONTHS = 12
FAMILY = func.coalesce(Dataset.parent_id, Dataset.id)
SUMS = ("jobs", "processor_s", "gpu_s", "bytes", "train", "holdout")


class UsageRow(Deferred):
    """What the jobs of a team, or of a key that has none, took on a data set in a month.

    `team` is the budget that the key shares now. Where `team` and `key_id` are null, all keys that the caller may not
    tell apart. `processor_s`: seconds of attempts, times their processes and the threads of each. `gpu_s`: the same,
    times GPUs. `bytes`: of the jobs' files that are kept. `epsilon` is what the filter reads of this row's posts alone,
    at `delta`, and `share` their part of the budget, both of the block and account that it used most: shares of one
    account add up, ε does not. They are null on public data.
    """

    month: Annotated[str, leaves.TIMES]
    dataset: Annotated[str, leaves.ASKED]
    dataset_name: Annotated[str, leaves.ASKED]
    team: Annotated[str | None, leaves.SHARES]
    key_id: Annotated[str | None, leaves.ASKED]
    key_name: Annotated[str | None, leaves.ASKED]
    jobs: Annotated[int, leaves.ASKED]
    processor_s: Annotated[int, leaves.TIMES]
    gpu_s: Annotated[int, leaves.TIMES]
    bytes: Annotated[int, leaves.FILES]
    epsilon: Annotated[float | None, leaves.SPENDING]
    delta: Annotated[float | None, leaves.SPENDING]
    share: Annotated[float | None, leaves.SPENDING]


class UsageView(Deferred):
    """A page of what jobs took that ended in these months, the newest month first.

    `next` is the cursor of the next page, null on the last.
    """

    since: Annotated[str, leaves.ASKED]
    until: Annotated[str, leaves.ASKED]
    items: Annotated[list[UsageRow], leaves.ELSEWHERE]
    next: Annotated[str | None, leaves.ELSEWHERE] = None

    @property
    def months(self) -> list[str]:
        """All of them, the oldest first, those without a row too."""
        return [name for name, _begin, _end in _months(self.since, self.until)]


@dataclass
class _Taken:
    """What one row adds up: sums, and by account what was spent of its two parts."""

    sums: Counter[str] = field(default_factory=Counter)
    spent: dict[str, Counter[str]] = field(default_factory=dict)


def usage(
    session: Session,
    caller: Caller,
    dataset: str | None = None,
    since: str | None = None,
    until: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> UsageView:
    """What jobs took on the data sets that a caller may see.

    Args:
        dataset: its id or name; None: all of them.
        since, until: the first and the last month, as 2026-11; None: the last twelve.
        after: `next` of the page before; None: from the first row.
        limit: the most rows; None: all.

    Raises:
        NotFound: no such data set, or the caller may not see it.
        InvalidRequest: the months are in the wrong order, or too many; or `after` is not a cursor of this list.
    """
    months = _months(since, until)
    dataset_row = None if dataset is None else require(session, caller, dataset, "view")
    among = visible(caller, FAMILY) if dataset_row is None else FAMILY.in_([dataset_row.parent_id or dataset_row.id])
    last = None if after is None else decode_cursor(after, str, str, str, str, str)
    left = [month for month in months if last is None or month[0] <= last[0]]
    rows = session.execute(_sums(left, among)).all() if left else []
    families = {
        each.id: each for each in session.scalars(select(Dataset).where(Dataset.id.in_({row.dataset for row in rows})))
    }
    accounts = {
        each.dataset_id: each
        for each in session.scalars(
            select(Account).where(Account.dataset_id.in_({row.account for row in rows} | families.keys()))
        )
    }
    teams = _teams(session, families)
    names = dict(session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_({row.key for row in rows}))).all())
    taken: dict[tuple[str, str, str | None, str | None], _Taken] = {}
    for row in rows:
        owns = caller.is_admin or (caller.role == "owner" and families[row.dataset].owner_key == caller.id)
        team = teams.get((row.dataset, row.key)) if owns or row.key == caller.id else None
        key = row.key if team is None and (owns or row.key == caller.id) else None
        row_taken = taken.setdefault((row.month, row.dataset, team, key), _Taken())
        row_taken.sums.update({name: int(getattr(row, name)) for name in SUMS})
        if row.account:
            row_taken.spent.setdefault(row.account, Counter()).update(train=int(row.train), holdout=int(row.holdout))
    items = [
        UsageRow(
            month=month,
            dataset=dataset_id,
            dataset_name=families[dataset_id].name,
            team=team,
            key_id=key,
            key_name=names.get(key or ""),
            jobs=each.sums["jobs"],
            processor_s=each.sums["processor_s"],
            gpu_s=each.sums["gpu_s"],
            bytes=each.sums["bytes"],
            **_privacy(families[dataset_id], each, accounts),
        )
        for (month, dataset_id, team, key), each in taken.items()
    ]
    items.sort(key=_place)
    items.sort(key=lambda item: item.month, reverse=True)
    if last is not None:
        items = [each for each in items if each.month < last[0] or _place(each) > last[1:]]
    page, has_more = items[:limit], limit is not None and len(items) > limit
    following = encode_cursor(page[-1].month, *_place(page[-1])) if has_more else None
    return UsageView(since=months[0][0], until=months[-1][0], items=page, next=following)


def as_csv(view: UsageView) -> str:
    """The rows as a table with a line for each; a missing cell is empty."""
    out = io.StringIO()
    table = csv.DictWriter(out, list(UsageRow.model_fields))  # RFC 4180: a line break in a name is quoted
    table.writeheader()
    for row in view.items:
        table.writerow({name: plain(cell) for name, cell in row.model_dump().items()})
    return out.getvalue()


def _place(row: UsageRow) -> tuple[str, ...]:
    """Where a row stands in its month; its key's name, which may be any text, has no part in it."""
    return row.dataset_name, row.dataset, row.team or "", row.key_id or ""


def _months(since: str | None, until: str | None) -> list[tuple[str, datetime, datetime]]:
    """The months, each with its begin and its end."""
    last = _number(until) if until is not None else now().year * 12 + now().month - 1
    first = _number(since) if since is not None else last - USUAL_MONTHS + 1
    if not 0 <= last - first < MOST_MONTHS:
        raise InvalidRequest.at("/query/since", f"give 1 to {MOST_MONTHS} months, the first one before the last")
    return [(f"{at // 12:04}-{at % 12 + 1:02}", _begin(at), _begin(at + 1)) for at in range(first, last + 1)]


def _number(month: str) -> int:
    return int(month[:4]) * 12 + int(month[5:]) - 1


def _begin(number: int) -> datetime:
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)


def _sums(months: Iterable[tuple[str, datetime, datetime]], among: ColumnElement[bool]) -> CompoundSelect[Any]:
    """Selects all sums, by month, data set and key: of jobs, of their attempts, of their files, and of their posts."""
    span = (
        values(column("month", String), column("begin", UtcDateTime()), column("until", UtcDateTime()), name="span")
        .data(list(months))
        .cte("months")
    )
    zero, nobody = literal(0, BigInteger), literal("", String)

    def part(
        key: SQLColumnExpression[str], account: SQLColumnExpression[str], **sums: SQLColumnExpression[int]
    ) -> Select[Any]:
        columns: list[ColumnElement[Any]] = [span.c.month.label("month"), FAMILY.label("dataset")]
        columns += [key.label("key"), account.label("account")]
        columns += [cast(func.sum(sums.get(each, zero)), BigInteger).label(each) for each in SUMS]
        groups = (span.c.month, FAMILY, key, *(() if account is nobody else (account,)))
        return select(*columns).where(among).group_by(*groups)

    ended = (Job.finished_at >= span.c.begin) & (Job.finished_at < span.c.until)
    study = case((Job.parent_id.is_(None), 1), else_=0)
    seconds = cast(extract("epoch", Attempt.ended_at), BigInteger) - cast(
        extract("epoch", Attempt.started_at), BigInteger
    )
    processes = Job.spec["runtime"]["processes"].as_string()
    # each `asked` parses a whole document
    ranks = func.coalesce(Attempt.ranks, cast(func.nullif(processes, "auto"), BigInteger), 1)
    processors = seconds * ranks * func.coalesce(Job.threads, 1)
    of_gpus = case((Attempt.device == "cuda", seconds * func.coalesce(Attempt.ranks, 1)), else_=0)
    size = Artifact.size_bytes
    spent = SpentByKey
    day = spent.day.between(span.c.month + "-01", span.c.month + "-31")  # which the index on days finds
    return union_all(
        part(Job.key_id, nobody, jobs=study)
        .select_from(span)
        .join(Job, ended)
        .join(Dataset, Dataset.id == Job.dataset_id),
        part(Job.key_id, nobody, processor_s=processors, gpu_s=of_gpus)
        .select_from(span)
        .join(Job, ended)
        .join(Dataset, Dataset.id == Job.dataset_id)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.ended_at.is_not(None)),
        part(Job.key_id, nobody, bytes=size)
        .select_from(span)
        .join(Job, ended)
        .join(Dataset, Dataset.id == Job.dataset_id)
        .join(Artifact, Artifact.job_id == Job.id),
        part(spent.key_id, spent.dataset_id, train=spent.train, holdout=spent.holdout)
        .select_from(span)
        .join(spent, day)
        .join(Dataset, Dataset.id == spent.dataset_id),
    )


def _teams(session: Session, families: Iterable[str]) -> dict[tuple[str, str], str]:
    """By data set and key, the budget that the key shares with others or under a name of its own."""
    query = (
        select(FAMILY, SubAccountKey.key_id, SubAccountKey.name)
        .join(Dataset, Dataset.id == SubAccountKey.dataset_id)
        .where(FAMILY.in_(list(families)), SubAccountKey.name != SubAccountKey.key_id)
    )
    return {(dataset, key): name for dataset, key, name in session.execute(query)}


def _privacy(dataset: Dataset, taken: _Taken, accounts: dict[str, Account]) -> dict[str, float | None]:
    """ε, δ and the share of the budget of what was spent, on the account that it used most."""
    if not taken.spent:
        none_spent = 0.0 if dataset.id in accounts else None
        return {"epsilon": none_spent, "delta": None, "share": none_spent}
    readings = []
    for name, parts in taken.spent.items():
        privacy_filter = accounts[name]
        budgets = {"train": privacy_filter.train_budget, "holdout": privacy_filter.holdout_budget}
        share = max(parts[each] / budget for each, budget in budgets.items() if budget)
        amount = max(parts.values())
        epsilon = (
            filter_for(privacy_filter.filter, privacy_filter.order).epsilon(amount, privacy_filter.cap_delta)
            if amount
            else 0.0
        )
        readings.append((epsilon, privacy_filter.cap_delta, share))
    epsilon, delta, _share = max(readings)
    return {"epsilon": epsilon, "delta": delta, "share": max(share for _, _, share in readings)}
