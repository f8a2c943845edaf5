"""/dashboard/datasets/{id}/budgets: budgets within a data set's cap, with the functions and rules of the REST API.

Its owner sets, changes and closes them, and answers requests. A key that may train or charge sees its own budget and
asks for one, or for a larger one. A form names the version that its page showed, as `If-Match` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.budgets import budget_requests, service
from app.budgets.schemas import (
    BudgetDecision,
    BudgetRequestBody,
    BudgetRequestView,
    BudgetSetting,
    BudgetView,
)
from app.dashboard.names import key_names
from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, Viewer
from app.db.database import Database
from app.grants import service as grants
from app.grants.service import Access
from app.keys.service import Caller
from app.web.deps import Db
from app.web.route_operation import Page
from core.contracts.versions import tag_of
from core.errors import Conflict, Forbidden, InvalidRequest, PreconditionFailed, RequestError
from core.privacy.filters import load_numerics

router = APIRouter(prefix=f"{HOME}/datasets/{{dataset_id}}/budgets", include_in_schema=False, route_class=PageRoute)
Text = Annotated[str, Form(max_length=1000)]
Keys = Annotated[tuple[str, ...], Form(max_length=100)]
REFUSALS = (InvalidRequest, Conflict, Forbidden, PreconditionFailed)
REQUESTS_SHOWN = 50
NOT_A_NUMBER = "Give ε as a number from 0.0001 to 100."


@dataclass(frozen=True)
class BudgetsPage:
    """What the page shows.

    Attributes:
        keys: who may share a budget, by id: keys with a grant to train or charge, for the owner alone.
        requests: the open ones, newest first.
    """

    id: str
    name: str
    access: Access
    within: list[BudgetView]
    requests: list[BudgetRequestView]
    keys: dict[str, str]
    names: dict[str, str]

    @property
    def is_owner(self) -> bool:
        return self.access.level == "own"


@router.get("")
@Page("view")
def budgets_page(request: Request, dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Shows the budgets that the viewer may see, and the forms that the viewer may send."""
    return _page(request, db, viewer, dataset_id)


@router.post("")
@Page("view", audit="budget.set")
def set_budget(
    request: Request,
    dataset_id: Id,
    db: Db,
    viewer: PostingViewer,
    keys: Keys = (),
    name: Text = "",
    epsilon: Text = "",
    version: Text = "",
) -> Response:
    """Makes a budget, or changes the version of it that the form shows."""

    def change(session: Session) -> None:
        setting = BudgetSetting.model_validate({"epsilon": float(epsilon), "keys": list(keys) or None})
        if_match = tag_of(version) if version else None
        service.put(session, viewer.caller, dataset_id, _named(name.strip(), keys), setting, if_match)

    return _changed(request, db, viewer, dataset_id, change)


@router.post("/close")
@Page("own", audit="budget.closed")
def close_budget(
    request: Request, dataset_id: Id, db: Db, viewer: PostingViewer, name: Text = "", version: Text = ""
) -> Response:
    """Ends a budget: the cap alone bounds its keys."""

    def change(session: Session) -> None:
        service.close(session, viewer.caller, dataset_id, name, tag_of(version))

    return _changed(request, db, viewer, dataset_id, change)


@router.post("/requests")
@Page("view", audit="budget.requested")
def ask(
    request: Request, dataset_id: Id, db: Db, viewer: PostingViewer, epsilon: Text = "", reason: Text = ""
) -> Response:
    """Asks the owner for a budget, or for a larger one."""

    def change(session: Session) -> None:
        body = {"dataset": dataset_id, "epsilon": float(epsilon), "reason": reason}
        budget_requests.ask(session, viewer.caller, BudgetRequestBody.model_validate(body))

    return _changed(request, db, viewer, dataset_id, change)


@router.post("/requests/{request_id}")
@Page("every key", audit="budget.denied")
def answer(
    request: Request,
    dataset_id: Id,
    request_id: Id,
    db: Db,
    viewer: PostingViewer,
    decision: Text = "",
    words: Text = "",
    tag: Text = "",
) -> Response:
    """Approves or denies a request, or withdraws the viewer's own."""

    def change(session: Session) -> None:
        answer_text = BudgetDecision.model_validate({"answer": words.strip() or None}).answer
        if decision == "approve":
            budget_requests.approve(session, viewer.caller, request_id, answer_text, tag_of(tag))
        else:
            budget_requests.deny(session, viewer.caller, request_id, answer_text)

    return _changed(request, db, viewer, dataset_id, change)


def _named(name: str, keys: tuple[str, ...]) -> str:
    """A budget's name: the given one, or the key that it is for.

    Raises:
        InvalidRequest: a team's budget has no name.
    """
    if name:
        return name
    if len(keys) != 1:
        raise InvalidRequest("Choose one key, or give the budget of a team a name.")
    return keys[0]


def _changed(
    request: Request, db: Database, viewer: Viewer, dataset_id: str, change: Callable[[Session], None]
) -> Response:
    """Applies a change and leads back to the page, or shows the page with what is wrong."""
    load_numerics()
    try:
        with db.write() as session:
            change(session)
    except ValidationError as wrong:
        return _page(request, db, viewer, dataset_id, problem=_said(wrong), status=422)
    except ValueError:
        return _page(request, db, viewer, dataset_id, problem=NOT_A_NUMBER, status=422)
    except REFUSALS as refused:
        return _page(request, db, viewer, dataset_id, problem=_sentence(refused), status=refused.status)
    return RedirectResponse(f"{HOME}/datasets/{dataset_id}/budgets", 303)


def _said(wrong: ValidationError) -> str:
    """What is wrong with a form, by its first field."""
    match wrong.errors()[0]["loc"]:
        case ("reason", *_):
            return "Give a reason of at most 1,000 characters, so that the owner can decide."
        case ("answer", *_):
            return "Give an answer of at most 1,000 characters, or none."
        case _:
            return NOT_A_NUMBER


def _sentence(refused: RequestError) -> str:
    return refused.message[:1].upper() + refused.message[1:]


def _page(
    request: Request, db: Database, viewer: Viewer, dataset_id: str, *, problem: str = "", status: int = 200
) -> Response:
    with db.read() as session:
        page = _gathered(session, viewer.caller, dataset_id)
    return render(request, "budgets.html", viewer=viewer, status=status, page=page, problem=problem)


def _gathered(session: Session, caller: Caller, dataset_id: str) -> BudgetsPage:
    """Gathers the page.

    Raises:
        NotFound: no such data set, the caller may not see it, or it is public.
    """
    row, access = grants.find(session, caller, dataset_id)
    within = service.visible_to(session, caller, row.id)
    open_requests = budget_requests.page(
        session, caller, dataset=row.id, status="open", after=None, limit=REQUESTS_SHOWN
    )
    granted = grants.list_grants(session, caller, row.id) if access.level == "own" else []
    keys = {key.id: key.name for grant, key in granted if grant.access != "view"}
    sharing = {key for each in within for key in each.keys or ()}
    names = key_names(
        session, caller, access, sharing | {each.key_id for each in open_requests} | {each.name for each in within}
    )
    keys |= {key: names[key] for key in sorted(sharing - keys.keys())}
    views = [budget_requests.shown(session, each) for each in open_requests[:REQUESTS_SHOWN]]
    return BudgetsPage(row.id, row.name, access, within, views, keys, names)
