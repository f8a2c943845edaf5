"""A serial model of integers replays the entries of a race, and compares them with what each process was told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Account, LedgerEntry, SubAccount
from app.ledger.verification import verify

Pair = tuple[int, int]  # of (train, holdout)
ZERO = (0, 0)


@dataclass(frozen=True)
class Act:
    """What a process did and was told.

    Attributes:
        on: the ledgers that it is about; `before` and `after` are their lengths around it.
        code: the refusal's; None: it was done.
        inside: it was refused by the key's own budget.
    """

    what: str
    name: str
    on: tuple[str, ...]
    amounts: Pair
    code: str | None
    inside: bool
    before: dict[str, int]
    after: dict[str, int]


@dataclass
class Model:
    """One ledger, replayed: what is left after each entry, and every hold with its end."""

    name: str
    budget: Pair = ZERO
    spent: Pair = ZERO
    held: Pair = ZERO
    left: list[Pair] = field(default_factory=lambda: [ZERO])
    holds: dict[str, Pair] = field(default_factory=dict)
    ends: dict[str, tuple[str, Pair]] = field(default_factory=dict)
    payers: dict[str, str] = field(default_factory=dict)
    parts: dict[str, tuple[Pair, Pair]] = field(default_factory=dict)  # by sub-account: spent, held

    def take(self, entry: LedgerEntry) -> str | None:
        """Replays an entry; says what it must not do."""
        amounts = (entry.train, entry.holdout)
        if entry.kind in ("open", "cap"):
            self.budget = amounts
        elif entry.kind == "hold":
            if entry.job_id in self.holds:
                return "a second hold of one job"
            self.holds[entry.job_id or ""] = amounts
            self._move(entry, ZERO, amounts)
        else:
            hold = self.holds.get(entry.job_id or "")
            if hold is None or entry.job_id in self.ends:
                return "it settles no open hold"
            if (entry.kind == "void" and amounts != ZERO) or any(
                part > whole for part, whole in zip(amounts, hold, strict=True)
            ):
                return "it spends more than the hold"
            self.ends[entry.job_id or ""] = (entry.kind, amounts)
            self._move(entry, amounts, (-hold[0], -hold[1]))
        taken = plus(self.spent, self.held)
        self.left.append((self.budget[0] - taken[0], self.budget[1] - taken[1]))
        if min(self.left[-1]) < 0:
            return f"{taken} are spent and held, and the cap is worth {self.budget}"
        said = entry.memo["balance"]
        parts = zip(("train", "holdout"), self.budget, self.spent, self.held, strict=True)
        if said != {name: {"budget": budget, "spent": spent, "held": held} for name, budget, spent, held in parts}:
            return "it states other balances"
        return None

    def _move(self, entry: LedgerEntry, spent: Pair, held: Pair) -> None:
        self.spent, self.held = plus(self.spent, spent), plus(self.held, held)
        job = entry.job_id or ""
        if entry.kind == "hold" and "budget" in entry.memo:
            self.payers[job] = entry.memo["budget"]
        payer = self.payers.get(job)
        if payer is not None:
            before = self.parts.get(payer, (ZERO, ZERO))
            self.parts[payer] = (plus(before[0], spent), plus(before[1], held))


def plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def faults(session: Session, family: Sequence[str], acts: Sequence[Act]) -> Iterator[str]:
    """What is wrong with a data set's ledgers after a race."""
    models = {}
    for each in family:
        models[each] = model = Model(each)
        entries = session.scalars(select(LedgerEntry).where(LedgerEntry.dataset_id == each).order_by(LedgerEntry.seq))
        for entry in entries:
            problem = model.take(entry)
            if problem is not None:
                yield f"{each}, entry {entry.seq}: {problem}"
                return
        yield from _rows(session, model)
        verified = verify(session, each)
        if not verified.valid:
            yield f"{each}: {verified}"
    yield from _told(models, acts)


def _rows(session: Session, model: Model) -> Iterator[str]:
    row = session.get_one(Account, model.name)
    found = (row.train_spent, row.holdout_spent), (row.train_held, row.holdout_held)
    if found != (model.spent, model.held) or row.entries != len(model.left) - 1:
        yield f"{model.name}: its row says {found}, and its entries {(model.spent, model.held)}"
    for part in session.scalars(select(SubAccount).where(SubAccount.dataset_id == model.name)):
        spent, held = (part.train_spent, part.holdout_spent), (part.train_held, part.holdout_held)
        if (spent, held) != model.parts.get(part.id, (ZERO, ZERO)):
            yield f"{model.name}: the budget {part.name} says {(spent, held)}, and the entries otherwise"
        taken = plus(spent, held)
        if taken[0] > part.train_budget or taken[1] > part.holdout_budget:
            yield f"{model.name}: the budget {part.name} is overspent"


def _told(models: dict[str, Model], acts: Sequence[Act]) -> Iterator[str]:
    """Everything that was done is there, nothing else is, and every refusal of the budget was right."""
    held = set()
    for act in acts:
        if act.what in ("hold", "charge") and act.code is None:
            held.add(act.name)
            on = {each for each in models if models[each].holds.get(act.name) == act.amounts}
            if not on >= set(act.on):
                yield f"{act} was done, and holds on {on}"
        elif (act.what, act.code, act.inside) == ("hold", "budget-exceeded", False) and _always_fitted(models, act):
            yield f"{act} was refused, and fitted at every moment of the call"
        elif act.what in ("post", "void") and act.code is None:
            ends = {models[each].ends.get(act.name) for each in act.on}
            if ends != {(act.what, act.amounts)}:
                yield f"{act} was done, and the ledgers say {ends}"
    there = {job for model in models.values() for job in model.holds}
    if there != held:
        yield f"nobody was told of {there - held}, or {held - there} are missing"


def _always_fitted(models: dict[str, Model], act: Act) -> bool:
    moments = (left for each in act.on for left in models[each].left[act.before[each] : act.after[each] + 1])
    return all(left[0] >= act.amounts[0] and left[1] >= act.amounts[1] for left in moments)
