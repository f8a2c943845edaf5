"""/v1/datasets/{id}/budgets: what keys and teams may use of a data set's cap. Owners and admins change it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.budgets import service, spending
from app.budgets.schemas import BudgetList, BudgetSetting, BudgetView, Name
from app.budgets.spending import SpendingView
from app.keys.auth import CurrentKey
from app.web import examples
from app.web.conditions import IfMatch
from app.web.deps import Db
from app.web.responses import as_json
from app.web.route_operation import BUDGET_TAG, VERSIONED, Operation
from core import leaves
from core.contracts.versions import tag_of
from core.privacy.filters import load_numerics

router = APIRouter(prefix="/v1/datasets/{dataset_id}/budgets", tags=["budgets"])
spending_router = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["budgets"])
OfBudget = Annotated[Name, Path(description="A key's id, or a team's name.")]


@router.get("")
@Operation(
    "The budgets that this key may see.",
    audience="view",
    leaves=leaves.SHARES,
    command="budgets list",
    problems=("not-ready",),
)
def list_budgets(dataset_id: str, db: Db, caller: CurrentKey) -> BudgetList:
    """Lists the budgets within the cap: all of them for the owner, else the calling key's own."""
    with db.read() as session:
        return BudgetList(items=service.visible_to(session, caller, dataset_id))


@spending_router.get("/spending")
@Operation("Who spent what.", audience="view", leaves=leaves.SHARES, command="ledger spending", problems=("not-ready",))
def show_spending(dataset_id: str, db: Db, caller: CurrentKey) -> SpendingView:
    """Shows what each key spent, whoever posted it, summed over the data set's blocks. Its owner and admins read names.

    A block's id names that block alone.
    """
    with db.read() as session:
        return spending.spending(session, caller, dataset_id)


@router.get("/{budget}", response_model=BudgetView)
@Operation(
    "The budget.",
    audience="own",
    leaves=leaves.SHARES,
    command="budgets show",
    problems=("forbidden", "not-ready"),
    headers=BUDGET_TAG,
)
def show_budget(dataset_id: str, budget: OfBudget, db: Db, caller: CurrentKey) -> Response:
    """Shows one budget, with its balances."""
    with db.read() as session:
        return _answer(service.find(session, caller, dataset_id, budget))


@router.put("/{budget}", response_model=BudgetView)
@Operation(
    "The budget.",
    audience="own",
    leaves=leaves.SHARES,
    command="budgets set",
    audit="budget.set",
    problems=("forbidden", "not-ready", "wrong-state", "budget-too-low", *VERSIONED),
    headers=BUDGET_TAG,
    requests={
        "a team of two": {"epsilon": 2.0, "keys": [examples.KEY, "key_5zq7x2m5k3v6n1b8c9d0fa"]},
        "the same keys": {"epsilon": 3.0},
    },
)
def set_budget(
    dataset_id: str, budget: OfBudget, body: BudgetSetting, db: Db, caller: CurrentKey, if_match: IfMatch = None
) -> Response:
    """Sets what the keys of a budget may use together. To change one that exists, send `If-Match`."""
    load_numerics()
    with db.write() as session:
        view = service.put(session, caller, dataset_id, budget, body, if_match)
    return _answer(view)


@router.delete("/{budget}", status_code=204)
@Operation(
    "The budget is closed.",
    audience="own",
    leaves=leaves.OWNERS_ACTIONS,
    command="budgets close",
    audit="budget.closed",
    problems=("forbidden", "not-ready", "wrong-state", *VERSIONED),
)
def close_budget(dataset_id: str, budget: OfBudget, db: Db, caller: CurrentKey, if_match: IfMatch = None) -> Response:
    """Ends a budget: the cap alone bounds its keys. What it spent stays spent."""
    with db.write() as session:
        service.close(session, caller, dataset_id, budget, if_match)
    return Response(status_code=204)


def _answer(view: BudgetView) -> Response:
    return as_json(view, 200, {"ETag": tag_of(view.version)})
