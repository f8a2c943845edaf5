"""Charges of other systems: reserved before they answer anything, then posted or, if nothing was answered, voided.

A charge is one hold on the data set's ledger under the charge's id, settled like a job's; on a data set that has grown,
one on each block that it names, or on all that are open. The service cannot see what
the other system does: a key attests it, and the ledger's entry says so. The head outside the database has the hold
before a caller hears of it, so that a restored backup cannot lose what another system has answered.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.charges.charge_cost import all_under, amounts, block_of, check_people, payer_of, read_by
from app.charges.schemas import Attested, Charged, ChargeRequest, Status
from app.datasets.moving import move
from app.db.database import Database
from app.db.models import ApiKey, Charge, Dataset
from app.db.newest import newest
from app.grants import service as grants
from app.keys.service import Caller, is_alive
from app.ledger import behind, block_accounts
from app.ledger.memos import Voided
from app.ledger.repository import dataset_with_account
from app.ledger.transparency.heads import Heads
from app.pricing.service import PricingService
from core.contracts.base import Document
from core.contracts.governance import Governance, Use
from core.errors import BudgetError, Conflict, Forbidden, InvalidRequest, NotFound, TransientError
from core.ids import new_id, now
from core.privacy.filters import Filter
from core.privacy.prices import Units


class _Declared(Document):
    """What a charge reads of a declaration."""

    model_config = ConfigDict(extra="ignore")

    governance: Governance | None = None


class _Moved(Exception):
    """The ledgers moved since a charge was counted: it must be counted again, in the currency of those that pay."""


NO_SUCH_CHARGE = "there is no such charge"


def reserve(
    db: Database, heads: Heads, pricing: PricingService, caller: Caller, request: ChargeRequest, idempotency_key: str
) -> tuple[Charge, bool]:
    """Holds a claim's whole cost, if it fits.

    Args:
        idempotency_key: the Idempotency-Key, scoped to the caller's key.

    Returns:
        The charge, and True if this call made it.

    Raises:
        BudgetError: it does not fit. Nothing is consumed.
        InvalidRequest: no theorem bounds the claim under this data set's filter, or it is about another unit, relation
            or part; the owner requires a purpose or a permit, or allows others.
        Conflict: `wrong-state`: the same key's charge is settled; `idempotency-key-reused`; `ledger-behind`;
            `head-pending`: the hold could not be recorded outside the database yet.
        NotFound, Forbidden: the key may not see the data set, or not charge it.
        LimitError: too many of the key's prices wait.
    """
    digest = request.digest
    with db.read() as session:
        dataset = dataset_with_account(session, grants.require(session, caller, request.dataset, "charge").id)[0]
        account, under, moves = payer_of(session, dataset, request.mechanism)
        charge, is_new = _replayed(session, caller, idempotency_key, digest), False
        if charge is None:
            _check_use(dataset, request.use)
    if charge is None:
        train, holdout = amounts(pricing, request, dataset, account, under)
        cost = Units(train=train, holdout=holdout)
        if moves:
            move(db, heads, caller, dataset.id, cost)
        new = _new(caller, dataset, request, idempotency_key, cost)
        try:
            _hold(db, heads, caller, request, new, under)
            charge, is_new = new, True
        except _Moved:
            return reserve(db, heads, pricing, caller, request, idempotency_key)  # a ledger moves once
        except IntegrityError:  # two concurrent requests had the same Idempotency-Key: the database admitted one
            with db.read() as session:
                charge = _replayed(session, caller, idempotency_key, digest)
            if charge is None:
                raise
    if charge.status != "held":
        raise Conflict(
            "wrong-state",
            f"the charge of this Idempotency-Key was {charge.status}: answer nothing, and reserve with a new one",
            charge=charge.id,
        )
    try:
        _record(db, heads, charge.id)
    except TransientError:
        raise Conflict(
            "head-pending",
            "the charge is held, but the ledger's head could not be written outside the database yet: answer nothing, "
            "and ask again with the same Idempotency-Key",
            charge=charge.id,
        ) from None
    return charge, is_new


def _new(caller: Caller, dataset: Dataset, request: ChargeRequest, idempotency_key: str, cost: Units) -> Charge:
    return Charge(
        id=new_id("chg"),
        dataset_id=dataset.id,
        key_id=caller.id,
        idempotency_key=idempotency_key,
        request_sha256=request.digest,
        account=request.account,
        status="held",
        mechanism=request.mechanism.model_dump(mode="json"),
        attested=request.attested,
        use=request.use,
        train=cost.train,
        holdout=cost.holdout,
        created_at=now(),
    )


def settle(db: Database, heads: Heads, caller: Caller, charge_id: str, *, voided_because: str | None = None) -> Charge:
    """Posts a charge whole, or voids it for a reason. Doing the same again changes nothing.

    Only the key that made it knows that nothing was answered. Others void only what a dead key has left behind.

    Raises:
        Conflict: `wrong-state`: it was settled in the other way.
        NotFound: there is no such charge, or the key may not see its data set.
        Forbidden: the key neither made the charge nor owns the data set.
    """
    to: Status = "posted" if voided_because is None else "voided"
    with db.write() as session:
        charge, access = _seen(session, caller, charge_id, lock=True)
        if not access.covers("own") and (caller.id != charge.key_id or not access.covers("charge")):
            raise Forbidden("only the key that made this charge, the data set's owner or an admin may settle it")
        foreign = voided_because is not None and caller.id != charge.key_id
        if foreign and is_alive(session.get_one(ApiKey, charge.key_id)):
            raise Forbidden("only the key that made this charge may void it; post it, or revoke that key first")
        if charge.status != to:
            if charge.status != "held":
                raise Conflict("wrong-state", f"this charge was {charge.status} already")
            _settle(session, charge, caller, voided_because)
    with db.read() as session:
        holds = block_accounts.held_on(session, charge.id)
    for dataset_id in holds:
        behind.record_soon(db, heads, dataset_id)
    return charge


def _check_use(dataset: Dataset, use: Use | None) -> None:
    """Checks what the charge is for against what the owner declared, as of a job."""
    rules = _Declared.model_validate(dataset.spec).governance
    fault = None if rules is None else rules.fault_of(use or Use())
    if fault is not None:
        raise InvalidRequest.at(*fault)


def _record(db: Database, heads: Heads, charge_id: str) -> None:
    """Records the heads that have a charge's hold. Raises as `behind.record`."""
    with db.read() as session:
        holds = block_accounts.held_on(session, charge_id)
    for dataset_id in holds:
        behind.record(db, heads, dataset_id)


def find(session: Session, caller: Caller, charge_id: str) -> Charge:
    """A charge on a data set that the caller may see.

    Raises:
        NotFound: there is none.
    """
    return _seen(session, caller, charge_id)[0]


def page(
    session: Session,
    caller: Caller,
    *,
    dataset: str | None,
    status: Status | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[Charge]:
    """Newest first; one more than requested, to know if there is a next page."""
    query = select(Charge).where(grants.visible(caller, Charge.dataset_id))
    if dataset is not None:
        query = query.where(Charge.dataset_id == grants.require(session, caller, dataset, "view").id)
    if status is not None:
        query = query.where(Charge.status == status)
    return newest(session, query, Charge, after=after, limit=limit)


def _seen(session: Session, caller: Caller, charge_id: str, *, lock: bool = False) -> tuple[Charge, grants.Access]:
    charge = session.get(Charge, charge_id, with_for_update=lock or None)
    access = None if charge is None else grants.access_by_id(session, caller, charge.dataset_id)
    if charge is None or access is None:
        raise NotFound(NO_SUCH_CHARGE)
    return charge, access


def _hold(db: Database, heads: Heads, caller: Caller, request: ChargeRequest, charge: Charge, under: Filter) -> None:
    """Holds a new charge on every block, if no ledger is behind its recorded head.

    Args:
        under: the filter that counted it.
    """
    dataset_id = charge.dataset_id
    with db.read() as session:
        members = block_accounts.family_of(session, dataset_id)
    for member_id in members:
        behind.require_witnessed(db, heads, member_id)
    recorded = {each: behind.read_recorded(heads, each) for each in members}
    try:
        with db.write() as session:
            grants.require(session, caller, dataset_id, "charge")
            for member_id in block_accounts.family_of(session, dataset_id):
                behind.require_current(session, recorded.get(member_id), member_id)
            _insert(session, caller, request, charge, under)
    except BudgetError as refusal:
        refusal.members["largest_epsilon_that_fits"] = None  # that is a job's
        refused = refusal.members.pop("dataset")
        with db.read() as session:
            label = block_of(session, dataset_id, refused)
        refusal.members |= {} if label is None else {"block": label}
        raise


def _insert(session: Session, caller: Caller, request: ChargeRequest, charge: Charge, under: Filter) -> None:
    attested = Attested(
        account=request.account, mechanism=request.mechanism, attested=request.attested, use=request.use
    )
    members = block_accounts.lock_family(session, charge.dataset_id)  # no block is appended meanwhile
    _check_use(session.get_one(Dataset, charge.dataset_id), request.use)  # the owner may have changed the rules
    check_people(session, charge.dataset_id, members)
    ledgers = read_by(session, request, members)
    if not all_under(session, ledgers, under):
        raise _Moved
    block_accounts.hold_all(
        session,
        ledgers or [block_accounts.paying(session, charge.dataset_id).dataset_id],
        job_id=charge.id,
        train=charge.train,
        holdout=charge.holdout,
        actor=caller.id,
        memo=Charged(charge=attested),
    )
    session.add(charge)
    session.flush()
    audit.record(session, "charge.held", charge.id, dataset=charge.dataset_id)


def _settle(session: Session, charge: Charge, caller: Caller, voided_because: str | None) -> None:
    if voided_because is None:
        block_accounts.post_all(session, charge.id, train=charge.train, holdout=charge.holdout, actor=caller.id)
        charge.status = "posted"
    else:
        block_accounts.void_all(session, charge.id, actor=caller.id, memo=Voided(reason=voided_because))
        charge.status, charge.reason = "voided", voided_because
    charge.settled_at = now()
    action: audit.Action = "charge.posted" if voided_because is None else "charge.voided"
    audit.record(session, action, charge.id, dataset=charge.dataset_id)


def _replayed(session: Session, caller: Caller, idempotency_key: str, digest: str) -> Charge | None:
    charge = session.scalar(select(Charge).where(Charge.key_id == caller.id, Charge.idempotency_key == idempotency_key))
    if charge is not None and charge.request_sha256 != digest:
        raise Conflict(
            "idempotency-key-reused",
            "this Idempotency-Key was used for another charge: use a new one",
            charge=charge.id,
        )
    return charge
