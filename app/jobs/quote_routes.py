"""/v1/quotes and the forecast of a ledger: what a job would cost, by app.admission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request, Response

from app.admission import forecast as forecasts
from app.admission import total_sweep as sweeps
from app.admission.forecast import Forecast
from app.admission.quote import Quote
from app.admission.request import Limits
from app.admission.service import Admission
from app.admission.total_sweep import SweepView
from app.keys.auth import CurrentKey
from app.keys.service import Caller
from app.web import examples
from app.web.responses import as_json
from app.web.route_operation import NOTHING, Operation
from core import leaves
from core.contracts.job_spec import JobSpec
from core.contracts.sweep import Sweep

router = APIRouter(prefix="/v1", tags=["jobs"])
forecast_router = APIRouter(prefix="/v1/datasets/{dataset_id}/ledger", tags=["ledger"])  # it prices, like a quote


T = TypeVar("T")


async def priced(request: Request, work: Callable[[], T]) -> T:
    """Runs work that may wait for prices in its own threads, so that waiting keys do not block other requests."""
    return await to_thread.run_sync(work, limiter=cast(CapacityLimiter, request.app.state.pricing_threads))


async def get_admission(request: Request) -> Admission:
    """What admissions need, in one dependency: of five, each would take as long as the answer's JSON."""
    state = request.app.state
    return Admission(state.db, state.pricing, state.heads, Limits.of(state.settings))


Admissions = Annotated[Admission, Depends(get_admission)]


@router.post("/quotes", operation_id="quote_job", response_model=Quote)
@Operation(
    "The price.",
    name="quote_job",
    audience="train",
    leaves=leaves.PLANNED,
    command="quote",
    audit=NOTHING,
    problems=("not-found", "forbidden", "content-deleted", "limit-exceeded", "not-ready"),
    requests=examples.JOB_SPECS,
    answer=examples.QUOTE,
)
async def quote(request: Request, spec: JobSpec, admission: Admissions, caller: CurrentKey) -> Response:
    """Quotes a job's cost, line by line, and tells if it fits now. Charges and reserves nothing."""
    return await quote_at(request, spec, admission, caller, None)


async def quote_at(
    request: Request, spec: JobSpec, admission: Admission, caller: Caller, records: int | None
) -> Response:
    """As `quote`, for a hypothetical number of training records."""
    return await priced(request, lambda: as_json(forecasts.quote(admission, caller, spec, records)))


@router.post("/quotes/sweep", operation_id="sweep_quotes", response_model=SweepView)
@Operation(
    "The final trial of every combination.",
    name="sweep_quotes",
    audience="train",
    leaves=leaves.WHAT_FITS,
    command="quote",
    audit=NOTHING,
    problems=("not-found", "forbidden", "limit-exceeded", "not-ready"),
    requests={"three totals, with cheaper and more expensive pilots": examples.SWEEP},
    answer=examples.SWEPT,
)
async def sweep(request: Request, body: Sweep, admission: Admissions, caller: CurrentKey) -> Response:
    """Quotes a study's final trial under other totals, levels and numbers of trials. Charges and reserves nothing."""
    return await priced(request, lambda: as_json(sweeps.sweep(admission, caller, body)))


@forecast_router.post("/forecast", operation_id="forecast_ledger", response_model=Forecast)
@Operation(
    "How many jobs of this spec fit.",
    name="forecast_ledger",
    audience="train",
    leaves=leaves.WHAT_FITS,
    command="ledger forecast",
    audit=NOTHING,
    problems=("forbidden", "content-deleted", "limit-exceeded", "not-ready"),
    requests=examples.JOB_SPECS,
    answer=examples.FORECAST,
)
async def forecast(
    request: Request, dataset_id: str, spec: JobSpec, admission: Admissions, caller: CurrentKey
) -> Response:
    """Tells how many jobs of this spec still fit the budget, exactly. Charges and reserves nothing."""
    return await priced(request, lambda: as_json(forecasts.forecast(admission, caller, spec, dataset_id)))
