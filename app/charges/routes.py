"""/v1/charges: budget for mechanisms that other systems run on a data set's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from sqlalchemy.orm import Session

from app.charges import service
from app.charges.schemas import ChargeList, ChargeRequest, ChargeView, Status, VoidRequest
from app.db.models import Account, Charge
from app.keys.auth import CurrentKey
from app.ledger.accounts import filter_for
from app.ledger.block_accounts import held_on
from app.web import examples
from app.web.deps import Db, Pricing, RecordedHeads
from app.web.pagination import After, Limit, cut, decode_row
from app.web.responses import as_json
from app.web.route_operation import LOCATION, Operation
from core import leaves

router = APIRouter(prefix="/v1/charges", tags=["charges"])
Once = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A fresh random string for each charge; the same string again returns the same charge.",
    ),
]


@router.post("", status_code=201, response_model=ChargeView)
@Operation(
    "The charge, held; or the charge that this Idempotency-Key made before.",
    audience="charge",
    leaves=leaves.CLAIMS,
    command="charges reserve",
    audit="charge.held",
    problems=(
        *("not-found", "forbidden", "budget-exceeded", "idempotency-key-reused", "wrong-state"),
        *("ledger-behind", "head-pending"),
    ),
    headers={**LOCATION, "Idempotent-Replayed": "?`true` if an earlier request made the charge."},
    requests=examples.RESERVE_CHARGE_REQUESTS,
)
def reserve_charge(
    body: ChargeRequest, db: Db, heads: RecordedHeads, pricing: Pricing, caller: CurrentKey, idempotency_key: Once
) -> Response:
    """Holds budget for what another system is about to compute. It may answer only after this response.

    Post the charge when anything was answered; void it if nothing was. A charge that is never settled stays held.
    """
    charge, is_new = service.reserve(db, heads, pricing.of(caller.id), caller, body, idempotency_key)
    headers = {"Location": f"/v1/charges/{charge.id}"} | ({} if is_new else {"Idempotent-Replayed": "true"})
    with db.read() as session:
        return as_json(_views(session, [charge])[0], 201, headers)


@router.get("")
@Operation(
    "A page of charges.", audience="every key", leaves=leaves.CLAIMS, command="charges list", problems=("not-found",)
)
def list_charges(
    db: Db,
    caller: CurrentKey,
    dataset: Annotated[str | None, Query(max_length=100)] = None,
    status: Status | None = None,
    after: After = None,
    limit: Limit = 50,
) -> ChargeList:
    """Lists charges on the data sets that this key may see, newest first; `dataset` is an id or a name."""
    cursor = decode_row(after)
    with db.read() as session:
        page = service.page(session, caller, dataset=dataset, status=status, after=cursor, limit=limit)
        page, following = cut(page, limit)
        return ChargeList(items=_views(session, page), next=following)


@router.get("/{charge_id}")
@Operation("The charge.", audience="every key", leaves=leaves.CLAIMS, command="charges show")
def show_charge(charge_id: str, db: Db, caller: CurrentKey) -> ChargeView:
    """Shows a charge."""
    with db.read() as session:
        return _views(session, [service.find(session, caller, charge_id)])[0]


@router.post("/{charge_id}/post")
@Operation(
    "The charge, posted.",
    audience="every key",
    leaves=leaves.CLAIMS,
    command="charges post",
    audit="charge.posted",
    problems=("forbidden", "wrong-state"),
)
def post_charge(charge_id: str, db: Db, heads: RecordedHeads, caller: CurrentKey) -> ChargeView:
    """Spends the charge: the other system has answered something."""
    charge = service.settle(db, heads, caller, charge_id)
    with db.read() as session:
        return _views(session, [charge])[0]


@router.post("/{charge_id}/void")
@Operation(
    "The charge, voided.",
    audience="every key",
    leaves=leaves.CLAIMS,
    command="charges void",
    audit="charge.voided",
    problems=("forbidden", "wrong-state"),
    requests={"a failed query": {"reason": "The query failed before it read the data."}},
)
def void_charge(charge_id: str, body: VoidRequest, db: Db, heads: RecordedHeads, caller: CurrentKey) -> ChargeView:
    """Gives the charge back. Only if the other system has answered nothing and will answer nothing under it."""
    charge = service.settle(db, heads, caller, charge_id, voided_because=body.reason)
    with db.read() as session:
        return _views(session, [charge])[0]


def _views(session: Session, charges: Sequence[Charge]) -> list[ChargeView]:
    views = []
    for charge in charges:
        account = session.get_one(Account, held_on(session, charge.id)[0])
        unit = filter_for(account.filter, account.order).unit
        train, holdout = (
            amount / budget if budget else 0.0
            for amount, budget in ((charge.train, account.train_budget), (charge.holdout, account.holdout_budget))
        )
        views.append(ChargeView.of(charge, unit=unit, share_train=train, share_holdout=holdout))
    return views
