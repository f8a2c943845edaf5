"""A statement about all that a data set's ledgers have admitted, from signed evidence alone: entries and checkpoints.

    {"version": 3, "dataset": {"id", "name", "unit"}, "terms": DSSE envelope,
     "ledgers": [{"id", "label", "checkpoint": note, "entries": [every entry, as the API gave it]}]}

The terms sign name, unit, all blocks with their first entries, governance and grants. Version 2 has no terms, version 1
one ledger alone; both are read. Version 4 is of a data set with two filters (decision 53): a reader of 3 would take the
δ of one of them for that of the cap.

A data set that has grown has one ledger for each block, retired ones included; another has one. `checked` recomputes
chain, tree and balances from the entries and verifies the notes with the reader's key. `scrimp.statement_words` says
the result in words. Both work on a machine that never saw the service. Before version 3 name, unit, labels and the list
of the blocks are what the service said: the entries do not hold them.

Formulas: under `gdp` the μ of all is √spent, and δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ); under `rdp` at order α,
ε = spent + ln(1 − 1/α) − (ln δ + ln α)/(α − 1).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scrimp.key_history import Covered, Doubt, Doubted, Trust, time_of
from scrimp.models import LedgerEntry
from scrimp.recompute import is_signed_by
from scrimp.transparency import ED25519, LOG, Key, Note, NotProven, begins_with
from scrimp.verify import recompute_chain

Json = Mapping[str, Any]
ACCOUNTS = ("train", "holdout")
TERMS = (
    "application/vnd.in-toto+json",
    "https://in-toto.io/Statement/v1",
    "https://scrimp.example.org/dataset-terms/v1",
)
PER_UNIT = {"gdp": 1e-12, "rdp": 1e-9}
RETIRED = "retired"  # in place of a ledger that an account moved to: it moved to none
ROUNDING = 1e-9  # relative: printed figures are never below the exact ones
WORTH = 1e-6  # relative: how far a budget's ε may exceed its cap's by rounding


@dataclass(frozen=True)
class Stated:
    """What the entries of one ledger say together.

    Attributes:
        id, label: the ledger's; the label of its block.
        entries: how many the checkpoint covers.
        filter, order: the enforced accountant, and α of an `rdp` filter.
        cap_epsilon, largest_cap_epsilon, cap_delta: the cap now, and the largest one ever granted.
        budget, spent, held: by account, in the filter's units.
        jobs, charges, running: ids of posted jobs (a study is one), of other posts (of other systems, joined ledgers,
            what a restored backup had lost), and of open holds.
        within: by the id of a budget within the cap, what was paid from it: spent, by account.
        closed: nothing more is admitted.
        moved_to: the ledger to which a closed one moved, with all that it had spent.
        carried: by the id of a ledger that moved to this one, what was charged here for it.
        whole_delta: the δ of the data set's cap, where another filter has a part of it.
    """

    id: str
    label: str
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
    jobs: frozenset[str]
    charges: frozenset[str]
    running: frozenset[str]
    within: dict[str, dict[str, int]]
    closed: bool
    moved_to: str | None
    carried: dict[str, dict[str, int]]
    whole_delta: float | None

    @property
    def most_spent(self) -> int:
        """What the worse account spent."""
        return max(self.spent.values())

    @property
    def most_taken(self) -> int:
        """The same, with what is held."""
        return max(self.spent[name] + self.held[name] for name in ACCOUNTS)

    def epsilon(self, amount: int) -> float:
        """What an amount is worth at the cap's δ, rounded up."""
        if amount <= 0:
            return 0.0
        if self.filter == "gdp":
            return epsilon_of_mu(math.sqrt(amount * PER_UNIT["gdp"]), self.cap_delta)
        order = float(self.order or 0.0)
        terms = math.log1p(-1.0 / order), -(math.log(self.cap_delta) + math.log(order)) / (order - 1.0)
        return max(0.0, (amount * PER_UNIT["rdp"] + math.fsum(terms)) * (1.0 + ROUNDING))


@dataclass(frozen=True)
class Terms:
    """What is signed beside the ledgers.

    Attributes:
        governance: what the owner declared: `controller` and others; None if nothing.
        grants: of other keys than the owner's, ended ones too: `key`, `access`, `purpose`, `permit`, `ends_at`.
    """

    signed_at: str
    governance: Mapping[str, Any] | None
    grants: tuple[Json, ...]


@dataclass(frozen=True)
class Statement:
    """What all ledgers of a data set say. A unit is in one block, or has a share in each, so that the worst ledger is
    the data set's: their figures do not add up. `terms`: None before version 3."""

    dataset: str
    name: str
    unit: str
    ledgers: tuple[Stated, ...]
    terms: Terms | None = None

    @property
    def worst(self) -> Stated:
        """The ledger that spent most. One that moved was carried to another: that one spent as much."""
        return max(self.ledgers, key=lambda ledger: ledger.epsilon(ledger.most_spent))

    @property
    def entries(self) -> int:
        """How many the checkpoints cover together."""
        return sum(each.entries for each in self.ledgers)


def checked(document: Json, public_key: bytes) -> Statement:
    """Verifies a statement's evidence and sums it up. Versions 1 and 2 are read too.

    Args:
        public_key: the raw key that the reader trusts.

    Raises:
        NotProven: what does not hold; Doubted: what the document does not tell.
    """
    try:
        dataset, key = document["dataset"], Key(LOG, ED25519, public_key)
        ledgers = [_stated_by(each, key) for each in _ledgers_of(document)]
        _check_together(str(dataset["id"]), ledgers)
        if (document["version"] == 4) != any(each.whole_delta is not None for each in ledgers):
            raise NotProven("version 4 is of a data set with two filters, and of no other")
        terms = _terms_of(document, public_key) if document["version"] in (3, 4) else None
        _require_firsts(ledgers)
        return Statement(str(dataset["id"]), str(dataset["name"]), str(dataset["unit"]), tuple(ledgers), terms)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise error if isinstance(error, NotProven) else NotProven(f"this is not a statement: {error!r}") from None


def believed(document: Json, trust: Trust, notes: Sequence[Note] = ()) -> tuple[Statement, str]:
    """Verifies a statement's evidence under a key that the reader believes for it; returns that key too.

    Args:
        notes: checkpoints from elsewhere.

    Raises:
        NotProven: what does not hold; Doubted: nothing tells whether it does.
    """
    try:
        ledgers = _ledgers_of(document)
        if not ledgers:
            raise NotProven("the first ledger is not the data set's own")
        first = Note.parse(ledgers[0]["checkpoint"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise error if isinstance(error, NotProven) else NotProven(f"this is not a statement: {error!r}") from None
    raw = {each: base64.b64decode(each, validate=True) for each in trust.keys}
    key = next((each for each in trust.keys if first.signed_by(Key(LOG, ED25519, raw[each])) is not None), None)
    if key is None:
        raise NotProven("the key did not sign the checkpoint")
    statement = checked(document, raw[key])
    signed = None if statement.terms is None else time_of(statement.terms.signed_at)
    problem = trust.problem(key, signed, covered(document, statement), notes, document.get("terms"))
    if problem is not None:
        raise (Doubted if isinstance(problem, Doubt) else NotProven)(problem)
    return statement, key


def covered(document: Json, stated: Statement) -> list[Covered]:
    """The ledgers of a statement that holds, as a witness must have seen them."""
    return [
        Covered(f"{LOG}/{each.id}", each.entries, Note.parse(ledger_document["checkpoint"]), time_of(each.last))
        for each, ledger_document in zip(stated.ledgers, _ledgers_of(document), strict=True)
    ]


def _ledgers_of(document: Json) -> list[Json]:
    if document["version"] == 1:
        return [{"id": document["dataset"]["id"], "label": "first", **document}]
    if document["version"] not in (2, 3, 4):
        raise NotProven("this is a statement of an unknown version: read it with a newer scrimp")
    return list(document["ledgers"])


def _terms_of(document: Json, public_key: bytes) -> Terms:
    """The signed terms, which must be of this data set and of the very ledgers that the document has."""
    envelope, dataset = document["terms"], document["dataset"]
    if not is_signed_by(envelope, public_key):
        raise NotProven("the key did not sign the terms")
    statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
    if (envelope["payloadType"], statement["_type"], statement["predicateType"]) != TERMS:
        raise NotProven("the terms are not those of a data set")
    predicate = statement["predicate"]
    if predicate["version"] != 1:
        raise NotProven("the terms have an unknown version: read them with a newer scrimp")
    blocks = {str(each["id"]): str(each["label"]) for each in predicate["blocks"]}
    name = predicate["name"]
    if dataset["id"] != predicate["dataset"]:  # the statement of one block alone, with the ledger that it moved to
        name = f"{name}/{blocks[dataset['id']]}"
        moves = {entry["memo"].get("joined_into") for entry in document["ledgers"][0]["entries"]}
        blocks = {each: label for each, label in blocks.items() if each in {dataset["id"], *moves}}
    if (dataset["name"], dataset["unit"]) != (name, predicate["unit"]):
        raise NotProven("the terms are of another data set")
    if blocks != {each["id"]: each["label"] for each in document["ledgers"]}:
        raise NotProven("the ledgers are not those of the terms")
    first = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    if any(first[f"ledger {each['id']}"] != each["entries"][0]["hash"] for each in document["ledgers"]):
        raise NotProven("the terms are of other ledgers")
    return Terms(str(predicate["signed_at"]), predicate["governance"], tuple(predicate["grants"]))


def _stated_by(ledger: Json, key: Key) -> Stated:
    """What one ledger's evidence says."""
    note, ledger_id = Note.parse(ledger["checkpoint"]), str(ledger["id"])
    entries = [LedgerEntry.model_validate(each) for each in ledger["entries"]]
    if note.signed_by(key) is None:
        raise NotProven("the key did not sign the checkpoint")
    recomputed = recompute_chain(ledger_id, entries)
    if recomputed.first_bad_entry is not None or not entries:
        raise NotProven(f"entry {recomputed.first_bad_entry or 1} does not fit into the chain")
    if note.size != len(entries) or not begins_with(note, ledger_id, [each.hash for each in entries]):
        raise NotProven("the entries are not those of the checkpoint")
    return _summed(ledger_id, str(ledger["label"]), [each.model_dump(mode="json") for each in entries])


def _check_together(dataset: str, ledgers: list[Stated]) -> None:
    """Raises NotProven unless the ledgers can be those of one data set: a ledger twice would hide another one."""
    if not ledgers or dataset != ledgers[0].id:
        raise NotProven("the first ledger is not the data set's own")
    if len({each.id for each in ledgers}) < len(ledgers) or len({each.label for each in ledgers}) < len(ledgers):
        raise NotProven("a block is stated twice")
    by_id = {each.id: each for each in ledgers}
    for ledger in ledgers:
        if ledger.moved_to in by_id:
            _check_moved(ledger, by_id[ledger.moved_to])
        elif ledger.whole_delta is not None and ledger.moved_to not in (None, RETIRED):
            raise NotProven("a ledger moved to one that is not stated: what was spent since is missing")
    stay = [each for each in ledgers if each.moved_to not in by_id]
    if len({(each.filter, each.order, each.cap_delta, each.whole_delta) for each in stay}) > 1:
        raise NotProven("the ledgers have different filters, orders or δ: they are not of one data set")
    moved = [each for each in ledgers if each.moved_to in by_id]
    if any((each.cap_delta + stay[0].cap_delta) * (1.0 - ROUNDING) > (each.whole_delta or 0.0) for each in moved):
        raise NotProven("the δ's of two filters are more than the cap's: they are not of one data set")


def _require_firsts(ledgers: list[Stated]) -> None:
    """Raises Doubted unless each ledger that another one moved to comes with that one (decision 53).

    What it was charged for the first one is all that was spent there only if both are seen.
    """
    reached = {each.moved_to for each in ledgers}
    for ledger in ledgers:
        if ledger.whole_delta is not None and ledger.filter == "rdp" and ledger.id not in reached:
            raise Doubted(
                f"{ledger.id} goes on from a ledger that is not stated: nothing shows that it took over all that was "
                "spent there. Ask for the statement of the data set, or of the block"
            )


def _check_moved(first: Stated, second: Stated) -> None:
    """Raises NotProven unless all that a `gdp` ledger spent and held was charged to the one that it moved to.

    A Gaussian mechanism with μ has divergence α μ²/2 at order α.
    """
    if first.filter != "gdp" or second.filter != "rdp" or not first.closed:
        raise NotProven("a ledger moved to another one between filters for which no bound is known")
    charged = second.carried.get(first.id, dict.fromkeys(ACCOUNTS, 0))
    for name in ACCOUNTS:
        exact = Fraction(second.order or 0.0) * (first.spent[name] + first.held[name]) * Fraction(1, 2000)
        if charged[name] < exact:
            raise NotProven("less was carried to a ledger than the one before it had spent")


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
        self.moved_to, self.carried = None, dict[str, dict[str, int]]()
        self.within, self.payers = dict[str, dict[str, int]](), dict[str, str]()
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
                if "budget" in memo:
                    self.payers[entry["job_id"]] = str(memo["budget"])
                    self.within.setdefault(str(memo["budget"]), dict.fromkeys(ACCOUNTS, 0))
                self.held = {name: self.held[name] + amounts[name] for name in ACCOUNTS}
            else:
                self._require(not (self.closed and "joined_into" in memo), "closes a ledger that is closed")
                self.budget = amounts
                self.caps.append(float(memo["cap_epsilon"]))
                self.closed = self.closed or "joined_into" in memo
                self.moved_to = memo.get("joined_into", self.moved_to)
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
            is_whole = all(amounts[name] + released[name] == left[name] for name in ACCOUNTS)
            self._require(is_whole, "spends and releases another amount than was held")
        else:  # a trial draws on the study's hold, which stays open
            self._require(kind == "post" and not any(released.values()), "releases a part of its study's hold")
            self.holds[study] = {name: left[name] - amounts[name] for name in ACCOUNTS}
            self._require(min(self.holds[study].values()) >= 0, "draws more than is left of its study's hold")
        self._require(kind == "post" or not any(amounts.values()), "spends, although it gives its hold back")
        if kind == "post" and "joined" in entry["memo"]:
            self.carried[str(entry["memo"]["joined"])] = amounts
            for payment in entry["memo"].get("within", ()):
                part = {name: int(payment[name]) for name in ACCOUNTS}
                fits = (
                    all(0 <= part[name] <= amounts[name] for name in ACCOUNTS) and payment["budget"] not in self.within
                )
                self._require(fits, "takes over for a budget what it cannot")
                self.within[str(payment["budget"])] = part
        if kind == "post":
            (self.jobs if str(entry["job_id"]).startswith("job_") else self.charges).add(study or entry["job_id"])
        if (payer := self.payers.get(study or entry["job_id"])) is not None:
            self.within[payer] = {name: self.within[payer][name] + amounts[name] for name in ACCOUNTS}
        self.held = {name: self.held[name] - amounts[name] - released[name] for name in ACCOUNTS}
        self.spent = {name: self.spent[name] + amounts[name] for name in ACCOUNTS}

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise NotProven(f"entry {self.place} {otherwise}")


def _summed(ledger: str, label: str, entries: list[dict[str, Any]]) -> Stated:
    sums, terms = _Sums(), entries[0]["memo"]
    for entry in entries:
        sums.take(entry)
    stated = Stated(
        id=ledger,
        label=label,
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
        jobs=frozenset(sums.jobs),
        charges=frozenset(sums.charges),
        running=frozenset(sums.holds),
        within=sums.within,
        closed=sums.closed,
        moved_to=sums.moved_to,
        carried=sums.carried,
        whole_delta=terms.get("whole_delta"),
    )
    for entry in entries:
        if entry["kind"] in ("open", "cap"):
            worth, cap = stated.epsilon(max(entry[name] for name in ACCOUNTS)), entry["memo"]["cap_epsilon"]
            if worth > cap * (1.0 + WORTH):
                raise NotProven(f"entry {entry['seq']} grants a budget that is worth ε = {worth:g}, not {cap:g}")
    return stated


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
