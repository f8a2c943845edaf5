"""A budget over time, in shares of today's budget: what was spent and held, each job's cost, each key's sum.

Each entry states the balances after it, so any selection of entries draws a true picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.dashboard.chart import MOST_POINTS, SERIES, Axis, Chart, Colour, Line, Point, thinned
from app.dashboard.forecast import Forecast, forecast
from app.dashboard.numbers import moment, part, percent
from app.db.models import Account, Job, LedgerEntry, table_of
from app.ids import now
from app.ledger.entries import balance_of
from app.ledger.memos import Memo

MOST_BALANCES = MOST_POINTS // 5  # there are four lines, and the jobs' dots
KEYS_SHOWN = len(SERIES) - 1  # the last colour is the others'
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
    chosen = or_(LedgerEntry.seq % every == 0, LedgerEntry.seq == 1, LedgerEntry.seq == account.entries)
    found = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == account.dataset_id, chosen).order_by(LedgerEntry.seq)
    ).all()
    posts = _posts(session, account)
    said = names({key for _, _, key, _, _ in posts if key})
    drawings = []
    parts: tuple[Name, Name] = ("train", "holdout")
    for at, name in enumerate(parts):
        budget = balance_of(account).of(name).budget
        if budget > 0 and found:
            settled = [Settled(when, job, key, amounts[at]) for when, job, key, *amounts in posts if amounts[at]]
            drawings.append(drawn(name, budget, [_balance(each, name) for each in found], settled, said, now()))
    return drawings


def _posts(session: Session, account: Account) -> list[tuple[datetime, str, str, int, int]]:
    """What each job spent on both parts, oldest first."""
    entry, job = table_of(LedgerEntry).c, table_of(Job).c
    query = (
        select(entry.created_at, entry.job_id, job.key_id, entry.train, entry.holdout)
        .outerjoin(table_of(Job), job.id == entry.job_id)
        .where(entry.dataset_id == account.dataset_id, entry.kind == "post")
        .order_by(entry.seq)
    )
    return [(at, job_id or "", key or "", train, holdout) for at, job_id, key, train, holdout in session.execute(query)]


def _balance(entry: LedgerEntry, name: Name) -> Balance:
    after = Memo.of(entry.memo).balances.of(name)
    return Balance(at=entry.created_at, spent=after.spent, held=after.held, budget=after.budget)


def drawn(
    name: Name, budget: int, balances: list[Balance], settled: list[Settled], names: dict[str, str], today: datetime
) -> Burndown:
    """Draws an account, oldest entries first, as shares of a budget."""
    spent = balances[-1].spent
    coming = forecast([(each.at, each.spent) for each in settled], balances[0].at, spent, budget, today)
    begin = balances[0].at.timestamp()
    end = max(balances[-1].at.timestamp(), today.timestamp(), begin + 1)
    # Never before the end: a range below what a float of seconds since 1970 resolves has no ticks.
    horizon = end if coming is None else max(end, min(coming.reached.timestamp(), 2 * end - begin))
    of = f"the {part(name)} part's budget"
    top = max(100.0, *(100.0 * each.budget / budget for each in balances))
    return Burndown(
        name=name,
        percent=percent(spent, budget),
        over_time=Chart(
            f"{name}-over-time",
            f"share of {of} over time: {percent(spent, budget)} % spent now",
            Axis("time (UTC)", begin, begin + (horizon - begin) * 1.02, "time"),
            _shares(top),
            _areas(balances, budget, end) + ([] if coming is None else [_coming(coming, end, horizon, spent, budget)]),
        ),
        by_job=_jobs(name, of, settled, names, budget, (begin, end)),
        by_key=_keys(name, of, settled, names, budget, (begin, end)),
        forecast=coming,
    )


def _shares(top: float) -> Axis:
    return Axis("share of the budget", 0.0, top * 1.05, unit=" %")


def _point(at: datetime | float, amount: int, budget: int, more: str = "") -> Point:
    stamp = at if isinstance(at, float) else at.timestamp()
    return Point(
        stamp, 100.0 * amount / budget, moment(datetime.fromtimestamp(stamp, UTC)), f"{percent(amount, budget)} %{more}"
    )


def _areas(balances: list[Balance], budget: int, end: float) -> list[Line]:
    """Spent, held above it, and the cap; each up to now."""

    def line(name: str, of: Callable[[Balance], int], colour: Colour, *, dashed: bool = False) -> Line:
        points = [_point(each.at, of(each), budget) for each in balances]
        points.append(_point(end, of(balances[-1]), budget))
        return Line(name, points, colour, "steps", filled=not dashed, dashed=dashed)

    return [
        line("spent and held", lambda each: each.spent + each.held, "held"),
        line("spent", lambda each: each.spent, "spent"),
        line("cap", lambda each: each.budget, "cap", dashed=True),
    ]


def _coming(coming: Forecast, end: float, horizon: float, spent: int, budget: int) -> Line:
    share = 100.0 * spent / budget
    then = share + coming.percent_per_day * (horizon - end) / 86_400.0
    day = datetime.fromtimestamp(horizon, UTC).strftime("%Y-%m-%d")
    points = [Point(end, share, "today", f"{share:.1f} %"), Point(horizon, then, day, f"{then:.0f} %")]
    return Line("at the rate of the last 30 days", points, "muted", dashed=True)


def _jobs(
    name: Name, of: str, settled: list[Settled], names: dict[str, str], budget: int, ends: tuple[float, float]
) -> Chart:
    """A dot for each job at its cost; the costliest, where there are too many."""
    shown = sorted(sorted(settled, key=lambda each: -each.spent)[:MOST_POINTS], key=lambda each: each.at)
    points = [
        _point(each.at, each.spent, budget, f" · {each.job_id}" + (f" of {names[each.key]}" if each.key else ""))
        for each in shown
    ]
    top = max((each.y for each in points), default=1.0)
    title = f"what each job or charge spent of {of}"
    axis = Axis("time (UTC)", ends[0], ends[0] + (ends[1] - ends[0]) * 1.02, "time")
    y = Axis("share of the budget", 0.0, top * 1.1, unit=" %")
    return Chart(f"{name}-by-job", title, axis, y, [Line("job", points, "spent", "dots")])


def _keys(
    name: Name, of: str, settled: list[Settled], names: dict[str, str], budget: int, ends: tuple[float, float]
) -> Chart:
    """What the jobs of each key spent, added up over time; the smallest keys are one line."""
    totals: dict[str, int] = {}
    for each in settled:
        totals[each.key] = totals.get(each.key, 0) + each.spent
    order = sorted(totals, key=lambda key: -totals[key])
    groups = [[key] for key in order[:KEYS_SHOWN]] + ([order[KEYS_SHOWN:]] if order[KEYS_SHOWN:] else [])
    lines = []
    for number, keys in enumerate(groups):
        said = (
            (names.get(keys[0]) or "other systems and joined data sets")
            if number < KEYS_SHOWN
            else f"{len(keys)} other keys"
        )
        mine = (each for each in settled if each.key in keys)
        points = thinned(list(_sums(mine, budget, ends)), MOST_POINTS // len(groups))
        lines.append(
            Line(said, points, SERIES[number], "steps", mark=f"{percent(sum(totals[k] for k in keys), budget)} %")
        )
    top = 100.0 * max(totals.values(), default=0) / budget or 1.0
    axis = Axis("time (UTC)", ends[0], ends[0] + (ends[1] - ends[0]) * 1.1, "time")
    y = Axis("share of the budget", 0.0, top * 1.15, unit=" %")
    return Chart(f"{name}-by-key", f"what each key's jobs spent of {of}", axis, y, lines)


def _sums(settled: Iterable[Settled], budget: int, ends: tuple[float, float]) -> Iterable[Point]:
    total = 0
    for each in settled:
        total += each.spent
        yield _point(each.at, total, budget)
    yield _point(ends[1], total, budget)
