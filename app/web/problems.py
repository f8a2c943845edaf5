"""Errors as application/problem+json (RFC 9457). One handler for the whole tree of app.errors."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException

from app.errors import InvalidRequest, ServiceError, TooManyRequests

logger = logging.getLogger(__name__)

# What FastAPI says of a body whose parser failed in another way than by a syntax error.
UNREADABLE = "There was an error parsing the body"
HEADERS = {401: {"WWW-Authenticate": 'Bearer realm="scrimp"'}, 503: {"Retry-After": "5"}}
CODES = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
}


def problem(error: ServiceError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The problem document of an error."""
    members = {key: value for key, value in error.members.items() if key not in ("errors",) or value}
    body = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.message,
        **members,
    }
    return JSONResponse(body, error.status, headers, media_type="application/problem+json")


def headers_of(error: ServiceError) -> dict[str, str]:
    """The headers that an error's answer carries, as JSON or as a page."""
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(error.retry_after_s)}
    return HEADERS.get(error.status, {})


def pointer(location: tuple[int | str, ...], body: Any = None) -> str:
    """A JSON pointer from pydantic's location, without the tags of the union members that it went through.

    Args:
        location: pydantic's `loc`; its first member may name the part of the request.
        body: the document, in which a tag is no member of an object but the value of its `kind`.
    """
    parts = list(location[1:] if location and location[0] in ("body", "query", "path", "header") else location)
    kept: list[int | str] = []
    for part in parts:
        if isinstance(body, dict) and part not in body and body.get("kind") == part:
            continue
        kept.append(part)
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            body = None
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in kept)


def validation_errors(errors: list[Any], body: Any = None) -> list[dict[str, Any]]:
    """pydantic's findings as the contract's `[{pointer, detail}]`. The offending input is not echoed."""
    return [_finding(each, body) for each in errors[:50]]


def _finding(each: Any, body: Any) -> dict[str, Any]:
    detail = str(each["msg"]).removeprefix("Value error, ")
    if each["type"] == "json_invalid":
        last = each["loc"][-1] if each["loc"] else None  # the place in the body, where FastAPI says it
        where = f" at character {last}" if isinstance(last, int) else ""
        return {"pointer": "", "detail": f"this is not JSON: {each.get('ctx', {}).get('error', detail)}{where}"}
    if tuple(each["loc"]) == ("body",) and isinstance(body, bytes):
        detail = "send the document with Content-Type: application/json"
    return {"pointer": pointer(tuple(each["loc"]), body), "detail": detail}


def install(app: FastAPI) -> None:
    """Registers the handlers."""

    @app.exception_handler(ServiceError)
    def _service_error(_request: Request, error: ServiceError) -> JSONResponse:
        if error.status >= 500:
            logger.error("%s: %s", error.code, error.message)
        return problem(error, headers_of(error))

    @app.exception_handler(RequestValidationError)
    def _validation(_request: Request, error: RequestValidationError) -> JSONResponse:
        return problem(
            InvalidRequest(
                "the request is not valid; see `errors`", validation_errors(list(error.errors()), error.body)
            )
        )

    @app.exception_handler(DataError)
    def _not_a_value(_request: Request, _error: DataError) -> JSONResponse:
        # Only PostgreSQL says so, of an id or a filter with a NUL in it: bodies were checked before.
        return problem(InvalidRequest("the path or query holds a text or number that no record can have"))

    @app.exception_handler(HTTPException)
    def _http(_request: Request, error: HTTPException) -> JSONResponse:
        if error.detail == UNREADABLE:
            return problem(InvalidRequest.at("", "the body is not JSON that can be read (too deep, or not UTF-8)"))
        failure = ServiceError(str(error.detail))
        failure.code, failure.status = CODES.get(error.status_code, "bad-request"), error.status_code
        failure.title = str(error.detail)
        return problem(failure, dict(error.headers or {}))

    @app.exception_handler(Exception)
    def _unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("unexpected %s at %s %s", type(error).__name__, request.method, request.url.path, exc_info=error)
        return problem(ServiceError("an unexpected error; the server's log has its type and place"))
