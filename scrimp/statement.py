"""A statement about all that a data set's ledger has admitted, from signed evidence alone: entries and a checkpoint.

    {"version": 1, "dataset": {"id", "name", "unit"}, "checkpoint": note, "entries": [every entry, as the API gave it]}

`checked` recomputes chain, tree and balances from the entries and verifies the note with the reader's key. `told` says
the result in words. Both work on a machine that never saw the service. `dataset.name` and `unit` are what the service
said: the entries do not hold them.

Formulas: under `gdp` the μ of all is √spent, and δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ); under `rdp` at order α,
ε = spent + ln(1 − 1/α) − (ln δ + ln α)/(α − 1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from scrimp.errors import ScrimpError
from scrimp.models import LedgerEntry
from scrimp.transparency import ED25519, LOG, Key, Note, NotProven, begins_with
from scrimp.verify import recompute_chain

Json = Mapping[str, Any]
ACCOUNTS = ("train", "holdout")
PER_UNIT = {"gdp": 1e-12, "rdp": 1e-9}
ROUNDING = 1e-9  # relative: printed figures are never below the exact ones
WORTH = 1e-6  # relative: how far a budget's ε may exceed its cap's by rounding
ALPHAS = (0.001, 0.01, 0.1)
NORMAL = NormalDist()


@dataclass(frozen=True)
class Statement:
    """What the entries say together.

    Attributes:
        entries: how many the checkpoint covers.
        filter, order: the enforced accountant, and α of an `rdp` filter.
        cap_epsilon, largest_cap_epsilon, cap_delta: the cap now, and the largest one ever granted.
        budget, spent, held: by account, in the filter's units.
        jobs, charges, running: posted jobs (a study is one), other posts (of other systems, joined ledgers, what
            a restored backup had lost), open holds.
        closed: nothing more is admitted.
    """

    dataset: str
    name: str
    unit: str
    entries: int
    first: str
    last: str
    filter: str
    order: float | None
    cap_epsilon: float
    largest_cap_epsilon: float
    cap_delta: float
    budget: dict[str, int]
    spent: dict[str, int]
    held: dict[str, int]
    jobs: int
    charges: int
    running: int
    closed: bool

    def epsilon(self, amount: int) -> float:
        """What an amount is worth at the cap's δ, rounded up."""
        if amount <= 0:
            return 0.0
        if self.filter == "gdp":
            return epsilon_of_mu(math.sqrt(amount * PER_UNIT["gdp"]), self.cap_delta)
        order = float(self.order or 0.0)
        terms = math.log1p(-1.0 / order), -(math.log(self.cap_delta) + math.log(order)) / (order - 1.0)
        return max(0.0, (amount * PER_UNIT["rdp"] + math.fsum(terms)) * (1.0 + ROUNDING))


def checked(document: Json, public_key: bytes) -> Statement:
    """Verifies a statement's evidence and sums it up.

    Args:
        public_key: the raw key that the reader trusts.

    Raises:
        NotProven: what does not hold.
    """
    try:
        note, dataset = Note.parse(document["checkpoint"]), str(document["dataset"]["id"])
        entries = [LedgerEntry.model_validate(each) for each in document["entries"]]
        if note.signed_by(Key(LOG, ED25519, public_key)) is None:
            raise NotProven("the key did not sign the checkpoint")
        found = recompute_chain(dataset, entries)
        if found.first_bad_entry is not None or not entries:
            raise NotProven(f"entry {found.first_bad_entry or 1} does not fit into the chain")
        if note.size != len(entries) or not begins_with(note, dataset, [each.hash for each in entries]):
            raise NotProven("the entries are not those of the checkpoint")
        return _summed(document["dataset"], [each.model_dump(mode="json") for each in entries])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise error if isinstance(error, NotProven) else NotProven(f"this is not a statement: {error!r}") from None


class _Sums:
    """What the entries add up to, entry by entry.

    Raises:
        NotProven: from `take`: an entry that no honest ledger has after those before it.
    """

    def __init__(self) -> None:
        zero = dict.fromkeys(ACCOUNTS, 0)
        self.budget, self.spent, self.held = dict(zero), dict(zero), dict(zero)
        self.holds = dict[str, dict[str, int]]()  # what is left of each open one
        self.jobs, self.charges, self.caps, self.closed = set[str](), set[str](), list[float](), False
        self.place = 0

    def take(self, entry: dict[str, Any]) -> None:
        self.place += 1
        memo, kind = entry["memo"], entry["kind"]
        amounts = {name: int(entry[name]) for name in ACCOUNTS}
        released = {name: int(entry[f"{name}_released"]) for name in ACCOUNTS}
        self._require(min(*amounts.values(), *released.values()) >= 0, "has a negative amount")
        self._require((kind == "open") == (self.place == 1), "opens the ledger again, or does not open it")
        if kind in ("post", "void"):
            self._settle(entry, amounts, released)
        else:
            self._require(kind in ("open", "cap", "hold") and not any(released.values()), "releases without a hold")
            if kind == "hold":
                self._require(not self.closed and entry["job_id"] not in self.holds, "holds what may not be held")
                self.holds[entry["job_id"]] = amounts
                self.held = {name: self.held[name] + amounts[name] for name in ACCOUNTS}
            else:
                self.budget = amounts
                self.caps.append(float(memo["cap_epsilon"]))
                self.closed = self.closed or "joined_into" in memo
        stated = {
            name: {"budget": self.budget[name], "spent": self.spent[name], "held": self.held[name]} for name in ACCOUNTS
        }
        self._require(memo["balance"] == stated, "states balances that do not follow from the entries")
        within = all(self.spent[name] + self.held[name] <= self.budget[name] for name in ACCOUNTS)
        self._require(within, "overspends the budget")

    def _settle(self, entry: dict[str, Any], amounts: dict[str, int], released: dict[str, int]) -> None:
        study, kind = entry["memo"].get("hold"), entry["kind"]
        left = self.holds.pop(study or entry["job_id"], None)
        if left is None:
            raise NotProven(f"entry {self.place} settles a hold that does not exist")
        if study is None:
            whole = all(amounts[name] + released[name] == left[name] for name in ACCOUNTS)
            self._require(whole, "spends and releases another amount than was held")
        else:  # a trial draws on the study's hold, which stays open
            self._require(kind == "post" and not any(released.values()), "releases a part of its study's hold")
            self.holds[study] = {name: left[name] - amounts[name] for name in ACCOUNTS}
            self._require(min(self.holds[study].values()) >= 0, "draws more than is left of its study's hold")
        self._require(kind == "post" or not any(amounts.values()), "spends, although it gives its hold back")
        if kind == "post":
            (self.jobs if str(entry["job_id"]).startswith("job_") else self.charges).add(study or entry["job_id"])
        self.held = {name: self.held[name] - amounts[name] - released[name] for name in ACCOUNTS}
        self.spent = {name: self.spent[name] + amounts[name] for name in ACCOUNTS}

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise NotProven(f"entry {self.place} {otherwise}")


def _summed(dataset: Json, entries: list[dict[str, Any]]) -> Statement:
    sums, terms = _Sums(), entries[0]["memo"]
    for entry in entries:
        sums.take(entry)
    found = _stated(dataset, entries, sums, terms)
    for entry in entries:
        if entry["kind"] in ("open", "cap"):
            worth, cap = found.epsilon(max(entry[name] for name in ACCOUNTS)), entry["memo"]["cap_epsilon"]
            if worth > cap * (1.0 + WORTH):
                raise NotProven(f"entry {entry['seq']} grants a budget that is worth ε = {worth:g}, not {cap:g}")
    return found


def _stated(dataset: Json, entries: list[dict[str, Any]], sums: _Sums, terms: Json) -> Statement:
    return Statement(
        dataset=str(dataset["id"]),
        name=str(dataset["name"]),
        unit=str(dataset["unit"]),
        entries=len(entries),
        first=entries[0]["created_at"],
        last=entries[-1]["created_at"],
        filter=terms["filter"],
        order=terms["order"],
        cap_epsilon=sums.caps[-1],
        largest_cap_epsilon=max(sums.caps),
        cap_delta=terms["cap_delta"],
        budget=sums.budget,
        spent=sums.spent,
        held=sums.held,
        jobs=len(sums.jobs),
        charges=len(sums.charges),
        running=len(sums.holds),
        closed=sums.closed,
    )


def told(found: Statement) -> list[tuple[str, list[str]]]:
    """The statement in plain words, section by section."""
    thing = "record" if found.unit == "example" else found.unit
    delta, most = f"{found.cap_delta:g}", max(found.spent.values())
    taken = max(found.spent[name] + found.held[name] for name in ACCOUNTS)
    others = f" and {found.charges} other charges (other systems, joined ledgers, gaps)" if found.charges else ""
    cap = f"ε ≤ {_up(found.cap_epsilon)} at δ = {delta}"
    if found.largest_cap_epsilon > found.cap_epsilon:
        cap += f" (once {_up(found.largest_cap_epsilon)}: if a change depended on results, that is the guarantee)"
    order = f" at order {found.order:g}" if found.order is not None else ""
    return [
        ("Data set", [f"{found.name} ({found.dataset}); {found.entries} entries, {found.first} to {found.last}"]),
        ("Unit of privacy", [f"one {thing}: neighbouring data sets differ by adding or removing one"]),
        (
            "What was spent",
            [
                f"{found.jobs} jobs{others}, together ε = {_up(found.epsilon(most))} at δ = {delta}",
                f"with what {found.running} unfinished ones may spend: ε = {_up(found.epsilon(taken))}",
                f"training part {_part(found, 'train')}; hold-out {_part(found, 'holdout')}",
            ],
        ),
        (
            "Guarantee",
            [
                f"{cap}, for everything that was released, enforced by a {found.filter} filter{order}",
                "for what will be released too, under this cap, as long as it is not raised",
                "all jobs count: each may be chosen by the results of those before, and analysts may share everything",
                *(["the ledger is closed: nothing more is admitted"] if found.closed else []),
            ],
        ),
        ("How to read it", _reading(found, most)),
        (
            "Not covered",
            [
                f"entries after the {found.entries} here; another history that the service shows others: compare the"
                " checkpoint with a witness's",
                "that each job ran as its certificate says (scrimp audit privacy; scrimp replay)",
                "the same people in other data sets; side channels such as durations; a malicious operator",
            ],
        ),
    ]


def _reading(found: Statement, most: int) -> list[str]:
    """What the best attacker finds, exactly under `gdp`; under `rdp` a bound from (ε, δ) alone."""
    lines = ["an attacker who knows everything but who took part, and may accuse a share α of others wrongly, finds"]
    for alpha in ALPHAS:
        if most <= 0:
            finds = alpha
        elif found.filter == "gdp":
            finds = NORMAL.cdf(NORMAL.inv_cdf(alpha) + math.sqrt(most * PER_UNIT["gdp"]))
        else:
            epsilon, delta = found.epsilon(most), found.cap_delta
            finds = min(math.exp(epsilon) * alpha + delta, 1.0 - math.exp(-epsilon) * (1.0 - delta - alpha))
        lines.append(f"at most {_up(100.0 * min(1.0, finds))} % of the members at α = {100.0 * alpha:g} %")
    return lines


def _part(found: Statement, name: str) -> str:
    budget = found.budget[name]
    if budget == 0:
        return "none"
    return f"{100.0 * found.spent[name] / budget:.1f} % spent, {100.0 * found.held[name] / budget:.1f} % held"


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The ε of μ-GDP at δ, by bisection, rounded up."""
    low, high = 0.0, 1.0
    while _delta(mu, high) > delta:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _delta(mu, middle) > delta else (low, middle)
    return high * (1.0 + ROUNDING)


def _delta(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP. The second term's logarithm is taken, so that e^ε does not overflow."""
    first, tail = _phi(mu / 2.0 - epsilon / mu), _phi(-mu / 2.0 - epsilon / mu)
    return first - (math.exp(epsilon + math.log(tail)) if tail > 0.0 else 0.0)


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _up(value: float) -> str:
    """Three significant digits, rounded up."""
    if value <= 0.0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step * (1.0 - 1e-12)) * step:.6g}"


def written(document: Json) -> str:
    """A statement as a file holds it."""
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def built(dataset: Json, checkpoint: str, entries: list[LedgerEntry]) -> dict[str, Any]:
    """The document of a statement.

    Args:
        dataset: id, name and unit, as the service says.
        entries: at least those that the checkpoint covers, oldest first.

    Raises:
        ScrimpError: fewer.
    """
    size = Note.parse(checkpoint).size
    if len(entries) < size:
        raise ScrimpError(f"the checkpoint covers {size} entries, and the service shows {len(entries)}")
    shown = [each.model_dump(mode="json") for each in entries[:size]]
    return {"version": 1, "dataset": dict(dataset), "checkpoint": checkpoint, "entries": shown}
