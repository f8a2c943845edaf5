"""/dashboard/webhooks: the viewer's webhooks and their last deliveries; forms add, test, disable and delete them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, Viewer
from app.db.database import Database
from app.web.deps import Db
from app.web.route_operation import Page
from app.webhooks import service
from app.webhooks.routes import SecretKey, Targets
from app.webhooks.schemas import DeliveryView, WebhookChange, WebhookRequest, WebhookView
from core.contracts.event_kinds import WebhookEventType
from core.errors import Conflict, InvalidRequest, NotFound

PAGE = f"{HOME}/webhooks"
router = APIRouter(prefix=PAGE, include_in_schema=False, route_class=PageRoute)
Text = Annotated[str, Form(max_length=2000)]
WEBHOOKS_SHOWN, DELIVERIES_SHOWN = 50, 5


@dataclass(frozen=True)
class Card:
    """One webhook on the page."""

    webhook: WebhookView
    deliveries: list[DeliveryView]


@router.get("")
@Page("every key")
def webhooks_page(request: Request, db: Db, viewer: CurrentViewer) -> Response:
    """Shows the viewer's webhooks."""
    return _page(request, db, viewer)


@router.get("/live")
@Page("every key")
def live_webhooks(request: Request, db: Db, viewer: CurrentViewer) -> Response:
    """The changing part of the webhooks' page."""
    return render(request, "_webhooks.html", viewer=viewer, cards=_cards(db, viewer), kinds=get_args(WebhookEventType))


@router.post("")
@Page("every key", audit="webhook.created")
def add(
    request: Request,
    db: Db,
    targets: Targets,
    key: SecretKey,
    viewer: PostingViewer,
    url: Text = "",
    events: Annotated[list[str], Form()] = [],  # noqa: B006 - FastAPI copies it
    dataset: Text = "",
    description: Text = "",
) -> Response:
    """Adds a webhook; only the page that answers shows its secret."""
    try:
        webhook = WebhookRequest.model_validate(
            {"url": url.strip(), "events": events, "dataset": dataset.strip() or None, "description": description}
        )
        targets.check(webhook.url)
        with db.write() as session:
            _webhook, secret = service.create(session, key, viewer.caller, **webhook.model_dump())
    except ValidationError:
        return _page(request, db, viewer, problem="Give an address, and choose at least one event.", status=422)
    except (InvalidRequest, Conflict, NotFound) as refused:
        return _page(request, db, viewer, problem=refused.message, status=refused.status)
    return _page(request, db, viewer, secret=secret)


@router.post("/{webhook_id}/test")
@Page("every key", audit="webhook.tested")
def test(webhook_id: Id, db: Db, viewer: PostingViewer) -> Response:
    """Sends a test message."""
    with db.write() as session:
        service.test(session, viewer.caller, webhook_id)
    return RedirectResponse(f"{PAGE}#{webhook_id}", 303)


@router.post("/{webhook_id}/enabled")
@Page("every key", audit="webhook.changed")
def enable(webhook_id: Id, db: Db, viewer: PostingViewer, enabled: Annotated[bool, Form()]) -> Response:
    """Enables or disables a webhook."""
    with db.write() as session:
        service.change(session, viewer.caller, webhook_id, enabled=enabled)
    return RedirectResponse(f"{PAGE}#{webhook_id}", 303)


@router.post("/{webhook_id}/events")
@Page("every key", audit="webhook.changed")
def change_events(
    request: Request,
    webhook_id: Id,
    db: Db,
    viewer: PostingViewer,
    events: Annotated[list[str], Form()] = [],  # noqa: B006 - FastAPI copies it
    description: Text = "",
) -> Response:
    """Changes what a webhook tells of, and its description."""
    try:
        change = WebhookChange.model_validate({"events": events, "description": description.strip()})
    except ValidationError:
        return _page(request, db, viewer, problem="Choose at least one event.", status=422)
    with db.write() as session:
        service.change(session, viewer.caller, webhook_id, events=change.events, description=change.description)
    return RedirectResponse(f"{PAGE}#{webhook_id}", 303)


@router.post("/{webhook_id}/secret")
@Page("every key", audit="webhook.secret_rotated")
def rotate_secret(request: Request, webhook_id: Id, db: Db, key: SecretKey, viewer: PostingViewer) -> Response:
    """Gives a webhook a new secret; only the page that answers shows it."""
    with db.write() as session:
        _webhook, secret = service.rotate_secret(session, key, viewer.caller, webhook_id)
    return _page(request, db, viewer, secret=secret)


@router.post("/{webhook_id}/delete")
@Page("every key", audit="webhook.deleted")
def delete(webhook_id: Id, db: Db, viewer: PostingViewer) -> Response:
    """Deletes a webhook."""
    with db.write() as session:
        service.remove(session, viewer.caller, webhook_id)
    return RedirectResponse(PAGE, 303)


def _page(
    request: Request, db: Database, viewer: Viewer, *, problem: str = "", secret: str = "", status: int = 200
) -> Response:
    return render(
        request,
        "webhooks.html",
        viewer=viewer,
        status=status,
        cards=_cards(db, viewer),
        kinds=get_args(WebhookEventType),
        problem=problem,
        secret=secret,
    )


def _cards(db: Database, viewer: Viewer) -> list[Card]:
    with db.read() as session:
        webhooks = service.page(session, viewer.caller, after=None, limit=WEBHOOKS_SHOWN)[:WEBHOOKS_SHOWN]
        return [
            Card(
                WebhookView.of(webhook),
                [
                    DeliveryView.of(each)
                    for each in service.deliveries(
                        session, viewer.caller, webhook.id, after=None, limit=DELIVERIES_SHOWN
                    )[:DELIVERIES_SHOWN]
                ],
            )
            for webhook in webhooks
        ]
