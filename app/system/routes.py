"""/healthz (open), /readyz and /metrics (with a key)."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request

from app.contracts.base import Document
from app.jobs.pricing import PricingService
from app.keys.auth import CurrentKey, current_key
from app.system.health import checks, status
from app.system.prometheus import registry_for
from app.web.deps import Db, ServiceSettings, get_pricing

router = APIRouter(tags=["system"])
Pricing = Annotated[PricingService, Depends(get_pricing)]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers, however busy its threads are. Tells nothing else, and needs no key."""
    return {"status": "ok"}


class Readiness(Document):
    status: Literal["ready", "degraded", "not ready"]
    checks: dict[str, str]  # "ok", or the type of the error


@router.get(
    "/readyz",
    dependencies=[Depends(current_key)],
    responses={503: {"model": Readiness, "description": "A part does not answer."}},
)
def readyz(db: Db, settings: ServiceSettings, pricing: Pricing, response: Response) -> Readiness:
    """Each part by name. 503 where database, migrations or storage (writable, with room) are not well; "degraded" where
    the broker or the pricing process is away: jobs queue all the same, and a process that prices is started when asked.
    """
    found = checks(db, settings) | {"pricing": "ok" if pricing.alive else "NotRunning"}
    state = status(found)
    response.status_code = 503 if state == "not ready" else 200
    return Readiness(status=state, checks=found)


@router.get(
    "/metrics",
    response_class=Response,
    operation_id="show_metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request, db: Db, caller: CurrentKey) -> Response:
    """Prometheus: requests of this process (for admins); jobs by status, and budgets of the data sets that are seen."""
    registry = registry_for(caller, db, request.app.state.registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
