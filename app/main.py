"""create_app(): the API's routers, error handlers, limits and lifespan. Never loads torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version

from anyio import CapacityLimiter
from fastapi import FastAPI
from pydantic.warnings import UnsupportedFieldAttributeWarning
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

from app.approvals.cap_routes import router as cap_router
from app.approvals.routes import router as approvals_router
from app.audit.routes import router as audit_router
from app.budgets.request_routes import router as budget_requests_router
from app.budgets.routes import router as budgets_router
from app.budgets.routes import spending_router
from app.catalogue.routes import router as catalogue_router
from app.charges.routes import router as charges_router
from app.dashboard.approvals_page import router as approval_pages_router
from app.dashboard.audit_page import router as audit_page_router
from app.dashboard.budgets_page import router as budget_pages_router
from app.dashboard.compare import router as compare_page_router
from app.dashboard.dataset_pages import router as dataset_pages_router
from app.dashboard.egress_page import router as egress_pages_router
from app.dashboard.entries_csv import router as entries_router
from app.dashboard.graphs_page import router as graph_pages_router
from app.dashboard.job_actions import router as job_actions_router
from app.dashboard.job_list import router as job_list_page_router
from app.dashboard.job_pages import router as job_pages_router
from app.dashboard.keys_page import router as key_pages_router
from app.dashboard.list_stream import router as list_stream_router
from app.dashboard.manage import router as manage_pages_router
from app.dashboard.page_stream import router as change_stream_router
from app.dashboard.register import router as register_page_router
from app.dashboard.routes import root as root_router
from app.dashboard.routes import router as dashboard_router
from app.dashboard.sign_in import router as sign_in_router
from app.dashboard.signing_keys import router as signing_keys_page_router
from app.dashboard.single_sign_on import router as single_sign_on_router
from app.dashboard.statement_page import router as statement_page_router
from app.dashboard.submit import router as submit_page_router
from app.dashboard.usage_page import router as usage_page_router
from app.dashboard.webhooks_page import router as webhook_pages_router
from app.dashboard.workers_page import router as worker_pages_router
from app.datasets import readings, resumable, volume
from app.datasets import service as datasets
from app.datasets.block_list import router as block_list_router
from app.datasets.block_routes import router as blocks_router
from app.datasets.declaration_routes import router as declarations_router
from app.datasets.parsing import Parsers
from app.datasets.reader import Reader
from app.datasets.reading_routes import router as readings_router
from app.datasets.register_routes import router as registrations_router
from app.datasets.resumable_routes import router as uploads_router
from app.datasets.routes import router as datasets_router
from app.db.database import Database
from app.docs.routes import router as docs_router
from app.egress.note_routes import router as note_router
from app.egress.routes import router as egress_router
from app.front import Front
from app.grants import service as grants
from app.grants.routes import router as grants_router
from app.graphs.routes import router as graphs_router
from app.identity.provider import Provider
from app.jobs.event_stream import EventHub
from app.jobs.file_routes import router as job_files_router
from app.jobs.list_routes import router as job_list_router
from app.jobs.quote_routes import forecast_router
from app.jobs.quote_routes import router as quotes_router
from app.jobs.routes import router as jobs_router
from app.jobs.show_routes import router as job_router
from app.keys.gate import NamedCheck
from app.keys.recent import RecentKeys
from app.keys.routes import router as keys_router
from app.ledger.routes import router as ledger_router
from app.ledger.signing_key_routes import router as signing_keys_router
from app.ledger.statement_routes import router as statement_router
from app.ledger.transparency.checkpoint_routes import router as checkpoints_router
from app.ledger.transparency.heads import Heads
from app.lifecycle.mark_survey import compare, survey
from app.lifecycle.marks import Marks
from app.lifecycle.measures import Measures
from app.predictions.routes import router as predictions_router
from app.predictions.service import require_model
from app.pricing.service import PricingService
from app.retention.routes import router as retention_router
from app.secrets import load_secret, load_secrets
from app.settings import Settings, get_settings
from app.storage import objects
from app.system.health import Readiness, checks
from app.system.prometheus import make_registry
from app.system.routes import router as system_router
from app.system.safeguards import router as safeguards_router
from app.system.workers import router as workers_router
from app.usage.routes import router as usage_router
from app.web import openapi, problems
from app.web.open_lists import ListHub
from app.web.ratelimit import RequestLimits
from app.webhooks.addresses import Addresses
from app.webhooks.routes import router as webhooks_router
from core.errors import Unavailable

logger = logging.getLogger(__name__)
# FastAPI ignores it too, where it builds the adapter of a body itself; ours are built later (`Deferred`).
warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
# For requests that may wait for a price: at most sixteen of a key, and those that are computed.
PRICING_THREADS = 256
# A request is compared with one route after the other: what is asked most comes first.
ROUTERS = (
    job_router,
    job_list_router,
    jobs_router,
    quotes_router,
    job_files_router,
    system_router,
    keys_router,
    datasets_router,
    registrations_router,
    readings_router,
    declarations_router,
    blocks_router,
    block_list_router,
    uploads_router,
    graphs_router,
    grants_router,
    ledger_router,
    statement_router,
    cap_router,
    approvals_router,
    egress_router,
    note_router,
    checkpoints_router,
    budgets_router,
    spending_router,
    budget_requests_router,
    charges_router,
    signing_keys_router,
    forecast_router,
    predictions_router,
    retention_router,
    workers_router,
    safeguards_router,
    usage_router,
    webhooks_router,
    audit_router,
    webhook_pages_router,
    submit_page_router,
    entries_router,
    compare_page_router,
    register_page_router,
    worker_pages_router,
    usage_page_router,
    graph_pages_router,
    key_pages_router,
    signing_keys_page_router,
    audit_page_router,
    manage_pages_router,
    budget_pages_router,
    change_stream_router,
    list_stream_router,
    catalogue_router,
    statement_page_router,
    approval_pages_router,
    egress_pages_router,
    job_list_page_router,
    job_pages_router,
    job_actions_router,
    dataset_pages_router,
    sign_in_router,
    single_sign_on_router,
    dashboard_router,
    root_router,
    docs_router,
)
OWNED = NamedCheck("dataset_id", partial(grants.require, needed="own", blocks=True))
# Of routes with large bodies: what they check first of what their address names.
NAMED = {
    "/v1/datasets/{dataset_id}/blocks": OWNED,
    "/v1/datasets/{dataset_id}/declarations": OWNED,
    "/v1/jobs/{job_id}/predict": NamedCheck("job_id", require_model),
}


def create_app(settings: Settings | None = None) -> FastAPI:
    """Makes the API. Needs a migrated database and the API's secrets (`scrimp serve` makes both for an
    embedded home)."""
    settings = settings or get_settings()
    db = Database.of(settings)
    measures = Measures(db)
    pricing, reader = PricingService(db, settings, measures), Reader(db, settings, spare=True)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        pricing.warm()
        await run_in_threadpool(_look_around, db, settings)
        reader.start()
        measures.start()
        yield
        await run_in_threadpool(measures.close)
        await run_in_threadpool(reader.close)
        pricing.close()
        db.close()

    app = FastAPI(
        routes=_routes(),
        title="Scrimp",
        version=_version(),
        lifespan=lifespan,
        # app.docs serves both: they need a key, or the dashboard's session.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # An address has one spelling; a redirect would be one more response of every route.
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
    )
    app.state.settings, app.state.db, app.state.pricing = settings, db, pricing
    app.state.pricing_threads = CapacityLimiter(PRICING_THREADS)
    app.state.hub = EventHub(db, settings.max_streams, settings.max_streams_per_key)
    app.state.lists = ListHub(db)
    app.state.parsers, app.state.heads = Parsers(settings), Heads.of(settings)
    app.state.peppers = load_secrets(settings, "api_key_pepper")
    app.state.recent_keys, app.state.limits = RecentKeys(), RequestLimits(settings)
    app.state.webhook_key = load_secret(settings, "webhook_key")
    if settings.encrypt_parts:
        load_secret(settings, "parts_key")
    app.state.provider = Provider.of(settings)
    app.state.webhook_addresses = Addresses.of(settings)
    app.state.readiness = Readiness(lambda: checks(db, settings))
    app.state.registry = make_registry(db, settings, measures)
    problems.install(app)
    app.openapi = openapi.document(app)  # type: ignore[method-assign] # how FastAPI has it extended
    routes = [route for router in ROUTERS for route in router.routes]
    app.add_middleware(Front, settings=settings, db=db, measures=measures, routes=routes, checks=NAMED)
    return app


@cache
def _version() -> str:
    return version("scrimp")


@cache
def _routes() -> list[BaseRoute]:
    """All routes, which know no settings: one list for all apps of this process, as FastAPI analyses each endpoint."""
    shell = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, generate_unique_id_function=openapi.operation_id)
    for router in ROUTERS:
        shell.include_router(router)
    return list(shell.router.routes)


def _look_around(db: Database, settings: Settings) -> None:
    """Cleans up and surveys the ledgers at each start, before the first request."""
    # Leftovers of registrations that crashed; a second API process finds nothing to do.
    volume.ensure(settings)
    datasets.sweep(settings)
    resumable.sweep(settings)
    try:
        readings.adopt(db, settings)
        # The database may have been restored since the last start.
        survey(db, Heads.of(settings), objects.of(settings), compare(db, Marks.of(settings)))
    # the database is away: the relay surveys too, and each admission checks its own record
    except (SQLAlchemyError, Unavailable) as error:
        logger.error("the ledgers were not compared with their recorded heads: %s", type(error).__name__)
