"""/healthz and /readyz (open), /metrics (with a key)."""

from __future__ import annotations

from typing import Literal, cast

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request

from app.keys.auth import CurrentKey
from app.pricing.service import PricingService
from app.system import health
from app.system.prometheus import registry_for
from app.web.deps import Db
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document

router = APIRouter(tags=["system"])


@router.get("/healthz")
@Operation("The process answers.", audience="anyone", leaves=leaves.FLEET, no_command="for monitors")
async def healthz() -> dict[str, str]:
    """Reports that the process answers, however busy its threads are. Reveals nothing else, and needs no key."""
    return {"status": "ok"}


class Readiness(Document):
    """The service's state and the state of each part."""

    status: Literal["ready", "degraded", "not ready"]
    checks: dict[str, str]  # "ok", or the type of the error


@router.get("/readyz", responses={503: {"model": Readiness, "description": "A part does not answer."}})
@Operation(
    "Database, migrations and broker answer.",
    audience="anyone",
    leaves=leaves.FLEET,
    no_command="for monitors",
    problems=("unavailable",),
)
async def readyz(request: Request, response: Response) -> Readiness:
    """Shows each part's state within the last second; needs no key. 503 if database, migrations or storage (writable,
    with room) are not well; "degraded" if the broker or the pricing process is away: jobs still queue, and the next
    request starts a pricing process; or if attempts do not have the user that SCRIMP_ATTEMPT_UID names.
    """
    results = await cast(health.Readiness, request.app.state.readiness).checks()
    pricing = cast(PricingService, request.app.state.pricing)
    results = results | {"pricing": "ok" if pricing.alive else "NotRunning"}
    state = health.status(results)
    response.status_code = 503 if state == "not ready" else 200
    return Readiness(status=state, checks=results)


@router.get(
    "/metrics",
    response_class=Response,
    operation_id="show_metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@Operation(
    "The metrics, as text.",
    name="show_metrics",
    audience="every key",
    leaves=leaves.FOR_ADMINS,
    no_command="for Prometheus",
)
def metrics(request: Request, db: Db, caller: CurrentKey) -> Response:
    """Serves Prometheus metrics: of all processes together (for admins); jobs by status and budgets of visible data
    sets."""
    registry = registry_for(caller, db, request.app.state.registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
