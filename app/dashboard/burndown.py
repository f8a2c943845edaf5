"""A budget over time: what was spent and held after each entry of the ledger, in shares of today's budget.

Each entry states the balances after it, so any selection of entries draws a true picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.dashboard.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Tick, ticks
from app.dashboard.numbers import percent
from app.db.models import Account, LedgerEntry
from app.ids import now
from app.ledger.entries import balance_of

MOST_POINTS = 1000
MOST_MARKS = 60  # more jobs than this are a line without dots
DAY_S = 86_400.0
Name = Literal["train", "holdout"]


@dataclass(frozen=True)
class Balance:
    """An account after an entry.

    Attributes:
        spent, held, budget: in the filter's units.
        settled: what the entry spent, if it settled a job.
    """

    seq: int
    at: datetime
    job_id: str | None
    spent: int
    held: int
    budget: int
    settled: int


@dataclass(frozen=True)
class Mark:
    """A settled job, where its cost was added."""

    x: float
    y: float
    job_id: str
    said: str


@dataclass(frozen=True)
class Burndown:
    """One account's drawing, in a viewBox of WIDTH × HEIGHT: SVG points of two areas and of the cap's line."""

    name: str
    spent: str
    held: str
    cap: str
    marks: list[Mark]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    percent: float

    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    width, height = WIDTH, HEIGHT


def burndowns(session: Session, account: Account) -> list[Burndown]:
    """The drawing of each account that has a budget."""
    every = max(1, -(-account.entries // MOST_POINTS))
    chosen = or_(LedgerEntry.seq % every == 0, LedgerEntry.seq == 1, LedgerEntry.seq == account.entries)
    found = session.scalars(
        select(LedgerEntry).where(LedgerEntry.dataset_id == account.dataset_id, chosen).order_by(LedgerEntry.seq)
    ).all()
    names: tuple[Name, ...] = ("train", "holdout")
    budgets = {name: int(balance_of(account)[name]["budget"]) for name in names}
    return [
        drawn([_balance(each, name) for each in found], name, budgets[name], now())
        for name in names
        if budgets[name] > 0 and found
    ]


def _balance(entry: LedgerEntry, name: Name) -> Balance:
    after: dict[str, int] = entry.memo["balance"][name]
    return Balance(
        seq=entry.seq,
        at=entry.created_at,
        job_id=entry.job_id,
        spent=after["spent"],
        held=after["held"],
        budget=after["budget"],
        settled=getattr(entry, name) if entry.kind == "post" else 0,
    )


def drawn(balances: list[Balance], name: str, budget: int, until: datetime) -> Burndown:
    """Draws an account's balances, oldest first, as shares of a budget, up to a time."""
    first, last = balances[0].at.timestamp(), max(balances[-1].at, until).timestamp()
    span = max(last - first, 1.0)
    values = ticks(0.0, max(100.0, *(100.0 * each.budget / budget for each in balances)), 5)

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - first) / span

    def y(amount: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (100.0 * amount / budget) / values[-1]

    def stairs(of: Callable[[Balance], int]) -> str:
        points = [(x(first), y(of(balances[0])))]
        for before, after in pairwise(balances):
            points += [(x(after.at.timestamp()), y(of(before))), (x(after.at.timestamp()), y(of(after)))]
        points.append((x(first + span), y(of(balances[-1]))))
        return " ".join(f"{at:.1f},{height:.1f}" for at, height in points)

    settled = [each for each in balances if each.settled and each.job_id is not None]
    floor = f"{x(first + span):.1f},{y(0):.1f} {x(first):.1f},{y(0):.1f}"
    return Burndown(
        name=name,
        spent=f"{stairs(lambda each: each.spent)} {floor}",
        held=f"{stairs(lambda each: each.spent + each.held)} {floor}",
        cap=stairs(lambda each: each.budget),
        marks=[
            Mark(x(each.at.timestamp()), y(each.spent), str(each.job_id), f"{percent(each.settled, budget)} %")
            for each in (settled if len(settled) <= MOST_MARKS else [])
        ],
        x_ticks=[
            Tick(x(first + part * span), _moment(first + part * span, span)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
        y_ticks=[Tick(y(value * budget / 100.0), f"{value:g} %") for value in values],
        percent=percent(balances[-1].spent, budget),
    )


def _moment(at: float, span: float) -> str:
    """A time in UTC, as fine as the span needs."""
    pattern = "%H:%M:%S" if span < DAY_S / 24 else "%H:%M" if span < 2 * DAY_S else "%Y-%m-%d"
    return datetime.fromtimestamp(at, UTC).strftime(pattern)
