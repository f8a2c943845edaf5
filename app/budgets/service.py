"""Sub-accounts: the owner says what keys and teams may use of a data set's cap.

The owner's changes take the lock on the data set's account row first, as holds and settlements do. So a change sees the
balances as they are, and a hold that begins after it sees the change.
"""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.budgets.schemas import NAME, BudgetSetting, BudgetView
from app.db.models import Account, ApiKey, Dataset, SubAccount, SubAccountKey
from app.grants import service as grants
from app.keys.service import Caller, is_alive
from app.ledger import accounts, block_accounts, sub_accounts
from app.ledger.repository import dataset_with_account
from app.ledger.sub_account_rows import copy_to, keys_of, units_of, write
from core.contracts.versions import require_match
from core.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from core.ids import now

NO_SUCH_BUDGET = "there is no such budget on this data set"


def visible_to(session: Session, caller: Caller, dataset: str) -> list[BudgetView]:
    """The sub-accounts that a caller may see: all of them for the owner; else the caller's own.

    Raises:
        NotFound: no such data set, or the caller may not see it, or it is public.
    """
    dataset_row, access = grants.find(session, caller, dataset)
    row = dataset_with_account(session, dataset_row.id)[0]
    account = block_accounts.lead(session, row.id)
    if access.level == "own":
        every = sub_accounts.all_of(session, account.dataset_id)
        return [shown(session, row, account, each, all_keys=True) for each in every]
    share = sub_accounts.of_key(session, account.dataset_id, caller.id)
    return [] if share is None else [shown(session, row, account, share, all_keys=False)]


def find(session: Session, caller: Caller, dataset: str, name: str) -> BudgetView:
    """One sub-account, as `visible_to` shows it.

    Raises:
        NotFound: there is none, or the caller may not see the data set.
        Forbidden: it is not the caller's own; said of every name, so that none is given away.
    """
    for budget in visible_to(session, caller, dataset):
        if budget.name == name:
            return budget
    grants.require(session, caller, dataset, "own")
    raise NotFound(NO_SUCH_BUDGET)


def put(
    session: Session, caller: Caller, dataset: str, name: str, setting: BudgetSetting, if_match: str | None
) -> BudgetView:
    """Makes a sub-account, or changes its budget and its keys.

    Raises:
        NotFound, Forbidden: as `grants.find`; public data have no budgets.
        InvalidRequest: the ε has no budget under this filter or is above the cap, a key cannot use it, or it is named
            after a key and for others.
        Conflict: `budget-too-low`: more than that is spent and held. `wrong-state`: the ledger is closed, or a key
            spends within another sub-account.
        PreconditionRequired, PreconditionFailed: it exists, and If-Match is missing or names another version.
    """
    row, account = locked(session, grants.require(session, caller, dataset, "own").id)
    if not NAME.fullmatch(name):
        raise InvalidRequest.at("/name", "a budget's name has 1 to 100 letters, digits, dots, hyphens and underscores")
    share = session.get(SubAccount, (account.dataset_id, name), populate_existing=True)
    if share is not None:
        require_match(if_match, share.version)
    elif if_match is not None:
        raise PreconditionFailed(f"{NO_SUCH_BUDGET}: leave `If-Match` out to make it")
    keys = setting.keys if setting.keys is not None else [name] if share is None else None
    if keys is not None and set(keys) != {name} and session.get(ApiKey, name) is not None:
        raise InvalidRequest.at("/keys", "a budget named after a key is that key's alone: give a team's another name")
    saved = save(session, account, name, setting.epsilon, caller.id)
    earlier_keys = set(keys_of(session, saved))
    if keys is not None:
        _share(session, account, saved, keys)
    elif not keys_of(session, saved):
        raise InvalidRequest.at("/keys", "this budget was closed: name the keys that shall use it")
    saved.closed_at = None
    session.flush()
    spread(session, row.id, saved)
    later_keys = set(keys_of(session, saved))
    joined, left = sorted(later_keys - earlier_keys), sorted(earlier_keys - later_keys)
    audit.record(session, "budget.set", row.id, name=name, epsilon=setting.epsilon, joined=joined, left=left)
    return shown(session, row, account, saved, all_keys=True)


def close(session: Session, caller: Caller, dataset: str, name: str, if_match: str | None) -> None:
    """Ends a sub-account: its keys are bounded by the cap alone. Its holds stay, and what it spent stays spent.

    Raises:
        NotFound, Forbidden, PreconditionRequired, PreconditionFailed: as `put`.
    """
    row, account = locked(session, grants.require(session, caller, dataset, "own").id)
    share = session.get(SubAccount, (account.dataset_id, name), populate_existing=True)
    if share is None or share.closed_at is not None:
        raise NotFound(NO_SUCH_BUDGET)
    require_match(if_match, share.version)
    left = keys_of(session, share)
    mine = (SubAccountKey.dataset_id == share.dataset_id, SubAccountKey.name == name)
    session.execute(delete(SubAccountKey).where(*mine))
    note_change(share, caller.id)
    share.closed_at = share.changed_at
    spread(session, row.id, share)
    audit.record(session, "budget.closed", row.id, name=name, left=left)


def locked(session: Session, dataset_id: str) -> tuple[Dataset, Account]:
    """A data set and the account whose budgets are its own (`blocks.lead`). The accounts of all blocks are locked until
    the transaction ends: holds and other changes wait.

    Raises:
        NotFound: it is public.
        Conflict: `wrong-state`: its ledger is closed.
    """
    row, _account = dataset_with_account(session, dataset_id)
    block_accounts.lock_family(session, dataset_id)
    if (lead := block_accounts.lead(session, dataset_id)).joined_into is not None:
        raise Conflict("wrong-state", accounts.closed_because(lead))
    return row, lead


def save(session: Session, account: Account, name: str, epsilon: float, by: str) -> SubAccount:
    """Writes a sub-account's budget under the account's lock; a new one has no keys yet.

    Raises:
        InvalidRequest, Conflict: as `put`.
    """
    check_within_cap(account, epsilon)
    share = write(session, account, SubAccount(name=name, epsilon=epsilon), units_of(account, epsilon))
    note_change(share, by)
    session.flush()
    return share


def spread(session: Session, dataset_id: str, share: SubAccount) -> None:
    """Gives every other open block the data set's sub-account: the same ε, keys and version, with balances of its own.

    Call it after each change, in `locked`'s transaction: a key without one would be bounded by the block's cap alone.

    Raises:
        Conflict: `budget-too-low`: more than that is spent and held on a block.
    """
    for member_id in block_accounts.open_ones(session, block_accounts.family_of(session, dataset_id)):
        if member_id != share.dataset_id:
            copy_to(session, share, accounts.account_of(session, member_id))


def note_change(share: SubAccount, by: str) -> None:
    """Counts a change of the budget or of its keys: what others have seen of it is old."""
    share.version += 1
    share.changed_at, share.changed_by = now(), by


def join_key(session: Session, share: SubAccount, key_id: str) -> None:
    """Lets a key without a sub-account use this one."""
    session.add(SubAccountKey(dataset_id=share.dataset_id, key_id=key_id, name=share.name))
    share.closed_at = None
    session.flush()


def shown(session: Session, row: Dataset, account: Account, share: SubAccount, *, all_keys: bool) -> BudgetView:
    """Shows a sub-account, with its keys if the caller may see them."""
    return BudgetView.of(row, account, share, keys_of(session, share) if all_keys else None)


def check_within_cap(account: Account, epsilon: float) -> None:
    """Raises InvalidRequest if a budget has no units, or more than the account."""
    if units_of(account, epsilon) > account.train_budget:
        raise InvalidRequest.at("/epsilon", f"the data set's cap is ε = {account.cap_epsilon:g}: ask for at most that")


def _share(session: Session, account: Account, share: SubAccount, keys: list[str]) -> None:
    """Sets the keys of a sub-account."""
    wanted = dict.fromkeys(keys)
    for key_id in wanted:
        key = session.get(ApiKey, key_id)
        if key is None or not is_alive(key):
            raise InvalidRequest.at("/keys", f"there is no key {key_id!r} that is valid now: name keys by their ids")
        other = session.get(SubAccountKey, (account.dataset_id, key_id), populate_existing=True)
        if other is not None and other.name != share.name:
            raise Conflict(
                "wrong-state", f"{key_id} spends within the budget {other.name!r}: take it out of that one first"
            )
    stored_keys = set(keys_of(session, share))
    gone = stored_keys - wanted.keys()
    session.execute(
        delete(SubAccountKey).where(SubAccountKey.dataset_id == account.dataset_id, SubAccountKey.key_id.in_(gone))
    )
    for key_id in wanted.keys() - stored_keys:
        session.add(SubAccountKey(dataset_id=account.dataset_id, key_id=key_id, name=share.name))
    session.flush()
