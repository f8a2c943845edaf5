"""Errors as application/problem+json (RFC 9457). One handler for the whole tree of core.errors."""

from __future__ import annotations

import errno
import logging
import os
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Message, Scope

from app.web import suggest
from core.contracts.hpo import LinearScaling
from core.disk import is_full
from core.errors import InvalidRequest, ServiceError, StorageFull, TooManyRequests, Unavailable

logger = logging.getLogger(__name__)

# FastAPI's message when a body's parser fails for a reason other than a syntax error.
UNREADABLE = "There was an error parsing the body"
HEADERS = {401: {"WWW-Authenticate": 'Bearer realm="scrimp"'}, 503: {"Retry-After": "5"}}
CODES = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
    416: "range-not-satisfiable",
}
MAX_LISTED, MAX_SHOWN = 1000, 50
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
BROKEN = (errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ESTALE)
# On a file of the storage these mean that the storage is gone; on any other file, a bug of ours.
GONE = (errno.EACCES, errno.ENOENT)


def problem(error: ServiceError, headers: dict[str, str] | None = None) -> JSONResponse:
    """Builds the response for an error."""
    return JSONResponse(error.document, error.status, headers, media_type="application/problem+json")


def headers_of(error: ServiceError) -> dict[str, str]:
    """The headers of an error's response, as JSON or as a page."""
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(error.retry_after_s)}
    return HEADERS.get(error.status, {})


NOT_FOUND = HTTPStatus.NOT_FOUND.phrase  # what the library says where no route is
NO_ADDRESS = "there is no such address: GET /openapi.json lists them"
# Where parameters are; a body's own pointers begin with the names of its members.
PLACES = {"query": "/query", "path": "/path", "header": "/headers"}


def pointer(location: tuple[int | str, ...], body: Any = None) -> str:
    """Builds a JSON pointer from pydantic's location, without the tags of union members.

    Args:
        location: pydantic's `loc`; its first member may name the part of the request.
        body: the document. In it a tag is not an object's member but the value of its `kind` or `strategy`; a number's
            or a text's is the name of a type.
    """
    place = PLACES.get(str(location[0]), "") if location else ""
    parts = list(location[1:] if place or location[:1] == ("body",) else location)
    if place:
        return place + "".join(_escaped(part) for part in parts)
    path: list[int | str] = []
    for part in parts:
        if isinstance(body, str | int | float):
            break
        if isinstance(body, dict) and part not in body and part in (body.get("kind"), _strategy(body)):
            continue
        path.append(part)
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            body = None
    return "".join(_escaped(part) for part in path)


def _strategy(body: dict[str, Any]) -> Any:
    """A study's strategy tag, which may be left out."""
    return body.get("strategy", LinearScaling.model_fields["strategy"].default)


def _escaped(part: int | str) -> str:
    return "/" + str(part).replace("~", "~0").replace("/", "~1")


def validation_errors(errors: list[Any], body: Any = None, model: object = None) -> list[dict[str, Any]]:
    """Converts pydantic's findings to the contract's `[{pointer, detail}]`. The offending input is not repeated.

    Args:
        body: the document, to locate errors in it.
        model: its type, to suggest the names that were meant.
    """
    return [_finding(each, body, model) for each in errors[:MAX_SHOWN]]


def errors_of(error: ValidationError) -> list[Any]:
    """What pydantic found. Of very many it builds no list: 200,000 took 1.5 s and 200 MB."""
    count = error.error_count()
    if count > MAX_LISTED:
        return [
            {"type": "too_many", "loc": (), "msg": f"{count} members are not valid: check what kind of file this is"}
        ]
    return list(error.errors(include_url=False))


def _finding(error: Any, body: Any, model: object) -> dict[str, Any]:
    detail = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "json_invalid":
        last = error["loc"][-1] if error["loc"] else None  # the place in the body, where FastAPI names one
        place = f" at character {last}" if isinstance(last, int) else ""
        return {"pointer": "", "detail": f"this is not JSON: {error.get('ctx', {}).get('error', detail)}{place}"}
    if tuple(error["loc"]) == ("body",) and isinstance(body, bytes):
        detail = "send the document with Content-Type: application/json"
    if error["type"] == "missing" and tuple(error["loc"]) == ("header", "Idempotency-Key"):
        detail = "send a fresh random string for each job or charge; the same again returns the same one"
    return {"pointer": pointer(tuple(error["loc"]), body), "detail": detail + suggest.hint(error, model)}


def install(app: FastAPI) -> None:
    """Registers the exception handlers."""

    @app.exception_handler(ServiceError)
    def _service_error(_request: Request, error: ServiceError) -> JSONResponse:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    def _validation(request: Request, error: RequestValidationError) -> JSONResponse:
        body = getattr(request.scope.get("route"), "body_field", None)
        model = None if body is None else body.field_info.annotation
        problems = validation_errors(list(error.errors()), error.body, model)
        return problem(InvalidRequest("the request is not valid; see `errors`", problems))

    @app.exception_handler(DataError)
    def _not_a_value(_request: Request, _error: DataError) -> JSONResponse:
        # Only PostgreSQL raises this, for an id or a filter with a NUL: bodies were checked before.
        return problem(InvalidRequest("the path or query holds a text or number that cannot exist here: check the id"))

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> JSONResponse:
        if error.detail == UNREADABLE:
            return problem(
                InvalidRequest.at("", "the body cannot be read as JSON: it is nested too deeply, or it is not UTF-8")
            )
        headers, title = dict(error.headers or {}), str(error.detail)
        if error.status_code == 405:
            headers["Allow"] = ", ".join(allowed_methods(app, request.scope))
            return _of_status(405, title, headers, f"this address takes {headers['Allow']}")
        detail = NO_ADDRESS if error.status_code == 404 and title == NOT_FOUND else title
        return _of_status(error.status_code, title, headers, detail)


def answer(error: ServiceError) -> JSONResponse:
    """Builds the response for an error, with the headers of its status; logs the server's own faults."""
    if error.status >= 500:
        logger.error("%s: %s", error.code, error.message)
    return problem(error, headers_of(error))


def allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods that an address supports, over all its routes."""
    methods = [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]
    return sorted([*methods, "HEAD"]) if "GET" in methods else methods


def _of_status(status: int, title: str, headers: dict[str, str], detail: str | None = None) -> JSONResponse:
    """The problem of a response that this service's own code did not make. `detail`: in words, if they are others."""
    failure = ServiceError(detail or title)
    failure.code, failure.status = CODES.get(status, "bad-request"), status
    failure.title = title
    return problem(failure, headers)


def of_plain_text(message: Message) -> JSONResponse | None:
    """The problem in place of a refusal in plain text, which a library has begun with this message; None for others."""
    headers = Headers(raw=message["headers"])
    if message["status"] < 400 or not headers.get("content-type", "").startswith("text/plain"):
        return None
    headers_left = {name: value for name, value in headers.items() if not name.startswith("content-")}
    headers_left |= {"content-range": headers["content-range"]} if "content-range" in headers else {}
    return _of_status(message["status"], HTTPStatus(message["status"]).phrase, headers_left)


def of_exception(error: Exception, scope: Scope) -> JSONResponse:
    """The last resort: the problem of an exception without a handler.

    A storage or database that does not answer is distinguished from our own faults: a retry may then succeed.
    """
    root: Path = scope["app"].state.settings.storage_root
    return answer(_known_fault(error, root) or _unexpected(error, scope))


def _known_fault(error: Exception, root: Path) -> ServiceError | None:
    """Identifies a fault of the database or the storage, if it is one.

    Args:
        root: the folder of data sets and artifacts.
    """
    if is_full(error) or (isinstance(error, DBAPIError) and _is_full(error)):
        return StorageFull("the service's disk is full: an operator has to free some space")
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        logger.error("the database does not answer: %s", getattr(error, "orig", None) or error)
        return Unavailable("the database does not answer: try again in a moment")
    if isinstance(error, OSError) and (error.errno in BROKEN or (error.errno in GONE and _is_below(error, root))):
        logger.error("the storage does not answer", exc_info=error)
        return Unavailable("the storage does not answer: try again in a moment")
    return None


def _is_below(error: OSError, root: Path) -> bool:
    """Returns True if an error concerns a file in the storage, the storage itself, or its parent folder."""
    storage = root.absolute()
    paths = [Path(name).absolute() for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
    return any(path.is_relative_to(storage) or path == storage.parent for path in paths)


def _is_full(error: DBAPIError) -> bool:
    return (
        getattr(error.orig, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(error.orig, "sqlstate", "") == "53100"
    )


def _unexpected(error: Exception, scope: Scope) -> ServiceError:
    name, path = type(error).__name__, scope["path"]
    logger.error("unexpected %s at %s %r", name, scope["method"], path, exc_info=error)
    return ServiceError("an unexpected error; the server's log has its type and place")
