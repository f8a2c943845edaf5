"""The API's own routes, for the page that composes a job."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from app.admission.quote import Quote
from app.dashboard import name_choice
from app.dashboard.draft import Draft
from app.dashboard.job_draft import of_job
from app.datasets.briefs import brief_dataset
from app.datasets.routes import list_datasets
from app.datasets.schemas import DatasetView
from app.db.database import Database
from app.db.models import Dataset
from app.grants.service import REFUSED, Access, require_job
from app.hpo.rates import Rated
from app.jobs import quote_routes
from app.jobs import routes as jobs
from app.jobs.quote_routes import Admissions
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from core.contracts.job_spec import JobSpec
from core.errors import Conflict, Forbidden, NotFound

DATASETS_SHOWN = 200
NOT_USABLE = {
    "retired": "this data set is retired: no job can train on it",
    "behind": "the ledger of this data set is behind its record outside the database: ask the operator to restore it",
}


class Api:
    """The API's own routes, for this page."""

    def __init__(self, request: Request, admission: Admissions) -> None:
        self.request, self.admission = request, admission
        self.db, self.heads = admission.db, admission.heads

    async def datasets(self, caller: Caller, wanted: Iterable[str] = ()) -> list[DatasetView]:
        """The newest data sets that a key may train on, and those of `wanted`, by id or name."""

        def found() -> list[DatasetView]:
            newest = list_datasets(self.db, self.heads, caller, None, DATASETS_SHOWN).items
            ready = [each for each in newest if isinstance(each, DatasetView) and each.state == "ready"]
            usable = [each for each in ready if Access(each.access).covers("train")]
            for name in wanted:
                if not any(name in (each.id, each.name) for each in usable):
                    with suppress(NotFound, Forbidden, Conflict):
                        usable.append(usable_dataset(self.db, self.heads, caller, name))
            return usable

        return await run_in_threadpool(found)

    async def dataset(self, caller: Caller, wanted: str) -> DatasetView:
        """A data set that a key may train on, by its id or name; raises as `usable_dataset`."""
        return await run_in_threadpool(usable_dataset, self.db, self.heads, caller, wanted)

    async def draft_of(self, caller: Caller, job_id: str) -> Draft:
        """A job that the key may see, as a draft."""

        def found() -> Draft:
            with self.db.read() as session:
                job = require_job(session, caller, job_id)
                draft = of_job(job.spec, resolved=Rated.model_validate(job.quote).resolved)
                dataset = session.get_one(Dataset, job.dataset_id)
                if not name_choice.is_telling(job.name, draft.document, dataset.name):
                    return draft
                return Draft({member: value for member, value in draft.document.items() if member != "name"})

        return await run_in_threadpool(found)

    async def name_of(self, spec: JobSpec, dataset: DatasetView) -> str:
        """The name of a job that has none, which no other one on the data set has."""

        def found() -> str:
            with self.db.read() as session:
                return name_choice.unused(session, dataset.id, name_choice.telling(spec.request(), dataset.name))

        return await run_in_threadpool(found)

    async def quote(self, caller: Caller, spec: JobSpec, records: int | None = None) -> Quote:
        """`POST /v1/quotes`; or for a hypothetical number of training records."""
        answer = await quote_routes.quote_at(self.request, spec, self.admission, caller, records)
        return Quote.model_validate_json(bytes(answer.body))

    async def submit(self, caller: Caller, spec: JobSpec, idempotency_key: str) -> str:
        """`POST /v1/jobs`; returns the job's id."""
        answer = await jobs.submit(self.request, spec, self.admission, caller, idempotency_key)
        return answer.headers["Location"].rpartition("/")[2]


ApiRoutes = Annotated[Api, Depends()]


def usable_dataset(db: Database, heads: Heads, caller: Caller, wanted: str) -> DatasetView:
    """A data set that a key may train on now.

    Raises:
        NotFound: there is none, or this key may not see it.
        Forbidden: it may be viewed only.
        Conflict: it is retired, or its ledger is behind.
    """
    view = brief_dataset(db, heads, caller, wanted)
    if not Access(view.access).covers("train"):
        raise Forbidden(REFUSED["train"])
    if view.state != "ready":
        raise Conflict("wrong-state", NOT_USABLE[view.state])
    return view
