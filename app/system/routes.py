"""/healthz (open), /readyz and /metrics (with a key)."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request

from app.keys.auth import CurrentKey, current_key
from app.system.health import checks
from app.system.prometheus import registry_for
from app.web.deps import Db, ServiceSettings

router = APIRouter(tags=["system"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers, however busy its threads are. Tells nothing else, and needs no key."""
    return {"status": "ok"}


@router.get("/readyz", dependencies=[Depends(current_key)])
def readyz(db: Db, settings: ServiceSettings, response: Response) -> dict[str, object]:
    """The database, its migrations and the broker answer; 503 where one does not."""
    found = checks(db, settings)
    ready = all(state == "ok" for state in found.values())
    response.status_code = 200 if ready else 503
    return {"status": "ready" if ready else "not ready", "checks": found}


@router.get("/metrics", response_class=Response)
def metrics(request: Request, db: Db, caller: CurrentKey) -> Response:
    """Prometheus: requests of this process (for admins); jobs by status, and budgets of the data sets that are seen."""
    registry = registry_for(caller, db, request.app.state.registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
