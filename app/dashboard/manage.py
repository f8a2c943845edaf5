"""/dashboard/datasets/{id}/manage: what a data set's owner may do, with the functions and rules of the REST API.

    cap                    a form that names the version that its page showed, as `If-Match` does
    declaration            a form; the answering page says once what the stored records say about it
    blocks                 added by block.js, which sends the file; retired by a form
    retire, delete         forms behind a confirmation
    who spent what         by person, with the budgets that bound them
    statement              app/dashboard/statement_page.py

Budgets and grants have pages of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from app.approvals import cap_routes
from app.dashboard.form_values import number, redeclaration
from app.dashboard.manage_view import manage_page_of
from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, UploadingViewer, Viewer
from app.datasets import block_routes, declaration_routes
from app.datasets.schemas import RedeclaredDataset
from app.keys.auth import CurrentKey
from app.ledger.routes import Pricing
from app.ledger.schemas import CapChange
from app.retention import routes as retention
from app.web.deps import Db, Parsing, RecordedHeads, ServiceSettings
from app.web.problems import answer, errors_of, validation_errors
from app.web.route_operation import Page
from core.contracts.filter_names import BUYS
from core.contracts.versions import tag_of
from core.errors import RequestError, ServiceError

router = APIRouter(prefix=f"{HOME}/datasets/{{dataset_id}}/manage", include_in_schema=False, route_class=PageRoute)
Text = Annotated[str, Form(max_length=20_000)]
ACCEPTED = 202
WAITS = "The raise waits for two persons: `scrimp approvals list` shows it."


class Service:
    """What the API's routes need, and the page that shows their outcome."""

    def __init__(
        self,
        request: Request,
        dataset_id: Id,
        db: Db,
        settings: ServiceSettings,
        heads: RecordedHeads,
        parsers: Parsing,
    ) -> None:
        self.request, self.dataset_id, self.db = request, dataset_id, db
        self.settings, self.heads, self.parsers = settings, heads, parsers

    def changed(self, viewer: Viewer, change: Callable[[], object], to: str = "/manage") -> Response:
        """Applies a change and leads on, or shows the page with its outcome or with what is wrong."""
        try:
            outcome = change()
        except ValidationError as wrong:
            errors = validation_errors(errors_of(wrong), {}, None)
            return self.page(viewer, "; ".join(f"{each['pointer'][1:]}: {each['detail']}" for each in errors), 422)
        except (ValueError, RequestError) as wrong:
            errors = wrong.members.get("errors", []) if isinstance(wrong, RequestError) else []
            text = "; ".join([str(wrong), *(f"{each['pointer']} {each['detail']}" for each in errors)])
            return self.page(viewer, text, wrong.status if isinstance(wrong, RequestError) else 422)
        if isinstance(outcome, str):
            return self.page(viewer, outcome, ACCEPTED)
        if isinstance(outcome, Declared):
            return self.page(viewer, declared=outcome)
        return RedirectResponse(f"{HOME}/datasets/{self.dataset_id}{to}", 303)

    def ended(self, viewer: Viewer, act: Callable[[str, Db, ServiceSettings, CurrentKey], object]) -> Response:
        """Ends the data set in one of two ways, and leads to its page."""
        return self.changed(viewer, lambda: act(self.dataset_id, self.db, self.settings, viewer.caller), "")

    def page(self, viewer: Viewer, problem: str = "", status: int = 200, declared: Declared | None = None) -> Response:
        """The page.

        Raises:
            NotFound: no such data set.
            Forbidden: the viewer is not its owner.
        """
        manage = manage_page_of(self.db, self.heads, viewer.caller, self.dataset_id)
        context = {"page": manage, "problem": problem, "declared": declared, "buys_mixed": BUYS["mixed"]}
        return render(self.request, "manage.html", viewer=viewer, status=status, **context)


@dataclass(frozen=True)
class Declared:
    """What the stored records say about a new version, or, with `is_dry_run`, about one that was only tried."""

    outcome: RedeclaredDataset
    is_dry_run: bool


Manager = Annotated[Service, Depends()]


@router.get("")
@Page("own")
def manage_page(service: Manager, viewer: CurrentViewer) -> Response:
    """Shows what the owner may do, and who spent what."""
    return service.page(viewer)


@router.post("/cap")
@Page("own", audit="dataset.cap_changed")
def change_cap(
    service: Manager, pricing: Pricing, viewer: PostingViewer, epsilon: Text = "", reason: Text = "", version: Text = ""
) -> Response:
    """Raises or lowers the cap, with a reason."""

    def change() -> str | None:
        body = CapChange.model_validate({"epsilon": number(epsilon), "reason": reason})
        of_version = tag_of(version)
        answer = cap_routes.change_cap(
            service.dataset_id, body, service.db, pricing, viewer.caller, service.heads, of_version
        )
        return WAITS if answer.status_code == ACCEPTED else None

    return service.changed(viewer, change, "")


@router.post("/declaration")
@Page("own", audit="dataset.redeclared")
def redeclare(
    service: Manager, viewer: PostingViewer, records: Text = "", others: Text = "", mixed: Text = ""
) -> Response:
    """Declares records anew, and other members as JSON; shows its owner once what the stored records say."""

    def change() -> Declared:
        body = redeclaration(others, records, mixed)
        outcome = declaration_routes.redeclare_dataset(
            service.dataset_id, body, service.db, service.settings, service.parsers, viewer.caller
        )
        return Declared(outcome, body.dry_run)

    return service.changed(viewer, change)


@router.post("/blocks")
@Page("its owner", audit="block.appended")
async def add_block(service: Manager, viewer: UploadingViewer) -> Response:
    """Appends a block, and shows its owner once what was read."""
    try:
        block = await block_routes.append_block(
            service.dataset_id,
            service.request,
            Response(),
            service.db,
            service.settings,
            service.parsers,
            viewer.caller,
        )
    except ServiceError as error:
        return answer(error)
    return render(service.request, "_appended.html", viewer=viewer, block=block)


@router.post("/blocks/retire")
@Page("own", audit="block.retired")
def retire_block(service: Manager, viewer: PostingViewer, label: Text = "") -> Response:
    """Retires a block, for good."""
    return service.changed(
        viewer,
        lambda: retention.retire_block(service.dataset_id, label, service.db, service.settings, viewer.caller),
    )


@router.post("/retire")
@Page("own", audit="dataset.retired")
def retire(service: Manager, viewer: PostingViewer) -> Response:
    """Takes back a data set that nothing was ever held on."""
    return service.ended(viewer, retention.retire_dataset)


@router.post("/delete")
@Page("own", audit="dataset.content_deleted")
def delete_content(service: Manager, viewer: PostingViewer) -> Response:
    """Deletes the data for good; the ledger stays."""
    return service.ended(viewer, retention.delete_content)
