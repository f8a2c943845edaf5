"""/dashboard/submit: compose a job, see what it costs, and submit it.

The form, its quote and the admission are the API's own: the JobSpec's schema, `POST /v1/quotes` and `POST /v1/jobs`.
A click submits only the specification and the price that the page has shown: of a form without JavaScript, the JSON
counts if it was edited since, and then nothing is submitted before it was shown.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from app.admission.quote import Quote
from app.dashboard import job_draft
from app.dashboard.balances import Share, shares_of
from app.dashboard.draft import Draft, placed
from app.dashboard.job_draft import agreed_on, first_draft, name_of, named_datasets, names_more, sent_job
from app.dashboard.page import PageRoute, render
from app.dashboard.submit_api import Api, ApiRoutes
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, Viewer
from app.dashboard.whatif import CHOICES, Variation, chosen, variations
from app.datasets.schemas import DatasetView
from app.keys.service import Caller
from app.web.route_operation import NOTHING, Page
from core.contracts.job_spec import JobSpec
from core.errors import BudgetError, Conflict, Forbidden, InvalidRequest, LimitError, NotFound, RequestError

PAGE = f"{HOME}/submit"
router = APIRouter(prefix=PAGE, include_in_schema=False, route_class=PageRoute)
Named = Annotated[str | None, Query(max_length=100)]
ONCE, NAMED, DIGEST = re.compile(r"[A-Za-z0-9_-]{0,100}"), re.compile(r"[^\0]{0,200}"), 32
CHANGED = (
    "Nothing was submitted: the settings or the price are not those of the last quote. Look at this one, then submit."
)
EDITED = "The form was read from the JSON, which was edited. Fields that were changed with it are as the JSON says."
REFUSALS = (RequestError, BudgetError, LimitError)


@dataclass(frozen=True)
class Quoted:
    """A quote as the page shows it.

    Attributes:
        shares: the charge on each account, in shares of its budget; empty on public data.
        agreed: names the specification and the price; sent back with the click that spends.
        name: the job's where the specification has none; sent back too, so that a second click is the same job.
    """

    spec: JobSpec
    quote: Quote
    dataset: DatasetView | None
    shares: list[Share]
    agreed: str
    name: str

    @property
    def percent(self) -> float:
        """The larger share of a budget that submitting holds."""
        return max((each.percent for each in self.shares), default=0.0)


@router.get("")
@Page("every key")
async def submit_page(
    request: Request, api: ApiRoutes, viewer: CurrentViewer, dataset: Named = None, job: Named = None
) -> Response:
    """Shows the form: of a data set, of an earlier job (`job`), or of the newest data set."""
    if job is not None:
        draft = await api.draft_of(viewer.caller, job)
        datasets = await api.datasets(viewer.caller, [str(draft.document.get("dataset"))])
    else:
        datasets = await api.datasets(viewer.caller)
        try:
            candidates = datasets[:1] if dataset is None else [await api.dataset(viewer.caller, dataset)]
        except (NotFound, Forbidden, Conflict) as error:
            return _no_form(request, viewer, datasets, error)
        if not candidates:
            return _no_form(request, viewer, datasets)
        draft = first_draft(candidates[0])
        datasets += [each for each in candidates if each not in datasets]
    quoted = await _quoted(api, viewer.caller, draft, datasets)
    return await run_in_threadpool(_page, request, viewer, Composed(datasets, draft, quoted))


def _no_form(
    request: Request, viewer: Viewer, datasets: list[DatasetView], refused: RequestError | None = None
) -> Response:
    """Says why no job can be composed: on the data set that was asked for, or on any."""
    of_one = refused is not None and (datasets or not isinstance(refused, NotFound))
    status = refused.status if refused is not None and of_one else 200
    message = refused.message if refused is not None and of_one else ""
    return render(
        request, "submit.html", viewer=viewer, status=status, draft=None, refused=message, others=bool(datasets)
    )


@router.post("/draft")
@Page("every key", audit=NOTHING)
async def draft_changed(request: Request, api: ApiRoutes, viewer: PostingViewer) -> Response:
    """The form and the quote of what was typed. Charges and reserves nothing."""
    sent = await _sent(request)
    datasets, draft = await _draft(api, viewer.caller, sent)
    quoted = await _quoted(api, viewer.caller, draft, datasets)
    return await run_in_threadpool(
        _page, request, viewer, Composed(datasets, draft, quoted), template="_submit.html", idempotency_key=sent["once"]
    )


@dataclass(frozen=True)
class Priced:
    """A variation with its quote, or with the reason why there is none."""

    of: Variation
    quoted: Quoted | None
    refused: str = ""


@router.post("/what-if")
@Page("every key", audit=NOTHING)
async def what_if(request: Request, api: ApiRoutes, viewer: PostingViewer) -> Response:
    """Quotes the job with one setting changed at a time, or one at the values that were typed. Charges nothing."""
    sent = await _sent(request)
    datasets, draft = await _draft(api, viewer.caller, sent)
    spec = await run_in_threadpool(draft.validated, JobSpec)
    pointer, wanted, refused = sent.get("vary", ""), list[Variation](), ""
    try:
        if spec is not None:
            wanted = chosen(spec, pointer, sent.get("values", "")) if pointer else list(variations(spec))
    except ValueError as error:
        refused = str(error)
    rows = [await _priced(api, viewer.caller, each, datasets) for each in wanted]
    return render(request, "_whatif.html", viewer=viewer, rows=rows, refused=refused)


async def _priced(api: Api, caller: Caller, variation: Variation, datasets: list[DatasetView]) -> Priced:
    draft = Draft(variation.spec.request())
    quoted = await _quoted(api, caller, draft, datasets, variation.records)
    return Priced(
        variation, quoted, "; ".join(each for texts in draft.errors.values() for each in texts).replace("`", "")
    )


@router.post("")
@Page("every key", audit="job.submitted")
async def submit(request: Request, api: ApiRoutes, viewer: PostingViewer) -> Response:
    """Submits the job if it and its price are as the page has shown them; else shows the new quote."""
    typed = await _sent(request)
    sent = typed | ({"source": "json"} if is_edited(typed) else {})
    datasets, draft = await _draft(api, viewer.caller, sent)
    status, notice = 200, EDITED if is_edited(typed) else ""
    quoted = await _quoted(api, viewer.caller, draft, datasets)
    idempotency_key = sent["once"] or secrets.token_urlsafe(16)
    if quoted is None:
        status = 422
    elif sent.get("do") == "submit" and (is_edited(typed) or sent.get("agreed") != quoted.agreed):
        notice, status = CHANGED, 409
    elif sent.get("do") == "submit":
        try:
            # A second click is the same job; another specification from the same page is another one.
            spec = quoted.spec.model_copy(update={"name": quoted.spec.name or sent["named"]})
            job_id = await api.submit(viewer.caller, spec, f"{idempotency_key}-{quoted.agreed[:DIGEST]}")
            return RedirectResponse(f"{HOME}/jobs/{job_id}", 303)
        except REFUSALS as error:
            draft.refused(error)
            status, quoted = error.status, None
    return await run_in_threadpool(
        _page,
        request,
        viewer,
        Composed(datasets, draft, quoted),
        status=status,
        idempotency_key=idempotency_key,
        notice=notice,
    )


async def _sent(request: Request) -> dict[str, str]:
    """The form's texts."""
    fields = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    if not (ONCE.fullmatch(fields.setdefault("once", "")) and NAMED.fullmatch(fields.setdefault("named", ""))):
        raise InvalidRequest.at("/once", "this page is out of date: reload it")
    return fields


async def _draft(api: Api, caller: Caller, sent: Mapping[str, str]) -> tuple[list[DatasetView], Draft]:
    """The data sets to choose from, and the draft that a form says."""
    datasets = await api.datasets(caller, await run_in_threadpool(named_datasets, sent))
    return datasets, await run_in_threadpool(sent_job, sent, datasets)


def is_edited(sent: Mapping[str, str]) -> bool:
    """Returns True if the JSON is not the one that the page showed, and nothing says that form or JSON counts."""
    return "source" not in sent and sent.get("shown") != name_of(sent.get("json", ""))


async def _quoted(
    api: Api, caller: Caller, draft: Draft, datasets: list[DatasetView], records: int | None = None
) -> Quoted | None:
    """The quote of a draft; None if it is not valid or refused, with the draft's errors filled."""
    spec = await run_in_threadpool(draft.validated, JobSpec)
    if spec is None:
        return None
    try:
        quote = await api.quote(caller, spec, records)
    except REFUSALS as error:
        draft.refused(error)
        return None
    dataset = next((each for each in datasets if spec.dataset in (each.id, each.name)), None)
    shares = shares_of(dataset.ledger if dataset else None, quote.charge)
    name = "" if dataset is None else await api.name_of(spec, dataset)
    return Quoted(spec, quote, dataset, shares, agreed_on(spec, quote.charge, quote.resolved), name)


@dataclass(frozen=True)
class Composed:
    """A draft with the data sets to choose from, and its quote."""

    datasets: list[DatasetView]
    draft: Draft
    quoted: Quoted | None


def _page(
    request: Request,
    viewer: Viewer,
    job: Composed,
    *,
    template: str = "submit.html",
    status: int = 200,
    idempotency_key: str = "",
    notice: str = "",
) -> Response:
    draft = job.draft
    sections = job_draft.sections(draft, job.datasets, job.quoted.name if job.quoted else "")
    problems = draft.problems(sections)
    return render(
        request,
        template,
        viewer=viewer,
        status=status,
        draft=draft,
        sections=sections,
        is_unfolded=names_more(draft.document),
        problems=problems,
        errors=placed(problems),
        quoted=job.quoted,
        shown=name_of(draft.text),
        once=idempotency_key or secrets.token_urlsafe(16),
        notice=notice,
        choices=CHOICES,
    )
