"""/dashboard/register: declare a data set, check its file without storing it, and register it.

The form is the DatasetSpec's schema; check and registration are the API's routes, `POST /v1/datasets/check` and
`POST /v1/datasets`. The browser reads a file's first rows and proposes each column's declaration (assistant.js); a
click sends that, and another one the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from app.dashboard import dataset_draft
from app.dashboard.draft import Draft, placed, sent_draft
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, UploadingViewer, Viewer
from app.datasets import register_routes as datasets
from app.keys.auth import require_role
from app.web.body_limits import LARGE_NODES
from app.web.deps import Db, Parsing, Pricing, ServiceSettings
from app.web.problems import answer
from app.web.route_operation import NOTHING, Page
from core.contracts.base import Deferred
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.filter_names import BUYS
from core.errors import InvalidRequest, ServiceError

PAGE = f"{HOME}/register"
router = APIRouter(prefix=PAGE, include_in_schema=False, route_class=PageRoute)
check_owner = require_role("owner")


class Refusal(Deferred):
    """One error of the API, as it answers it."""

    pointer: str
    detail: str


REFUSALS = TypeAdapter(list[Refusal])


class Uploads:
    """What the API's routes for uploads need."""

    def __init__(self, request: Request, db: Db, settings: ServiceSettings, pricing: Pricing, parsers: Parsing) -> None:
        self.request, self.db, self.settings, self.pricing, self.parsers = request, db, settings, pricing, parsers


@router.get("")
@Page("owners")
async def register_page(request: Request, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """Shows the form, to owners and admins."""
    await check_owner(viewer.caller)
    first = dataset_draft.first_declaration()
    return _page(request, viewer, first, "register.html", most_bytes=settings.max_upload_bytes)


@router.get("/columns")
@Page("every key")
def public_columns(_viewer: CurrentViewer) -> Response:
    """What is publicly known of columns by their names: the client's list, so that page and command agree."""
    return FileResponse(_column_list(), media_type="application/json")


@cache
def _column_list() -> Path:
    """The list's file in the client's package, which is found without importing it."""
    package = find_spec("scrimp")
    if package is None or package.origin is None:
        raise RuntimeError("the package scrimp is not installed: install scrimp-client")
    return Path(package.origin).parent / "columns.json"


@router.post("/draft")
@Page("owners", audit=NOTHING)
async def declaration_changed(request: Request, viewer: PostingViewer) -> Response:
    """The form of what was typed, with what is wrong in it: by its contract, or as the API refused the file."""
    await check_owner(viewer.caller)
    sent = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    # A declaration may be large: other requests continue meanwhile.
    return await run_in_threadpool(_changed, request, viewer, sent)


def _changed(request: Request, viewer: Viewer, sent: Mapping[str, str]) -> Response:
    draft = dataset_draft.planned(sent_draft(sent, dataset_draft.form(), LARGE_NODES))
    draft.validated(DatasetSpec, LARGE_NODES)
    with suppress(ValidationError):
        refusals = [each.model_dump() for each in REFUSALS.validate_json(sent.get("refused") or "[]")]
        if refusals:
            draft.refused(InvalidRequest("", refusals))
    return _page(request, viewer, draft, "_register.html")


@router.post("/check")
@Page("owners", audit=NOTHING)
async def check_file(viewer: UploadingViewer, uploads: Annotated[Uploads, Depends()]) -> Response:
    """Checks a file against its declaration, and stores nothing."""
    receiver = uploads
    try:
        caller = await check_owner(viewer.caller)
        findings = await datasets.check_dataset(
            receiver.request, receiver.db, receiver.settings, receiver.pricing, receiver.parsers, caller
        )
    except ServiceError as error:
        return answer(error)
    return render(receiver.request, "_checked.html", viewer=viewer, found=findings, dataset_id=None)


@router.post("/file")
@Page("owners", audit="dataset.registered")
async def register_file(viewer: UploadingViewer, uploads: Annotated[Uploads, Depends()]) -> Response:
    """Registers the data set."""
    receiver = uploads
    try:
        caller = await check_owner(viewer.caller)
        registration = await datasets.register_dataset(
            receiver.request, Response(), receiver.db, receiver.settings, receiver.pricing, receiver.parsers, caller
        )
    except ServiceError as error:
        return answer(error)
    return render(receiver.request, "_checked.html", viewer=viewer, found=registration, dataset_id=registration.id)


def _page(request: Request, viewer: Viewer, draft: Draft, template: str, **counts: int) -> Response:
    sections = draft.sections(dataset_draft.form(), dataset_draft.LAYOUT)
    problems = draft.problems(sections)
    return render(
        request,
        template,
        viewer=viewer,
        draft=draft,
        cap=_cap(draft),
        plans=BUYS,
        sections=sections,
        problems=problems,
        errors=placed(problems),
        **counts,
    )


def _cap(draft: Draft) -> str:
    """The declared cap's ε as it is written; empty without one."""
    privacy = draft.document.get("privacy")
    cap = privacy.get("cap") if isinstance(privacy, dict) else None
    return str(cap.get("epsilon", "")) if isinstance(cap, dict) else ""
