"""A budget over time, in shares of today's budget: what was spent and held, each job's cost, each key's sum.

Each entry states the balances after it, so any selection of entries draws a true picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from app.dashboard.chart import MOST_POINTS, SERIES, Axis, Chart, Colour, Line, Point, thinned
from app.dashboard.forecast_page import Forecast, forecast
from app.dashboard.numbers import moment, part, percent
from app.db.models import Account, Job, LedgerEntry, SpentByKey, table_of
from app.ledger import memos
from app.ledger.entries import balance_of
from app.ledger.memos import Memo
from core.ids import now

MOST_BALANCES = 200  # of a line some 700 pixels wide
KEYS_SHOWN = len(SERIES) - 1  # the last colour is the others'
MOST_READ = 1_000  # entries: of a longer ledger the sums by day are read in place of its posts
MOST_DOTS = 200
OTHERS = "others"  # in place of a key's id: all keys that have no line of their own
Name = Literal["train", "holdout"]


@dataclass(frozen=True)
class Balance:
    """An account after an entry: spent, held and budget are in the filter's units."""

    at: datetime
    spent: int
    held: int
    budget: int


@dataclass(frozen=True)
class Settled:
    """What a job spent of an account, and when.

    Attributes:
        key: whose job it was; "" where the job belongs to a joined data set.
    """

    at: datetime
    job_id: str
    key: str
    spent: int


@dataclass(frozen=True)
class History:
    """What was spent of an account.

    Attributes:
        settled: by job, or of a long ledger by key and day.
        dots: the jobs that are drawn one by one.
        names: those of keys.
    """

    settled: list[Settled]
    dots: list[Settled]
    names: dict[str, str]


@dataclass(frozen=True)
class Burndown:
    """One account's charts, and when its cap would be reached. `shares`: each key's part of the budget."""

    name: Name
    percent: float
    over_time: Chart
    by_job: Chart
    by_key: Chart
    forecast: Forecast | None


def burndowns(session: Session, account: Account, names: Callable[[set[str]], dict[str, str]]) -> list[Burndown]:
    """The charts of each account that has a budget.

    Args:
        names: gives the names of keys, as far as the viewer may know them.
    """
    every = max(1, -(-account.entries // MOST_BALANCES))
    places = sorted({1, account.entries, *range(every, account.entries + 1, every)})
    rows = session.execute(
        select(LedgerEntry.created_at, LedgerEntry.memo)
        .where(LedgerEntry.dataset_id == account.dataset_id, LedgerEntry.seq.in_(places))
        .order_by(LedgerEntry.seq)
    )
    found = [(at, Memo.of(memo).balances) for at, memo in rows]
    drawings = []
    parts: tuple[Name, Name] = ("train", "holdout")
    for name in parts:
        budget = balance_of(account).of(name).budget
        if budget > 0 and found:
            history = _history(session, account, name, names)
            balances = [_balance(at, memo_balances.of(name)) for at, memo_balances in found]
            drawings.append(drawn(name, budget, balances, history, now()))
    return drawings


def _history(session: Session, account: Account, name: Name, names: Callable[[set[str]], dict[str, str]]) -> History:
    """What was spent of one account: each post, or of a long ledger the costliest ones and sums by day."""
    if account.entries <= MOST_READ:
        settled = _posts(session, account, name)
        return History(settled, settled, names({each.key for each in settled if each.key}))
    spent = table_of(SpentByKey).c
    amount, mine = spent[name], spent.dataset_id == account.dataset_id
    of_keys = select(spent.key_id).where(mine, spent.day == "", amount > 0).order_by(amount.desc(), spent.key_id)
    keys = list(session.scalars(of_keys))
    top_keys = keys[: KEYS_SHOWN - 1]
    key = case((spent.key_id.in_(top_keys), spent.key_id), else_=OTHERS).label("key")
    days = select(func.max(spent.last_at, type_=spent.last_at.type), key, func.sum(amount))
    rows = session.execute(days.where(mine, spent.day != "", amount > 0).group_by(key, spent.day).order_by(spent.day))
    by_day = [Settled(at=at, job_id="", key=key, spent=int(total)) for at, key, total in rows]
    dots = _posts(session, account, name, costliest=MOST_DOTS)
    key_names = names({each.key for each in (*by_day, *dots) if each.key})
    return History(by_day, dots, key_names | {OTHERS: f"{len(keys) - len(top_keys)} other keys"})


def _posts(session: Session, account: Account, name: Name, costliest: int | None = None) -> list[Settled]:
    """What each job spent on one account, oldest first.

    Args:
        costliest: of so many jobs, those that spent most.
    """
    entry, jobs = table_of(LedgerEntry).c, table_of(Job).c
    amount = entry[name]
    query = (
        select(entry.seq, entry.created_at, entry.job_id, jobs.key_id, amount)
        .outerjoin(table_of(Job), jobs.id == entry.job_id)
        .where(entry.dataset_id == account.dataset_id, entry.kind == "post", amount > 0)
    )
    ordered = query.order_by(entry.seq) if costliest is None else query.order_by(amount.desc(), entry.seq.desc())
    rows = sorted(session.execute(ordered.limit(costliest)), key=lambda post: post.seq)
    return [Settled(at=at, job_id=job or "", key=key or "", spent=spent) for _seq, at, job, key, spent in rows]


def _balance(at: datetime, balances: memos.Balance) -> Balance:
    return Balance(at=at, spent=balances.spent, held=balances.held, budget=balances.budget)


def drawn(name: Name, budget: int, balances: list[Balance], history: History, today: datetime) -> Burndown:
    """Draws an account, oldest entries first, as shares of a budget."""
    spent, settled, names = balances[-1].spent, history.settled, history.names
    coming = forecast([(each.at, each.spent) for each in settled], balances[0].at, spent, budget, today)
    begin = balances[0].at.timestamp()
    end = max(balances[-1].at.timestamp(), today.timestamp(), begin + 1)
    # Never before the end: a range below what a float of seconds since 1970 resolves has no ticks.
    horizon = end if coming is None else max(end, min(coming.reached.timestamp(), 2 * end - begin))
    axis = f"the {part(name)} part's budget"
    top = max(100.0, *(100.0 * each.budget / budget for each in balances))
    return Burndown(
        name=name,
        percent=percent(spent, budget),
        over_time=Chart(
            f"{name}-over-time",
            f"share of {axis} over time: {percent(spent, budget)} % spent now",
            Axis("time (UTC)", begin, begin + (horizon - begin) * 1.02, "time"),
            _shares(top),
            _areas(balances, budget, end) + ([] if coming is None else [_coming(coming, end, horizon, spent, budget)]),
        ),
        by_job=_jobs(name, axis, history.dots, names, budget, (begin, end)),
        by_key=_keys(name, axis, settled, names, budget, (begin, end)),
        forecast=coming,
    )


def _shares(top: float) -> Axis:
    return Axis("share of the budget", 0.0, top * 1.05, unit=" %")


def _point(at: datetime | float, amount: int, budget: int, note: str = "") -> Point:
    stamp = at if isinstance(at, float) else at.timestamp()
    return Point(
        stamp, 100.0 * amount / budget, moment(datetime.fromtimestamp(stamp, UTC)), f"{percent(amount, budget)} %{note}"
    )


def _areas(balances: list[Balance], budget: int, end: float) -> list[Line]:
    """Spent, held above it, and the cap; each up to now."""

    def line(name: str, amount_of: Callable[[Balance], int], colour: Colour, *, dashed: bool = False) -> Line:
        amounts = [(each.at, amount_of(each)) for each in balances]
        # A step begins where the amount changes: the points between say nothing.
        starts = [amounts[0], *(second for first, second in pairwise(amounts) if second[1] != first[1])]
        points = [_point(at, amount, budget) for at, amount in starts]
        points.append(_point(end, amounts[-1][1], budget))
        return Line(name, points, colour, "steps", filled=not dashed, dashed=dashed)

    return [
        line("spent and held", lambda balance: balance.spent + balance.held, "held"),
        line("spent", lambda balance: balance.spent, "spent"),
        line("cap", lambda balance: balance.budget, "cap", dashed=True),
    ]


def _coming(coming: Forecast, end: float, horizon: float, spent: int, budget: int) -> Line:
    share = 100.0 * spent / budget
    then = share + coming.percent_per_day * (horizon - end) / 86_400.0
    day = datetime.fromtimestamp(horizon, UTC).strftime("%Y-%m-%d")
    points = [Point(end, share, "today", f"{share:.1f} %"), Point(horizon, then, day, f"{then:.0f} %")]
    return Line("at the rate of the last 30 days", points, "muted", dashed=True)


def _jobs(
    name: Name, caption: str, settled: list[Settled], names: dict[str, str], budget: int, ends: tuple[float, float]
) -> Chart:
    """A dot for each job at its cost; the costliest, where there are too many."""
    costliest = sorted(sorted(settled, key=lambda job: -job.spent)[:MOST_POINTS], key=lambda job: job.at)
    points = [
        _point(each.at, each.spent, budget, f" · {each.job_id}" + (f" of {names[each.key]}" if each.key else ""))
        for each in costliest
    ]
    top = max((each.y for each in points), default=1.0)
    title = f"what each job or charge spent of {caption}"
    axis = Axis("time (UTC)", ends[0], ends[0] + (ends[1] - ends[0]) * 1.02, "time")
    y = Axis("share of the budget", 0.0, top * 1.1, unit=" %")
    return Chart(f"{name}-by-job", title, axis, y, [Line("job", points, "spent", "dots")])


def _keys(
    name: Name, caption: str, settled: list[Settled], names: dict[str, str], budget: int, ends: tuple[float, float]
) -> Chart:
    """What the jobs of each key spent, added up over time; the smallest keys are one line."""
    totals: dict[str, int] = {}
    for settlement in settled:
        totals[settlement.key] = totals.get(settlement.key, 0) + settlement.spent
    order = sorted(totals, key=lambda key: -totals[key])
    groups = [[key] for key in order[:KEYS_SHOWN]] + ([order[KEYS_SHOWN:]] if order[KEYS_SHOWN:] else [])
    lines = []
    for number, keys in enumerate(groups):
        title = (
            (names.get(keys[0]) or "other systems and joined data sets")
            if number < KEYS_SHOWN
            else f"{len(keys)} other keys"
        )
        mine = (each for each in settled if each.key in keys)
        sums = thinned(list(_sums(mine, ends)), MOST_POINTS // 4 // len(groups))
        points = [_point(at, total, budget) for at, total in sums]
        lines.append(
            Line(title, points, SERIES[number], "steps", mark=f"{percent(sum(totals[k] for k in keys), budget)} %")
        )
    top = 100.0 * max(totals.values(), default=0) / budget or 1.0
    axis = Axis("time (UTC)", ends[0], ends[0] + (ends[1] - ends[0]) * 1.1, "time")
    y = Axis("share of the budget", 0.0, top * 1.15, unit=" %")
    return Chart(f"{name}-by-key", f"what each key's jobs spent of {caption}", axis, y, lines)


def _sums(settled: Iterable[Settled], ends: tuple[float, float]) -> Iterable[tuple[datetime | float, int]]:
    total = 0
    for settlement in settled:
        total += settlement.spent
        yield settlement.at, total
    yield ends[1], total
