"""/v1/budget-requests: keys ask for a budget within a cap, and owners answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.budgets import budget_requests
from app.budgets.schemas import BudgetDecision, BudgetRequestBody, BudgetRequestList, BudgetRequestView, Status
from app.keys.auth import CurrentKey
from app.web import examples
from app.web.conditions import IfMatch
from app.web.deps import Db
from app.web.pagination import After, Limit, cut, decode_row
from app.web.responses import as_json
from app.web.route_operation import BUDGET_TAG, LOCATION, VERSIONED, Operation
from core import leaves
from core.contracts.versions import tag_of
from core.privacy.filters import load_numerics

router = APIRouter(prefix="/v1/budget-requests", tags=["budgets"])


@router.post("", status_code=201, response_model=BudgetRequestView)
@Operation(
    "The request.",
    audience="use",
    leaves=leaves.SHARES,
    command="budgets request",
    audit="budget.requested",
    problems=("not-found", "forbidden", "not-ready", "wrong-state"),
    headers={**LOCATION, **BUDGET_TAG},
    requests={
        "for two more models": {
            "dataset": examples.DATASET,
            "epsilon": 2.0,
            "reason": "Two more models for the report.",
        }
    },
)
def request_budget(body: BudgetRequestBody, db: Db, caller: CurrentKey) -> Response:
    """Asks the owner for a budget within a data set's cap, or for a larger one."""
    load_numerics()
    with db.write() as session:
        view = budget_requests.ask(session, caller, body)
    return _answer(view, 201, {"Location": f"/v1/budget-requests/{view.id}"})


@router.get("")
@Operation(
    "A page of requests.",
    audience="every key",
    leaves=leaves.SHARES,
    command="budgets requests",
    problems=("not-found", "not-ready"),
)
def list_budget_requests(
    db: Db,
    caller: CurrentKey,
    dataset: Annotated[str | None, Query(max_length=100)] = None,
    status: Status | None = None,
    after: After = None,
    limit: Limit = 50,
) -> BudgetRequestList:
    """Lists the key's own requests and those on data sets that it owns, newest first."""
    cursor = decode_row(after)
    with db.read() as session:
        page = budget_requests.page(session, caller, dataset=dataset, status=status, after=cursor, limit=limit)
        page, following = cut(page, limit)
        return BudgetRequestList(items=[budget_requests.shown(session, each) for each in page], next=following)


@router.get("/{request_id}", response_model=BudgetRequestView)
@Operation("The request.", audience="every key", leaves=leaves.SHARES, command="budgets approve", headers=BUDGET_TAG)
def show_budget_request(request_id: str, db: Db, caller: CurrentKey) -> Response:
    """Shows a request; its `ETag` is the budget that it is about, with its version."""
    with db.read() as session:
        return _answer(budget_requests.find(session, caller, request_id))


@router.post("/{request_id}/approve", response_model=BudgetRequestView)
@Operation(
    "The request, approved.",
    audience="every key",
    leaves=leaves.SHARES,
    command="budgets approve",
    audit="budget.approved",
    problems=("forbidden", "wrong-state", *VERSIONED),
    headers=BUDGET_TAG,
    requests={"with a word": {"answer": "Until March."}},
)
def approve_budget_request(
    request_id: str, body: BudgetDecision, db: Db, caller: CurrentKey, if_match: IfMatch = None
) -> Response:
    """Gives the key what it asked for, if the budget is still the one that the owner saw (`If-Match`)."""
    load_numerics()
    with db.write() as session:
        return _answer(budget_requests.approve(session, caller, request_id, body.answer, if_match))


@router.post("/{request_id}/deny", response_model=BudgetRequestView)
@Operation(
    "The request, denied.",
    audience="every key",
    leaves=leaves.SHARES,
    command="budgets deny",
    audit="budget.denied",
    problems=("forbidden", "wrong-state"),
    headers=BUDGET_TAG,
    requests={"with a word": {"answer": "The study has ended."}},
)
def deny_budget_request(request_id: str, body: BudgetDecision, db: Db, caller: CurrentKey) -> Response:
    """Refuses a request, or withdraws the key's own. Nothing changes."""
    with db.write() as session:
        return _answer(budget_requests.deny(session, caller, request_id, body.answer))


def _answer(view: BudgetRequestView, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return as_json(view, status, {"ETag": tag_of(view.tag)} | (headers or {}))
