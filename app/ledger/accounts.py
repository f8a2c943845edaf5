"""The life of a charge: open → hold → draw … → post or void; and changes of the cap. Nothing else moves an account.

    hold   spent + held + x ≤ budget on BOTH accounts, or nothing happens       (admission: the whole cost of a job)
    post   held −= hold, spent += x with 0 ≤ x ≤ hold                           (the end: what was started)
    draw   held −= x, spent += x with x ≤ what is left of the hold              (the end of a study's trial)
    void   held −= hold                                                         (nothing private was ever started)

Each move is ONE conditional UPDATE of the data set's one row, with CHECK constraints beside it. No isolation level is
relied on: reading a sum and inserting after it overspends under concurrency, this does not. The entry and the chain's
head are written under the row's lock. A hold takes that lock one round trip earlier, with what its entry depends on.

The caller owns the transaction (`Database.write()`). Every function happens completely or not at all, even if the
caller catches its error and commits. Amounts are integers in the filter's units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ColumnElement, bindparam, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key

from app.db.models import Account, Block, Job, LedgerEntry, SubAccount
from app.db.statement_batch import Values
from app.db.trip import Trip, round_trip
from app.ledger import memos, sub_accounts
from app.ledger.agreement import LAST_ENTRIES, check_agreement, read_entries
from app.ledger.entries import (
    ACCOUNTS,
    WRITE,
    AccountLike,
    Move,
    append,
    append_cap,
    genesis,
    new_entry,
    values_to_write,
)
from app.ledger.memos import Memo
from core.contracts.base import Document
from core.errors import BudgetError, Conflict, InvalidRequest, NotFound, PrivacyError

if TYPE_CHECKING:
    from core.privacy.filters import Filter

# The largest integer that databases hold. A larger request cannot fit; a larger budget cannot be stored.
MAX_AMOUNT = 2**63 - 1
RETIRED = "retired"  # in `joined_into`: the data set was retired, and no other ledger was charged
NO_LEDGER = "this data set has no ledger: it is public, or it does not exist"
# Each admission runs them: built once, and without the ORM.
ROW, TRAIN, HOLDOUT = ACCOUNTS.c, bindparam("more_train", type_=BigInteger), bindparam("more_holdout", type_=BigInteger)
NOTHING = memos.Nothing()
ENTRY = select(LedgerEntry).where(LedgerEntry.dataset_id == bindparam("ledger"), LedgerEntry.once == bindparam("name"))
HOLD = (
    update(ACCOUNTS)
    .where(
        ROW.dataset_id == bindparam("dataset"),
        ROW.train_spent + ROW.train_held <= ROW.train_budget - TRAIN,
        ROW.holdout_spent + ROW.holdout_held <= ROW.holdout_budget - HOLDOUT,
        ROW.joined_into.is_(None),
    )
    .values(train_held=ROW.train_held + TRAIN, holdout_held=ROW.holdout_held + HOLDOUT, entries=ROW.entries + 1)
)
# As strong as the lock of an UPDATE: entries that name the row do not wait.
LOCKED = select(ACCOUNTS).where(ROW.dataset_id == bindparam("dataset")).with_for_update(key_share=True)


@dataclass(frozen=True)
class Opening:
    """The terms of a new ledger.

    Attributes:
        has_holdout: a private hold-out exists; without one its budget is 0.
        actor: the id of the key that registers the data set, or moves its ledger.
        whole_delta: the δ of the data set's cap, where another filter has a part of it (app.ledger.second).
    """

    privacy_filter: Filter
    cap_epsilon: float
    cap_delta: float
    has_holdout: bool
    actor: str
    whole_delta: float | None = None

    @property
    def memo(self) -> memos.Opened:
        """What the first entry states."""
        privacy_filter = self.privacy_filter
        return memos.Opened(
            filter=privacy_filter.kind,
            order=privacy_filter.order,
            unit=privacy_filter.unit,
            cap_epsilon=self.cap_epsilon,
            cap_delta=self.cap_delta,
            whole_delta=self.whole_delta,
        )


def open_account(
    session: Session,
    *,
    dataset_id: str,
    privacy_filter: Filter,
    cap_epsilon: float,
    cap_delta: float,
    has_holdout: bool,
    actor: str,
) -> Account:
    """As `open_on`, for a ledger with all of a cap."""
    return open_on(session, dataset_id, Opening(privacy_filter, cap_epsilon, cap_delta, has_holdout, actor))


def open_on(session: Session, dataset_id: str, terms: Opening) -> Account:
    """Opens a ledger of a private data set. Both budgets are the cap's under the filter, frozen here.

    Raises:
        InvalidRequest: the cap has no positive budget under this filter, or one too large to count.
    """
    _check_cap(terms.cap_epsilon, terms.cap_delta)
    budget = _budget(terms.privacy_filter, terms.cap_epsilon, terms.cap_delta)
    account = Account(
        dataset_id=dataset_id,
        filter=terms.privacy_filter.kind,
        order=terms.privacy_filter.order,
        cap_epsilon=terms.cap_epsilon,
        largest_cap_epsilon=terms.cap_epsilon,
        cap_delta=terms.cap_delta,
        whole_delta=terms.whole_delta,
        train_budget=budget,
        train_spent=0,
        train_held=0,
        holdout_budget=budget if terms.has_holdout else 0,
        holdout_spent=0,
        holdout_held=0,
        entries=1,
        head=genesis(dataset_id),
    )
    amounts = (account.train_budget, account.holdout_budget)
    with session.begin_nested():
        session.add(account)
        session.flush()
        append(session, account, Move("open", None, amounts, "open", terms.actor, terms.memo))
    return account


def hold(
    session: Session,
    *,
    dataset_id: str,
    job_id: str,
    train: int,
    holdout: int,
    actor: str,
    memo: Document = NOTHING,
) -> LedgerEntry:
    """As `hold_on`, for a job of a key."""
    return hold_on(session, dataset_id, HoldTerms(job_id, train, holdout, actor, memo))


def hold_on(session: Session, dataset_id: str, terms: HoldTerms) -> LedgerEntry:
    """Reserves the whole cost of a job on both accounts, or on neither.

    Guarantee: after any interleaving of holds, spent + held ≤ budget on both accounts, and on both of each sub-account.

    Raises:
        BudgetError: it does not fit: `requested`, `remaining` (for this key), `account` (the limiting one), `unit`,
            `budget` (the limiting sub-account; None: the cap). Consumes nothing.
        PrivacyError: an amount is not an integer ≥ 0, both are 0, or the job has a hold already.
        Conflict: `ledger-behind`: the account's row differs from the last entry.
        NotFound: the data set has no ledger.
    """
    with session.begin_nested():
        with round_trip(session.connection()) as trip:
            new_hold = Hold(trip, dataset_id, terms)
        new_hold.check(session)
        with round_trip(session.connection()) as trip:
            new_hold.place(trip)
        return new_hold.entry


@dataclass(frozen=True)
class HoldTerms:
    """What is to be held, for whom.

    Attributes:
        actor: the key that asks; if it has a sub-account, the hold is taken from that too.
        within: False for what no key uses, such as the spending of a joined ledger: no sub-account pays.
    """

    job_id: str
    train: int
    holdout: int
    actor: str
    memo: Document = NOTHING
    within: bool = True

    @property
    def amounts(self) -> tuple[int, int]:
        """(train, holdout), in the filter's units."""
        return self.train, self.holdout


class Hold:
    """One hold in two round trips, which other statements may share.

        Hold(trip, …)   locks the account's row; reads it, its last entry, and an entry of the same name
        check           refuses, or knows the entry
        place           moves the balances by the conditional UPDATE and writes the entry

    Were the row not the one that was locked, no entry would state its balances: the triggers refuse that (migration
    0031). So `place` may share its trip with the commit.

    Raises:
        PrivacyError: an amount is not an integer ≥ 0, or both are 0.
    """

    def __init__(self, trip: Trip, dataset_id: str, terms: HoldTerms) -> None:
        _check_amounts(*terms.amounts)
        if not any(terms.amounts):
            raise PrivacyError("a hold of zero: a job on private data has a cost")
        self.dataset_id, self.terms, self._once = dataset_id, terms, f"hold:{terms.job_id}"
        key = terms.actor if terms.within else None
        self._account = trip.send(LOCKED, {"dataset": dataset_id})
        self._entries = trip.send(LAST_ENTRIES, {"dataset": dataset_id, "moves": 0, "once": self._once, "key": key})
        self._row: Values = {}

    def check(self, session: Session) -> None:
        """Checks the hold, and holds on the key's sub-account if it has one. An error must end the transaction.

        Raises:
            BudgetError, PrivacyError, Conflict, NotFound: as `hold`.
        """
        account, (train, holdout) = self._account.one_or_none(), self.terms.amounts
        if account is None:
            raise NotFound(NO_LEDGER)
        _forget(session, self.dataset_id)
        entries = read_entries(self._entries)
        share = self._sub_account(session, entries)
        free = remaining_of(account)
        fits = train <= free["train"] and holdout <= free["holdout"]
        if not fits or not (share is None or sub_accounts.hold(session, share, self.terms.amounts)):
            raise _refusal(account, share, train, holdout)
        check_agreement(account, account.entries, entries)
        if any(each.once == self._once for each in entries):
            raise PrivacyError("this job has a hold already")
        moved = {
            "train_held": account.train_held + train,
            "holdout_held": account.holdout_held + holdout,
            "entries": account.entries + 1,
        }
        budget, terms = None if share is None else share.id, self.terms
        move = Move("hold", terms.job_id, terms.amounts, self._once, terms.actor, terms.memo, budget=budget)
        self._row = new_entry(SimpleNamespace(**vars(account) | moved), move)

    def place(self, trip: Trip) -> None:
        """Moves the balances and writes the entry."""
        terms = self.terms
        trip.send(HOLD, {"dataset": self.dataset_id, "more_train": terms.train, "more_holdout": terms.holdout})
        trip.send(WRITE, values_to_write(self._row))

    @property
    def entry(self) -> LedgerEntry:
        """The entry, once it is placed."""
        return LedgerEntry(**self._row)

    def _sub_account(self, session: Session, entries: Sequence[SimpleNamespace]) -> SubAccount | None:
        """The key's sub-account. Read under the row's lock: an owner's change that this hold waited for applies."""
        name = next((each.own for each in entries), None)
        primary_key = (self.dataset_id, name)
        return None if name is None else session.get_one(SubAccount, primary_key, populate_existing=True)


def post(
    session: Session,
    *,
    dataset_id: str,
    job_id: str,
    train: int,
    holdout: int,
    actor: str,
    memo: Document = NOTHING,
) -> LedgerEntry:
    """Spends what a job started, at most its hold, and releases the rest in the same entry. Once a job.

    Returns:
        The entry; the existing one if the same settlement was made before.

    Raises:
        PrivacyError: no hold, more than the hold, an amount that is not an integer ≥ 0, or settled differently before.
    """
    _check_amounts(train, holdout)
    return _settle(session, dataset_id, job_id, (train, holdout), "post", actor, memo)


def draw(
    session: Session, *, dataset_id: str, job_id: str, study_id: str, train: int, holdout: int, actor: str
) -> LedgerEntry:
    """Spends from a study's hold what one trial started; the hold stays open. Once a trial.

    The entry is a `post` of the trial; its `memo` names the study whose hold it uses. It releases nothing: the rest
    goes back when the study itself is settled.

    Returns:
        The entry; the existing one if the same was drawn before.

    Raises:
        PrivacyError: no open hold, more than is left of it, an amount that is not an integer ≥ 0, or drawn differently
            before.
    """
    _check_amounts(train, holdout)
    with session.begin_nested():
        lock(session, dataset_id)
        settlement = find(session, dataset_id, f"settle:{job_id}")
        if settlement is not None:
            if (settlement.train, settlement.holdout) != (train, holdout) or Memo.of(settlement.memo).hold != study_id:
                raise PrivacyError(f"this trial was settled differently before: entry {settlement.seq}")
            return settlement
        if find(session, dataset_id, f"settle:{study_id}") is not None:
            raise PrivacyError("the study is settled: nothing is left of its hold")
        hold_entry = _hold_of(session, dataset_id, study_id)
        left = _left_of(session, hold_entry)
        if train > left[0] or holdout > left[1]:
            raise PrivacyError("more would be spent than is left of the study's hold")
        account = move(
            session,
            dataset_id,
            Account.train_held >= train,
            Account.holdout_held >= holdout,
            train_held=Account.train_held - train,
            train_spent=Account.train_spent + train,
            holdout_held=Account.holdout_held - holdout,
            holdout_spent=Account.holdout_spent + holdout,
        )
        if account is None:
            raise PrivacyError("the account holds less than this study's hold: its balances were changed from outside")
        sub_accounts.settle(session, dataset_id, _paid_by(hold_entry), (train, holdout), (train, holdout))
        return append(
            session,
            account,
            Move(
                kind="post",
                job_id=job_id,
                amounts=(train, holdout),
                once=f"settle:{job_id}",
                actor=actor,
                memo=memos.Drawn(hold=study_id),
            ),
        )


def left_of_hold(session: Session, dataset_id: str, job_id: str) -> tuple[int, int]:
    """What is left of a job's hold on the two accounts: all of it, less what the trials of a study have drawn.

    Raises:
        PrivacyError: the job has no hold.
    """
    return _left_of(session, _hold_of(session, dataset_id, job_id))


def _hold_of(session: Session, dataset_id: str, job_id: str) -> LedgerEntry:
    entry = find(session, dataset_id, f"hold:{job_id}")
    if entry is None:
        raise PrivacyError("this job has no hold to settle")
    return entry


def _left_of(session: Session, entry: LedgerEntry) -> tuple[int, int]:
    if Memo.of(entry.memo).study is None:
        return entry.train, entry.holdout
    runs = select(Job.id).where(Job.parent_id == entry.job_id)
    drawn = select(func.coalesce(func.sum(LedgerEntry.train), 0), func.coalesce(func.sum(LedgerEntry.holdout), 0))
    train, holdout = session.execute(
        drawn.where(
            LedgerEntry.dataset_id == entry.dataset_id, LedgerEntry.kind == "post", LedgerEntry.job_id.in_(runs)
        )
    ).one()
    return entry.train - int(train), entry.holdout - int(holdout)


def void(session: Session, *, dataset_id: str, job_id: str, actor: str, memo: Document = NOTHING) -> LedgerEntry:
    """Releases the whole hold of a job that never started a private step. Once a job.

    Returns:
        The entry; the existing one if the job was voided before.

    Raises:
        PrivacyError: the write-ahead record says that a step was started; no hold; or the job was posted.
    """
    entry = find(session, dataset_id, f"hold:{job_id}")
    runs = select(Job.id).where(Job.parent_id == job_id)
    owner = (
        Block.job_id.in_(runs)
        if entry is not None and Memo.of(entry.memo).study is not None
        else Block.job_id == job_id
    )
    if session.scalar(select(Block.id).where(owner, Block.last_step >= 1).limit(1)) is not None:
        raise PrivacyError("a private step of this job was started: its hold can be posted, not voided")
    return _settle(session, dataset_id, job_id, (0, 0), "void", actor, memo)


def change_cap(session: Session, *, dataset_id: str, cap_epsilon: float, actor: str, reason: str) -> LedgerEntry:
    """Raises or lowers the cap; δ, filter and order stay. The cap cannot go below what is spent and held.

    If a raise could depend on released results, the data set's guarantee is the largest cap ever granted.

    Raises:
        Conflict: `cap-too-low`: more than that is spent and held. `smallest_epsilon`: about the lowest possible cap.
            `wrong-state`: the ledger is closed.
        InvalidRequest: the cap has no positive budget under the filter.
        NotFound: the data set has no ledger.
    """
    current = account_of(session, dataset_id)
    train = budget_of_cap(current, cap_epsilon)
    privacy_filter = filter_for(current.filter, current.order)
    has_holdout = current.holdout_budget > 0
    holdout = train if has_holdout else 0
    with session.begin_nested():
        account = move(
            session,
            dataset_id,
            Account.train_spent + Account.train_held <= train,
            Account.holdout_spent + Account.holdout_held <= holdout,
            train_budget=train,
            holdout_budget=holdout,
        )
        if account is None:
            account = account_of(session, dataset_id)
            taken = max(account.train_spent + account.train_held, account.holdout_spent + account.holdout_held)
            lowest = privacy_filter.epsilon(taken, account.cap_delta)
            raise Conflict(
                "cap-too-low",
                f"the spent and held budget needs a cap of about ε = {lowest:.6g}: ask for at least that",
                smallest_epsilon=lowest,
            )
        return append_cap(session, account, cap_epsilon=cap_epsilon, joined_into=None, actor=actor, reason=reason)


def budget_of_cap(account: Account, cap_epsilon: float) -> int:
    """The budget that another cap would give this account, in its filter's units.

    Raises:
        InvalidRequest, Conflict: as `change_cap`, but `cap-too-low`.
    """
    if account.joined_into is not None:
        raise Conflict("wrong-state", closed_because(account))
    _check_cap(cap_epsilon, account.cap_delta)
    return _budget(filter_for(account.filter, account.order), cap_epsilon, account.cap_delta)


def filter_for(kind: str, order: float | None) -> Filter:
    """The filter of an account. Imported here: numeric libraries are slow to load."""
    from core.privacy.filters import filter_of  # noqa: PLC0415

    return filter_of(kind, order)


def account_of(session: Session, dataset_id: str) -> Account:
    """The current row.

    Raises:
        NotFound: the data set has no ledger.
    """
    account = session.get(Account, dataset_id, populate_existing=True)
    if account is None:
        raise NotFound(NO_LEDGER)
    return account


def remaining_of(account: AccountLike) -> dict[str, int]:
    """What may still be held on each account: nothing if the ledger is closed."""
    parts = {
        "train": account.train_budget - account.train_spent - account.train_held,
        "holdout": account.holdout_budget - account.holdout_spent - account.holdout_held,
    }
    return parts if account.joined_into is None else dict.fromkeys(parts, 0)


def closed_because(account: AccountLike) -> str:
    """Says why nothing more is admitted on a closed ledger."""
    if account.joined_into == RETIRED:
        return "this ledger is closed: its data set was retired"
    if account.whole_delta is not None:
        return (
            f"the ledger {account.dataset_id} is closed: all that it had spent was carried to {account.joined_into}, "
            "which counts any mechanism. Ask once more: that one pays, unless the database has lost it"
        )
    return "this ledger is closed: an admin has joined it to another data set's ledger"


def find(session: Session, dataset_id: str, once: str) -> LedgerEntry | None:
    """The entry with the unique name `once`."""
    return session.scalar(ENTRY, {"ledger": dataset_id, "name": once})


def _settle(
    session: Session,
    dataset_id: str,
    job_id: str,
    spent: tuple[int, int],
    kind: str,
    actor: str,
    memo: Document,
) -> LedgerEntry:
    with session.begin_nested():
        lock(session, dataset_id)
        hold_entry = _hold_of(session, dataset_id, job_id)
        hold_left = _left_of(session, hold_entry)
        settled = find(session, dataset_id, f"settle:{job_id}")
        if settled is not None:
            if (settled.kind, settled.train, settled.holdout) != (kind, *spent):
                raise PrivacyError(f"this job was settled differently before: {settled.kind} in entry {settled.seq}")
            return settled
        if spent[0] > hold_left[0] or spent[1] > hold_left[1]:
            raise PrivacyError("more would be spent than the job's hold covers")
        account = move(
            session,
            dataset_id,
            Account.train_held >= hold_left[0],
            Account.holdout_held >= hold_left[1],
            train_held=Account.train_held - hold_left[0],
            train_spent=Account.train_spent + spent[0],
            holdout_held=Account.holdout_held - hold_left[1],
            holdout_spent=Account.holdout_spent + spent[1],
        )
        if account is None:
            raise PrivacyError("the account holds less than this job's hold: its balances were changed from outside")
        sub_accounts.settle(session, dataset_id, _paid_by(hold_entry), hold_left, spent)
        return append(
            session,
            account,
            Move(
                kind="post" if kind == "post" else "void",
                job_id=job_id,
                amounts=spent,
                released=(hold_left[0] - spent[0], hold_left[1] - spent[1]),
                once=f"settle:{job_id}",
                actor=actor,
                memo=memo,
            ),
        )


def _paid_by(hold_entry: LedgerEntry) -> str | None:
    """The id of the sub-account that a hold was taken from; None: the cap alone."""
    return Memo.of(hold_entry.memo).budget


def lock(session: Session, dataset_id: str) -> None:
    """Takes the row's lock first: of two settlements at once, the second sees the first one's entry."""
    session.execute(select(Account.dataset_id).where(Account.dataset_id == dataset_id).with_for_update())


def move(session: Session, dataset_id: str, *conditions: ColumnElement[bool], **values: Any) -> Account | None:
    """The one statement that moves balances. None if a condition does not hold, or if there is no account."""
    moved = (
        update(Account)
        .where(Account.dataset_id == dataset_id, *conditions)
        .values(**values, entries=Account.entries + 1)
        .returning(Account)
    )
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(moved, execution_options=options).one_or_none()


def _forget(session: Session, dataset_id: str) -> None:
    """Has the session read the account anew when it is next asked for: a statement has moved it."""
    cached = session.identity_map.get(identity_key(Account, dataset_id))
    if cached is not None:
        session.expire(cached)


def _refusal(account: SimpleNamespace, share: SubAccount | None, train: int, holdout: int) -> BudgetError:
    """The error of a hold that does not fit.

    Args:
        share: the key's sub-account.
    """
    free = remaining_of(account)
    remaining = sub_accounts.with_own(free, share)
    requested = {"train": train, "holdout": holdout}
    binds = "train" if train > remaining["train"] else "holdout"
    unit = filter_for(account.filter, account.filter_order).unit
    inside = share.name if share is not None and remaining[binds] < free[binds] else None
    payer = f"the {binds} account" if inside is None else f"the budget {inside!r} on the {binds} account"
    budget = {"train": account.train_budget, "holdout": account.holdout_budget}[binds]
    message = f"it needs {_share(requested[binds], budget, math.ceil)} of {payer}, and "
    message += f"{_share(remaining[binds], budget, math.floor)} is left"
    if account.joined_into is not None:
        message = closed_because(account)
    return BudgetError(message, requested=requested, remaining=remaining, account=binds, unit=unit, budget=inside)


def _share(amount: int, budget: int, rounded: Callable[[Fraction], int]) -> str:
    """A part of an account's budget in percent, rounded to tenths; the amounts themselves are members of the error."""
    return f"{rounded(1000 * Fraction(amount, budget)) / 10:g} %" if budget else "more"


def _check_amounts(*amounts: int) -> None:
    for amount in amounts:
        # `type`, not isinstance: True is an int, and NaN compares false with everything.
        if type(amount) is not int or amount < 0:
            raise PrivacyError("an amount of privacy must be an integer ≥ 0")


def _check_cap(epsilon: float, delta: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0.0):
        raise InvalidRequest.at("/privacy/cap/epsilon", "the cap's epsilon must be a positive number")
    if not 0.0 < delta < 1.0:
        raise InvalidRequest.at("/privacy/cap/delta", "the cap's delta must lie between 0 and 1")


def _budget(privacy_filter: Filter, epsilon: float, delta: float) -> int:
    budget = privacy_filter.budget(epsilon, delta)
    if not 0 < budget <= MAX_AMOUNT:
        raise InvalidRequest.at(
            "/privacy/cap/epsilon", "this cap has no countable budget under this filter: choose another epsilon"
        )
    return budget
