"""Requests for a budget: a key asks with a reason, the data set's owner approves or denies; both are told.

A request is about the sub-account that its key spends within, or about one of the key's own, which may be new or
closed. An approval sets its ε to at least what was asked, for the budget and the version that the owner saw.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.budgets import service
from app.budgets.schemas import BudgetRequestBody, BudgetRequestView, Status
from app.db.decided import decide, require_open, status_of
from app.db.models import ApiKey, BudgetRequest, Dataset, SubAccount
from app.db.newest import newest
from app.grants import service as grants
from app.grants.service import Access
from app.keys.service import Caller, is_alive, locked
from app.ledger import block_accounts, sub_accounts
from app.ledger.accounts import closed_because
from app.ledger.repository import dataset_with_account
from app.webhooks.service import announce
from core.contracts.event_kinds import BudgetEvent
from core.contracts.versions import require_match
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.ids import new_id, now

NO_SUCH_REQUEST = "there is no such request"
USUAL, LONGEST = timedelta(days=14), timedelta(days=366)


def ask(session: Session, caller: Caller, body: BudgetRequestBody) -> BudgetRequestView:
    """Asks for a budget on a data set.

    Raises:
        NotFound: no such data set, or the key may not see it, or it is public.
        Forbidden: the key may only view it.
        InvalidRequest: the request would end in the past, or after more than a year; no budget can be made from its ε.
        Conflict: `wrong-state`: the key has an open request on this data set, or its ledger is closed.
    """
    dataset, access = grants.find(session, caller, body.dataset)
    if access.level == "view":
        raise Forbidden("this key may only view the data set: ask its owner for a `train` or a `charge` grant first")
    row = dataset_with_account(session, dataset.id)[0]
    account = block_accounts.lead(session, row.id)
    if account.joined_into is not None:
        raise Conflict("wrong-state", closed_because(account))
    service.check_within_cap(account, body.epsilon)
    ends = now() + USUAL if body.expires_at is None else body.expires_at
    if not now() < ends <= now() + LONGEST:
        raise InvalidRequest.at("/expires_at", "a request must end in the future, within a year")
    locked(session, caller.id)  # two requests of one key take turns
    mine = (BudgetRequest.dataset_id == row.id, BudgetRequest.key_id == caller.id, *_is_open())
    earlier = session.scalar(select(BudgetRequest.id).where(*mine).limit(1))
    if earlier is not None:
        raise Conflict("wrong-state", f"this key has an open request on the data set already: {earlier}")
    request = BudgetRequest(
        id=new_id("breq"),
        dataset_id=row.id,
        key_id=caller.id,
        epsilon=body.epsilon,
        reason=body.reason,
        status="open",
        created_at=now(),
        expires_at=ends,
    )
    session.add(request)
    session.flush()
    audit.record(session, "budget.requested", request.id, dataset=row.id, epsilon=body.epsilon)
    _tell(session, "budget.requested", request)
    return shown(session, request)


def approve(
    session: Session, caller: Caller, request_id: str, answer: str | None, if_match: str | None
) -> BudgetRequestView:
    """Gives the key what it asked for. A budget that is larger already stays as it is.

    Raises:
        NotFound: there is no such request, or the caller may not see it.
        Forbidden: the caller does not own the data set.
        InvalidRequest, Conflict: as `service.put`; `wrong-state`: it was decided or has expired, or its key is gone.
        PreconditionRequired, PreconditionFailed: If-Match is missing, or the budget has changed.
    """
    request = _to_decide(session, caller, request_id)
    _row, account = service.locked(session, request.dataset_id)
    key = session.get_one(ApiKey, request.key_id)
    if not is_alive(key):
        raise Conflict("wrong-state", "the key that asked was revoked or has expired: deny the request")
    about = _about(session, request)
    require_match(if_match, _view(request, "open", about).tag)
    is_within = sub_accounts.of_key(session, account.dataset_id, request.key_id) is not None
    if about is None or about.epsilon < request.epsilon:
        name = request.key_id if about is None else about.name
        about = service.save(session, account, name, request.epsilon, caller.id)
    elif not is_within:
        service.note_change(about, caller.id)
    if not is_within:
        service.join_key(session, about, request.key_id)
    service.spread(session, request.dataset_id, about)
    joined = [] if is_within else [request.key_id]
    name, epsilon = about.name, about.epsilon
    audit.record(
        session, "budget.approved", request.id, dataset=request.dataset_id, name=name, epsilon=epsilon, joined=joined
    )
    return _decide(session, caller, request, "approved", answer)


def deny(session: Session, caller: Caller, request_id: str, answer: str | None) -> BudgetRequestView:
    """Refuses a request, or withdraws the caller's own; nothing changes.

    Raises:
        NotFound, Forbidden, Conflict: as `approve`, but the key that asked may.
    """
    request = _to_decide(session, caller, request_id, withdraws=True)
    audit.record(session, "budget.denied", request.id, dataset=request.dataset_id)
    return _decide(session, caller, request, "denied", answer)


def find(session: Session, caller: Caller, request_id: str) -> BudgetRequestView:
    """A request of the caller's key, or on a data set that the caller owns.

    Raises:
        NotFound: there is none.
    """
    return shown(session, _seen(session, caller, request_id)[0])


def page(
    session: Session,
    caller: Caller,
    *,
    dataset: str | None,
    status: Status | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[BudgetRequest]:
    """Newest first; one more than requested, to know if there is a next page."""
    mine = BudgetRequest.key_id == caller.id
    if not caller.is_admin and caller.role == "owner":
        mine = or_(mine, BudgetRequest.dataset_id.in_(select(Dataset.id).where(Dataset.owner_key == caller.id)))
    query = select(BudgetRequest).where(grants.visible(caller, BudgetRequest.dataset_id))
    if not caller.is_admin:
        query = query.where(mine)
    if dataset is not None:
        query = query.where(BudgetRequest.dataset_id == grants.require(session, caller, dataset, "view").id)
    if status in ("open", "expired"):
        still = BudgetRequest.expires_at > now() if status == "open" else BudgetRequest.expires_at <= now()
        query = query.where(BudgetRequest.status == "open", still)
    elif status is not None:
        query = query.where(BudgetRequest.status == status)
    return newest(session, query, BudgetRequest, after=after, limit=limit)


def shown(session: Session, request: BudgetRequest) -> BudgetRequestView:
    """Shows a request with the sub-account that it is about."""
    return _view(request, status_of(request), _about(session, request))


def _view(request: BudgetRequest, status: Status, about: SubAccount | None) -> BudgetRequestView:
    key_name, version = (request.key_id, 0) if about is None else (about.name, about.version)
    return BudgetRequestView.of(request, status=status, budget=key_name, budget_version=version)


def _about(session: Session, request: BudgetRequest) -> SubAccount | None:
    """The sub-account that the key spends within, or else the one named after the key; None: that will be new."""
    lead = block_accounts.lead(session, request.dataset_id).dataset_id
    share = sub_accounts.of_key(session, lead, request.key_id)
    about = (lead, request.key_id)
    return share if share is not None else session.get(SubAccount, about, populate_existing=True)


def _is_open() -> tuple[ColumnElement[bool], ...]:
    return (BudgetRequest.status == "open", BudgetRequest.expires_at > now())


def _seen(session: Session, caller: Caller, request_id: str, *, lock: bool = False) -> tuple[BudgetRequest, Access]:
    request = session.get(BudgetRequest, request_id, with_for_update=lock or None)
    access = None if request is None else grants.access_by_id(session, caller, request.dataset_id)
    if request is None or access is None or not (access.covers("own") or request.key_id == caller.id):
        raise NotFound(NO_SUCH_REQUEST)
    return request, access


def _to_decide(session: Session, caller: Caller, request_id: str, *, withdraws: bool = False) -> BudgetRequest:
    request, access = _seen(session, caller, request_id, lock=True)
    if not (access.covers("own") or (withdraws and request.key_id == caller.id)):
        raise Forbidden("only the data set's owner or an admin may decide on this request")
    require_open(request, "request")
    return request


def _decide(
    session: Session, caller: Caller, request: BudgetRequest, status: Status, answer: str | None
) -> BudgetRequestView:
    request.answer = answer
    decide(session, request, status, caller.id)
    _tell(session, "budget.approved" if status == "approved" else "budget.denied", request)
    return shown(session, request)


def _tell(session: Session, kind: BudgetEvent, request: BudgetRequest) -> None:
    data: dict[str, object] = {
        "request": request.id,
        "dataset": request.dataset_id,
        "key": request.key_id,
        "epsilon": request.epsilon,
        "status": request.status,
    }
    announce(session, kind, request.dataset_id, data, to=request.key_id)
