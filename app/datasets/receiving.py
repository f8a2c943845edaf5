"""Receives the files of a registration, or of a block: sent with the request, uploaded in pieces, or named."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.datasets import quota, resumable, sources
from app.datasets.sizes import REGISTRATION, check_declared
from app.datasets.sources import Arrived
from app.datasets.upload import Upload
from app.db.database import Database
from app.keys.service import Caller
from app.settings import Settings
from app.storage.seals import Seals
from app.web import strict_json
from app.web.body_limits import LARGE_NODES, chunks_of, read_document
from app.web.problems import errors_of, validation_errors
from core.contracts.base import DECLARATION, Document
from core.contracts.dataset_spec import NAMED_BY, PREFIXES, DatasetSpec
from core.errors import InvalidRequest, TooLarge

ReadSpec = Callable[[bytes], DatasetSpec]
D = TypeVar("D", bound=Document)


async def received(
    request: Request,
    folder: Path,
    db: Database,
    settings: Settings,
    caller: Caller,
    read_spec: ReadSpec,
    at: str = REGISTRATION,
) -> Arrived:
    """A declaration with its files: in the folder, or named. Room and quota are checked before the bytes arrive, and
    the declared numbers before a file is looked at.

    Args:
        read_spec: the declaration from its JSON.
        at: as `declared_slots` takes it.
    """

    def declared(content: bytes) -> DatasetSpec:
        spec = read_spec(content)
        check_declared(spec, settings.max_records, at)
        return spec

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        announced = int(request.headers.get("content-length", "0"))
        await run_in_threadpool(_check_room, db, settings, caller, folder, announced)
        arrived = sources.sent(await _uploaded(request, folder, settings, declared), folder)
        if not announced:
            await run_in_threadpool(quota.require, db, settings, caller.id, arrived.size, arrived.size)
        return arrived
    if kind == "application/json":
        arrived = await _by_reference(request, folder, settings, caller, declared)
        await run_in_threadpool(quota.require, db, settings, caller.id, arrived.new_bytes)
        return arrived
    detail = "send multipart/form-data, or application/json with a `path` or an `upload`"
    raise InvalidRequest.at("/headers/Content-Type", detail)


def _check_room(db: Database, settings: Settings, caller: Caller, folder: Path, announced: int) -> None:
    quota.require(db, settings, caller.id, announced)
    resumable.room_of(settings).require(folder, announced)


async def _uploaded(request: Request, folder: Path, settings: Settings, read_spec: ReadSpec) -> DatasetSpec:
    upload = Upload(
        request.headers["content-type"],
        folder,
        max_file_bytes=settings.max_upload_bytes,
        max_spec_bytes=settings.max_body_bytes,
        room=resumable.room_of(settings),
        key=Seals(settings).new(),
    )
    try:
        async for chunk in chunks_of(request):
            await run_in_threadpool(upload.feed, chunk)  # this writes to disk
    finally:
        upload.close()
    content = upload.check()
    await read_document(partial(strict_json.check, content, LARGE_NODES), len(content))
    spec = await read_document(partial(read_spec, content), len(content))
    for name in (f"{prefix}{by}" for prefix in PREFIXES.values() for by in NAMED_BY):
        if getattr(spec, name) is not None:
            raise InvalidRequest.at(f"/{name}", f"give `{name}` or send a file, not both")
    return spec


async def _by_reference(
    request: Request, folder: Path, settings: Settings, caller: Caller, read_spec: ReadSpec
) -> Arrived:
    """The declaration with the files that it names."""
    body = bytearray()
    async for chunk in chunks_of(request):
        body += chunk
        if len(body) > settings.max_body_bytes:
            raise TooLarge(f"a spec may have at most {settings.max_body_bytes} bytes")
    spec = await read_document(partial(read_spec, bytes(body)), len(body))
    if spec.path is None and spec.upload is None:
        detail = "name a file under the data root in `path`, an upload in `upload`, or send one as multipart/form-data"
        raise InvalidRequest.at("/path", detail)
    return await run_in_threadpool(sources.named, spec, folder, settings, caller.id)


def document_of(content: bytes, model: type[D]) -> D:
    """A document from its JSON, which was found strict as it arrived.

    Raises:
        InvalidRequest: it is not valid; with the pointers of its faults.
    """
    try:
        return model.model_validate_json(content, context=DECLARATION)
    except ValidationError as error:
        problem = validation_errors(errors_of(error), _document(content), model)
        raise InvalidRequest("The specification is not valid; see `errors`", problem) from None


def _document(content: bytes) -> object:
    """The JSON as it was sent, to locate errors in it."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
