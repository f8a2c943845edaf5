"""create_app(): the API's routers, error handlers, limits and lifespan. Never loads torch."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app.audit.origin import Origins
from app.audit.routes import router as audit_router
from app.dashboard.routes import router as dashboard_router
from app.dashboard.webhooks import router as webhook_pages_router
from app.datasets import service as datasets
from app.datasets.parsing import Parsers
from app.datasets.routes import router as datasets_router
from app.db.engine import Database
from app.grants.routes import router as grants_router
from app.jobs.pricing import PricingService
from app.jobs.routes import router as jobs_router
from app.jobs.stream import EventHub
from app.keys.auth import current_key
from app.keys.routes import router as keys_router
from app.ledger.routes import router as ledger_router
from app.secrets import load_secret
from app.settings import Settings, get_settings
from app.system.prometheus import RequestMetrics, make_registry
from app.system.routes import router as system_router
from app.web import problems
from app.web.limits import BodyLimit
from app.web.ratelimit import RequestLimits
from app.webhooks.routes import router as webhooks_router
from app.webhooks.targets import Policy
from app.workers.routes import router as workers_router

# Room for the multipart envelope and the spec beside the file itself.
UPLOAD_ENVELOPE_BYTES = 4 * 1024 * 1024


def create_app(settings: Settings | None = None) -> FastAPI:
    """The API. Needs a migrated database and the API's secrets (`scrimp serve` makes both for an embedded home)."""
    settings = settings or get_settings()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    db = Database.of(settings)
    pricing = PricingService(db, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        pricing.warm()
        # What registrations that crashed left behind; a second API process finds it done.
        await run_in_threadpool(datasets.sweep, settings)
        yield
        pricing.close()
        db.close()

    # /docs waits for vendored assets (no CDN); the document itself needs a key like every route.
    app = FastAPI(
        title="Scrimp",
        version=version("scrimp"),
        summary="Differentially private training with a ledger that can not be overspent.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.settings, app.state.db, app.state.pricing, app.state.hub = settings, db, pricing, EventHub(db)
    app.state.parsers = Parsers(settings)
    app.state.pepper = load_secret(settings, "api_key_pepper")
    app.state.limits = RequestLimits(settings)
    app.state.webhook_key = load_secret(settings, "webhook_key")
    app.state.webhook_policy = Policy.of(settings)
    app.state.registry = make_registry(db)
    problems.install(app)
    for router in (
        system_router,
        keys_router,
        datasets_router,
        grants_router,
        ledger_router,
        jobs_router,
        workers_router,
        webhooks_router,
        audit_router,
        webhook_pages_router,
        dashboard_router,
    ):
        app.include_router(router)
    _add_openapi(app)
    app.add_middleware(
        BodyLimit,
        limit=settings.max_body_bytes,
        upload_limit=2 * settings.max_upload_bytes + UPLOAD_ENVELOPE_BYTES,
        upload_path="/v1/datasets",
    )
    app.add_middleware(Origins, db=db, trusted_proxies=settings.trusted_proxies)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=settings.allowed_hosts)
    app.add_middleware(RequestMetrics, registry=app.state.registry)
    return app


def _add_openapi(app: FastAPI) -> None:
    @app.get("/openapi.json", include_in_schema=False, dependencies=[Depends(current_key)])
    def openapi() -> dict[str, object]:
        return app.openapi()
