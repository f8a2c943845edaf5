"""/healthz (open), /readyz and /metrics (with a key)."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request

from app.contracts.base import Document
from app.keys.auth import current_key
from app.system.health import checks
from app.web.deps import Db, ServiceSettings

router = APIRouter(tags=["system"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers, however busy its threads are. Tells nothing else, and needs no key."""
    return {"status": "ok"}


class Readiness(Document):
    status: Literal["ready", "not ready"]
    checks: dict[str, str]  # "ok", or the type of the error


@router.get(
    "/readyz",
    dependencies=[Depends(current_key)],
    responses={503: {"model": Readiness, "description": "A part does not answer."}},
)
def readyz(db: Db, settings: ServiceSettings, response: Response) -> Readiness:
    """The database, its migrations and the broker answer; 503 where one does not."""
    found = checks(db, settings)
    ready = all(state == "ok" for state in found.values())
    response.status_code = 200 if ready else 503
    return Readiness(status="ready" if ready else "not ready", checks=found)


@router.get(
    "/metrics",
    dependencies=[Depends(current_key)],
    response_class=Response,
    operation_id="show_metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """Prometheus: requests of this process; jobs by status and budgets by data set from the database."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)
