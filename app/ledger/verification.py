"""Recomputes a data set's ledger from its entries alone and names the first one that does not fit.

Checked for every entry: its place (1, 2, … without gaps), the previous hash, its own hash, that it follows from earlier
entries (a settlement has a hold, spent + released = held, nothing exceeds the budget), and the balances that it states.
At the end: the account's row (balances, cap, head) against the last entry, and of each sub-account the balances against
the holds that name it, and the budget against the ε that it states; and the running sums of what keys spent.

A chain that was rewritten or rolled back completely, with its row, is consistent. Kept heads and checkpoints reveal it:
those that certificates and the relay have signed, and those outside the database (app.ledger.transparency.anchors).
Each of them must be in the chain, and each signature must be valid. The tree over the entries is recomputed, with its
stored tiles.

**Going on.** A verification that found no fault leaves its state after an earlier entry n (`Replayed`). Another one may
go on from there. It reads the entries after n, the certificates of their jobs and a sum of the running sums.

Theorem: let SHA-256 have no collisions, and let entries n+1 … m fit to the state after n. Then no other history before
entry n+1 has hashes that follow from its content; and chain, tree, balances and pairing of entries 1 … m are what a
verification in full finds of them.

Proof: entry n+1 states the hash of entry n, and it fits only if that is the one that was recomputed from entries 1 … n.
A chain with another entry among them would have another hash there. What is checked is a fold over the entries: its
state after m follows from its state after n and the entries between. ∎

So a history that was verified, and then rewritten or cut off, is found, even if all that is kept in the database and
beside it agrees. A verification in full compares that hash too. Found by the next one in full alone: an entry up to n
that was changed in place and keeps its hash, another certificate or checkpoint of these entries, and running sums whose
total is right. The state lies in the memory of the process that verified: neither the database nor a folder has it.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Row, and_, func, or_, select
from sqlalchemy.orm import Session

from app.chain import digest
from app.db.models import Account, LedgerEntry, LedgerTile, SubAccount
from app.db.ordered import in_order
from app.ledger import running_sums
from app.ledger.accounts import filter_for
from app.ledger.entries import COLUMNS, balance_of, content, genesis
from app.ledger.memos import Balance, Balances, Memo
from app.ledger.transparency.anchors import Anchors, anchors
from app.ledger.transparency.heads import Head
from app.ledger.transparency.ledger_tree import TILE
from core.contracts.base import LARGEST_EPSILON
from core.errors import InvalidRequest, NotFound
from core.ids import now
from core.merkle import Frontier, leaf

ROUNDING = 1e-9
# How far a verification goes back at least to go on: certificates and checkpoints of these entries may be new.
BACK = TILE
ENTRY = [getattr(LedgerEntry, name) for name in (*COLUMNS, "hash")]


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        entries: how many entries the account's row counts.
        head: the chain's head by the account's row.
        first_bad_entry: the first place where the chain does not fit; None if it fits, or if only the account's row is
            wrong.
        problem: what does not fit there.
        heads: how many signed or recorded heads and checkpoints were checked against the chain.
        replayed: from where another verification may go on; None if there is a fault, or too little to keep.
        went_on_after: how many entries it took over from an earlier verification; 0: it read all of them.
        in_full_at: when the verification in full began that it is, or goes back to.
    """

    valid: bool
    entries: int
    head: str
    first_bad_entry: int | None = None
    problem: str | None = None
    heads: int = 0
    replayed: Replayed | None = field(default=None, compare=False, repr=False)
    went_on_after: int = field(default=0, compare=False)
    in_full_at: datetime | None = field(default=None, compare=False)


class _Misfit(Exception):
    """An entry, or the account's row, contradicts what came before it."""


def verify(
    session: Session,
    dataset_id: str,
    recorded: Head | None = None,
    outside: str | None = None,
    since: Replayed | None = None,
    *,
    in_full: bool = False,
) -> Verification:
    """Recomputes chain, tree, balances and the pairing of holds and settlements. Reads in batches; may run beside
    writers.

    Args:
        recorded: the head outside the database, read before this session's first query; None: there is none.
        outside: the checkpoint outside the database, read likewise.
        since: what was verified before, which the ledger must begin with; None: nothing.
        in_full: begins at the first entry; else after those that were verified before.

    Raises:
        NotFound: the data set has no ledger.
    """
    account, stray, parts = _snapshot(session, dataset_id)
    at = Replayed.nothing(dataset_id) if since is None or in_full else since
    first, keep = at.entries + 1, (account.entries - BACK) // TILE * TILE
    outside_anchors = anchors(session, dataset_id, recorded, outside, after=at.entries)
    replay, tree = deepcopy(at.replay), _Tree(session, dataset_id, outside_anchors, at)
    count, reached = at.heads + outside_anchors.count(at.entries), at if at.entries else None
    if since is not None and in_full:
        outside_anchors.add(since.entries, since.replay.head, "what was verified before")
    bad: int | None = at.entries
    try:
        query = select(*ENTRY).where(LedgerEntry.dataset_id == dataset_id)
        entries = in_order(session, query, LedgerEntry.seq, account.entries, after=at.entries)
        for bad, entry in enumerate(entries, start=first):
            replay.take(bad, entry)
            _require(
                outside_anchors.heads.get(bad, replay.head) == replay.head,
                f"{outside_anchors.names.get(bad)} has a different entry there",
            )
            tree.take(replay.head)
            if bad == keep:
                reached = Replayed(deepcopy(replay), tree.whole(), count - outside_anchors.count(keep), at.in_full_at)
        if replay.entries < account.entries:
            bad = replay.entries + 1
            raise _Misfit("the entry is missing")
        if stray is not None:
            bad = stray
            raise _Misfit("the account's row does not count this entry")
        if replay.head != account.head:
            raise _Misfit("its hash differs from the account's head")
        later = min(
            (seq for seq in outside_anchors.heads | outside_anchors.roots if seq > account.entries), default=None
        )
        if later is not None:
            bad = account.entries + 1
            name = outside_anchors.names.get(later) or outside_anchors.root_names[later]
            raise _Misfit(f"the entry is missing: {name} has entry {later}")
        bad = None
        replay.against(account)
        replay.against_parts(account, parts)
        drift = (running_sums.total_of if at.entries else running_sums.problem_of)(session, dataset_id)
        _require(drift is None, drift or "")
        _require(not outside_anchors.faults, "; ".join(outside_anchors.faults[:3]))
    except _Misfit as misfit:
        verification = Verification(False, account.entries, account.head, bad, str(misfit), count)
    else:
        verification = Verification(True, account.entries, account.head, heads=count, replayed=reached)
    return replace(verification, went_on_after=at.entries, in_full_at=at.in_full_at)


def _snapshot(session: Session, dataset_id: str) -> tuple[Account, int | None, list[SubAccount]]:
    """Reads the account's row, the first entry outside 1 … entries, and the sub-accounts, in one statement: concurrent
    writers do not matter."""
    stray = (
        select(func.min(LedgerEntry.seq))
        .where(
            and_(
                LedgerEntry.dataset_id == Account.dataset_id,
                or_(LedgerEntry.seq < 1, LedgerEntry.seq > Account.entries),
            )
        )
        .scalar_subquery()
    )
    query = (
        select(Account, stray, SubAccount)
        .outerjoin(SubAccount, SubAccount.dataset_id == Account.dataset_id)
        .where(Account.dataset_id == dataset_id)
        .execution_options(populate_existing=True)
    )
    rows = session.execute(query).all()
    if not rows:
        raise NotFound("this data set has no ledger")
    return rows[0][0], rows[0][1], [row[2] for row in rows if row[2] is not None]


class _Tree:
    """The tree over the entries as they are read, compared with kept roots and stored tiles."""

    def __init__(self, session: Session, dataset_id: str, outside_anchors: Anchors, at: Replayed) -> None:
        stored = select(LedgerTile.number, LedgerTile.root).where(
            LedgerTile.dataset_id == dataset_id, LedgerTile.number >= at.entries // TILE
        )
        self._tiles = {row.number: row.root for row in session.execute(stored)}
        self._kept, self._all, self._tile = outside_anchors, deepcopy(at.tree), Frontier()

    def whole(self) -> Frontier:
        """The tree as it is, which ends with a whole tile.

        Raises:
            ValueError: it does not.
        """
        if self._tile.size:
            raise ValueError("a verification goes on after whole tiles alone")
        return deepcopy(self._all)

    def take(self, head: str) -> None:
        """Takes the next entry's hash.

        Raises:
            _Misfit: the tree is not the one that was kept.
        """
        hashed = leaf(bytes.fromhex(head))
        self._all.add(hashed)
        self._tile.add(hashed)
        size = self._all.size
        if size in self._kept.roots:
            same = self._kept.roots[size] == self._all.root()
            _require(same, f"{self._kept.root_names[size]} has different entries up to there")
        if self._tile.size == TILE:
            stored = self._tiles.get(size // TILE - 1)
            _require(stored in (None, self._tile.root().hex()), "the stored tile that ends there has another root")
            self._tile = Frontier()


class Replay:
    """The serial model of the ledger; it replays entries."""

    def __init__(self, dataset_id: str) -> None:
        self.entries = 0
        self.head = genesis(dataset_id)
        self.budget, self.spent, self.held = [0, 0], [0, 0], [0, 0]
        self.holds: dict[str, list[int]] = {}  # open ones only: the unique `once` refuses a second one for a job
        self.terms: tuple[str | None, float | None, float | None] = (None, None, None)
        self.cap_epsilon = self.largest_cap_epsilon = 0.0
        self.joined_into: str | None = None
        # By sub-account: [spent, held], each of (train, holdout); and the sub-account of each open hold.
        self.parts: dict[str, list[list[int]]] = {}
        self.paid_by: dict[str, str] = {}

    def take(self, place: int, entry: Row[Any] | None) -> None:
        """Takes the next entry; None if its columns could not be decoded.

        Raises:
            _Misfit: what does not fit.
        """
        if entry is None:
            raise _Misfit("the entry cannot be read")
        _require(entry.seq == place, "the entry is missing")
        _require(entry.prev_hash == self.head, "its prev_hash is not the hash of the entry before")
        try:
            _require(digest(content(entry)) == entry.hash, "its hash does not match its content")
            self._follow(entry)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise _Misfit("the entry cannot be read") from None
        self.head = entry.hash
        self.entries = place

    def _follow(self, entry: Row[Any]) -> None:
        amounts, released = [entry.train, entry.holdout], [entry.train_released, entry.holdout_released]
        memo = Memo.of(entry.memo)
        _require((entry.kind == "open") == (entry.seq == 1), "a ledger is opened exactly once, by its first entry")
        key = {"open": "open", "cap": None, "hold": f"hold:{entry.job_id}"}.get(entry.kind, f"settle:{entry.job_id}")
        _require(entry.once == key, "its `once` does not match its kind")
        _require(min(*amounts, *released) >= 0, "an amount is negative")
        if entry.kind in ("post", "void"):
            self._settle(entry, memo, amounts, released)
        else:
            _require(not any(released), "only a settlement releases")
            if entry.kind == "hold":
                _require(self.joined_into is None, "the ledger is closed: nothing more may be admitted")
                self.holds[entry.job_id] = amounts
                self.held = _plus(self.held, amounts)
                self._take_part(entry, memo, amounts)
            else:
                self._grant(entry, memo, amounts)
        taken = _plus(self.spent, self.held)
        within = all(part <= budget for part, budget in zip(taken, self.budget, strict=True))
        _require(within, "more is spent and held than the budget")
        _require(memo.balances == self._balance(), "its stated balances differ from the recomputed ones")

    def _settle(self, entry: Row[Any], memo: Memo, amounts: list[int], released: list[int]) -> None:
        study = memo.hold
        hold = self.holds.pop(study or entry.job_id, None)
        if hold is None:
            raise _Misfit("it settles a hold that does not exist")
        if study is not None:
            # A trial draws on the study's hold, which stays open.
            _require(not any(released) and entry.kind == "post", "a trial must not release any of its study's hold")
            self.holds[study] = [part - amount for part, amount in zip(hold, amounts, strict=True)]
            _require(min(self.holds[study]) >= 0, "it draws more than is left of the study's hold")
            hold = amounts
        _require(_plus(amounts, released) == hold, "it spends and releases a different amount than was held")
        _require(entry.kind == "post" or not any(amounts), "a voided hold spends nothing")
        self.held = [held_units - part for held_units, part in zip(self.held, hold, strict=True)]
        self.spent = _plus(self.spent, amounts)
        for payment in memo.within:
            fits = payment.budget not in self.parts and payment.train <= amounts[0] and payment.holdout <= amounts[1]
            _require(fits, "it takes over for a sub-account what it cannot")
            self.parts[payment.budget] = [[payment.train, payment.holdout], [0, 0]]
        payer = self.paid_by.pop(entry.job_id, None) if study is None else self.paid_by.get(study)
        if payer is not None:
            spent, held_units = self.parts[payer]
            self.parts[payer] = [
                _plus(spent, amounts),
                [one - part for one, part in zip(held_units, hold, strict=True)],
            ]

    def _take_part(self, entry: Row[Any], memo: Memo, amounts: list[int]) -> None:
        """Takes a hold from the sub-account whose id it has."""
        payer = memo.budget
        if payer is None:
            return
        self.paid_by[entry.job_id] = payer
        spent, held_units = self.parts.get(payer, [[0, 0], [0, 0]])
        self.parts[payer] = [spent, _plus(held_units, amounts)]

    def _grant(self, entry: Row[Any], memo: Memo, budgets: list[int]) -> None:
        _require(None in (self.joined_into, memo.joined_into), "it closes a ledger that is closed")
        self.budget = budgets
        if entry.kind == "open":
            self.terms = (memo.filter, memo.order, memo.cap_delta)
        self.cap_epsilon = memo.cap
        self.joined_into = memo.joined_into or self.joined_into
        self.largest_cap_epsilon = max(self.largest_cap_epsilon, self.cap_epsilon)

    def _balance(self) -> Balances:
        parts = zip(self.budget, self.spent, self.held, strict=True)
        train, holdout = (Balance(budget=budget, spent=spent, held=held_units) for budget, spent, held_units in parts)
        return Balances(train=train, holdout=holdout)

    def against(self, account: Account) -> None:
        """Compares the account's row with the replayed entries.

        Raises:
            _Misfit: what differs.
        """
        _require(balance_of(account) == self._balance(), "the account's balances do not follow from the entries")
        terms = (account.filter, account.order, account.cap_delta)
        caps = (account.cap_epsilon, account.largest_cap_epsilon)
        same = terms == self.terms and caps == (self.cap_epsilon, self.largest_cap_epsilon)
        _require(account.joined_into == self.joined_into, "the account is closed or open contrary to the entries")
        _require(same, "the account's cap or filter differs from the entries")

    def against_parts(self, account: Account, shares: list[SubAccount]) -> None:
        """Compares the sub-accounts' rows with the replayed entries, and their budgets with the ε that they state.

        Names stay out of the problem: keys that may not see them read it.

        Raises:
            _Misfit: what differs.
        """
        rows = {
            each.id: [[each.train_spent, each.holdout_spent], [each.train_held, each.holdout_held]] for each in shares
        }
        for share_id in sorted(rows.keys() | self.parts.keys()):
            same = rows.get(share_id, [[0, 0], [0, 0]]) == self.parts.get(share_id, [[0, 0], [0, 0]])
            _require(same, f"the balances of the sub-account {share_id} do not follow from the entries")
        for part in shares:
            _require(_follows(part, account), f"the budget of the sub-account {part.id} does not follow from its ε")


@dataclass(frozen=True)
class Replayed:
    """What a verification found up to the end of a whole tile. No part of it changes: a verification copies it.

    Attributes:
        heads: how many kept heads and checkpoints of these entries were compared.
        in_full_at: when the verification in full began that it goes back to.
    """

    replay: Replay
    tree: Frontier
    heads: int
    in_full_at: datetime

    @property
    def entries(self) -> int:
        """How many entries were replayed."""
        return self.replay.entries

    @classmethod
    def nothing(cls, dataset_id: str) -> Self:
        """Before the first entry."""
        return cls(Replay(dataset_id), Frontier(), 0, now())


def _follows(share: SubAccount, account: Account) -> bool:
    """True if a sub-account's units are those of its ε at the cap's δ, and the hold-out's too if there is one.

    Both are columns of the row: the owner's own figure is in the audit log. Another version of the numeric libraries
    may round the conversion otherwise, in its last digits.
    """
    # Checked first: the conversion is for an ε that a cap may be, and searches for ever below 0. It may be above this
    # account's cap: a block that is appended after the cap was lowered has the budgets of before, and its cap binds.
    if not 0.0 < share.epsilon <= LARGEST_EPSILON:
        return False
    try:
        units = filter_for(account.filter, account.order).budget(share.epsilon, account.cap_delta)
    except InvalidRequest:  # it has no units under this filter: nothing may be held
        units = 0
    except ArithmeticError:
        return False
    same = abs(share.train_budget - units) <= ROUNDING * units + 1
    return same and share.holdout_budget == (share.train_budget if account.holdout_budget else 0)


def _require(fits: bool, problem: str) -> None:
    if not fits:
        raise _Misfit(problem)


def _plus(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
