"""The OpenAPI document: FastAPI's knowledge of the routes, plus every error that a route may return.

The kinds of problems come from the tree of core.errors; each route declares which it has (app.web.route_operation).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from app.web import examples
from app.web.route_operation import DESCRIPTION, FINDING, MEMBERS, OPERATIONS, PARAMETERS, TAGS
from core import errors
from core.contracts.blocks import BlockSpec
from core.contracts.dataset_spec import DatasetSpec

Json = dict[str, Any]
SCHEMA_KEYS = {"$ref", "allOf", "anyOf", "oneOf", "type"}


@dataclass(frozen=True)
class Kind:
    """A kind of problem."""

    code: str
    statuses: tuple[int, ...]
    title: str
    description: str
    advice: str

    @property
    def schema_name(self) -> str:
        return "".join(part.title() for part in self.code.split("-")) + "Problem"


def kinds() -> dict[str, Kind]:
    """Every kind of problem that a route may return, from the error tree."""
    by_code = {}
    for error in _tree(errors.ServiceError):
        codes = errors.CONFLICTS if error is errors.Conflict else (error.code,)
        statuses = (422, 503) if error is errors.LimitError else (error.status,)
        for code in codes:
            summary, advice = errors.CONFLICTS[code] if error is errors.Conflict else (meaning_of(error), error.advice)
            by_code[code] = Kind(code, statuses, error.title, summary, advice)
    return by_code


def meaning_of(error: type[errors.ServiceError]) -> str:
    """What went wrong, where an error of this kind is raised."""
    return (error.__doc__ or error.title).partition("\n")[0]


def _tree(error: type[errors.ServiceError]) -> Iterator[type[errors.ServiceError]]:
    """The errors that a route may return; a broken invariant is an internal error to its caller."""
    if error.__module__ != errors.__name__ or issubclass(error, errors.WorkerError | errors.PrivacyError):
        return
    if error is not errors.RequestError:  # it has no code of its own
        yield error
    for below in error.__subclasses__():
        yield from _tree(below)


def operation_id(route: APIRoute) -> str:
    """The name of the route's function, by which generated clients call the operation."""
    return route.name


def document(app: FastAPI) -> Callable[[], Json]:
    """Builds the document once, at the first request for it."""

    def made() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _made(app)
        return app.openapi_schema

    return made


def _made(app: FastAPI) -> Json:
    tags = [{"name": name, "description": text} for name, text in TAGS.items()]
    openapi = get_openapi(
        title=app.title,
        version=app.version,
        summary="Differentially private training with a ledger that cannot be overspent.",
        description=DESCRIPTION,
        routes=app.routes,
        tags=tags,
        servers=[{"url": "/", "description": "This service."}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schemas = openapi["components"]["schemas"]
    for replaced in ("HTTPValidationError", "ValidationError"):
        schemas.pop(replaced, None)
    schemas |= _registrations() | schemas
    schemas["Finding"] = FINDING
    schemas["Problem"] = _problem_schema(None)
    by_code = kinds()
    schemas |= {kind.schema_name: _problem_schema(kind) for kind in by_code.values()}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            _complete(operation, path, method, by_code)
    _explain_defaults(openapi)
    return openapi


def _registrations() -> Json:
    """The schemas of a data set's and a block's declaration, whose bodies are read by hand. Without a file, the place
    of a data set's is required."""
    schema = DatasetSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = schema.pop("$defs")
    by_path = schema | {"title": "DatasetSpecByPath", "required": [*schema["required"], "path"]}
    by_upload = schema | {"title": "DatasetSpecByUpload", "required": [*schema["required"], "upload"]}
    block = BlockSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    specs = {"DatasetSpec": schema, "DatasetSpecByPath": by_path, "DatasetSpecByUpload": by_upload}
    return {**parts, **specs, "BlockSpec": block}


def _explain_defaults(node: Any) -> None:
    """Moves each default that is an object into its description: client generators refuse such operations."""
    if isinstance(node, list):
        for item in node:
            _explain_defaults(item)
    if not isinstance(node, dict):
        return
    default = node.get("default")
    if isinstance(default, dict) and not SCHEMA_KEYS.isdisjoint(node):
        del node["default"]
        text = f"Default: `{json.dumps(default, ensure_ascii=False)}`."
        node["description"] = f"{node['description']} {text}" if node.get("description") else text
    for name, item in node.items():
        if name not in ("example", "examples"):
            _explain_defaults(item)


def _complete(operation: Json, path: str, method: str, by_code: dict[str, Kind]) -> None:
    """Adds to one operation its responses, examples and the descriptions that its signature lacks."""
    name = operation["operationId"]
    if name not in OPERATIONS:
        raise TypeError(f"{method.upper()} {path} says nothing of itself: declare it with @Operation")
    extra = OPERATIONS[name]
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in PARAMETERS:
            parameter.setdefault("description", PARAMETERS[parameter["name"]])
    for summary, value in extra.requests.items():
        content = operation["requestBody"]["content"]["application/json"]
        content.setdefault("examples", {})[summary] = {"value": value}
    answers = operation["responses"]
    answers.pop("422", None)
    success = answers[min(answers)]
    success["description"] = extra.success
    if extra.headers:
        success["headers"] = {
            header: {"description": text.removeprefix("?"), "required": text[:1] != "?", "schema": {"type": "string"}}
            for header, text in extra.headers.items()
        }
    if extra.answer is not None:
        success["content"]["application/json"]["example"] = extra.answer
    by_status: dict[int, list[Kind]] = {}
    for code in dict.fromkeys((*_by_shape(operation, path, method), *extra.problems)):
        for status in by_code[code].statuses:
            by_status.setdefault(status, []).append(by_code[code])
    for status, of_status in sorted(by_status.items()):
        answer = answers.setdefault(str(status), {"description": ", or ".join(kind.title for kind in of_status)})
        answer.setdefault("content", {})["application/problem+json"] = _problem_content(status, of_status)
        answer.setdefault("headers", {}).update(_problem_headers(status))


def _by_shape(operation: Json, path: str, method: str) -> Iterator[str]:
    """The problems that follow from a route's shape."""
    yield "unknown-host"
    if "security" in operation:
        yield from ("unauthenticated", "too-many-requests", "internal-error", "unavailable")
    if "{" in path:
        yield "not-found"
    if "parameters" in operation or "requestBody" in operation:
        yield "invalid-request"
    if "requestBody" in operation:
        yield from ("too-slow", "too-large")
    if method != "get" and operation["operationId"] not in ("quote_job", "sweep_quotes", "forecast_ledger"):
        yield "storage-full"


def _problem_headers(status: int) -> Json:
    wait = ("Retry-After", "Seconds to wait.")
    headers = {401: ("WWW-Authenticate", "`Bearer`."), 429: wait, 503: wait}
    if status not in headers:
        return {}
    header, text = headers[status]
    return {header: {"description": text, "required": True, "schema": {"type": "string"}}}


def _problem_content(status: int, of_status: list[Kind]) -> Json:
    references = [{"$ref": f"#/components/schemas/{kind.schema_name}"} for kind in of_status]
    example_of = {kind.code: {"value": _example(kind, status)} for kind in of_status}
    return {"schema": references[0] if len(references) == 1 else {"oneOf": references}, "examples": example_of}


def _example(kind: Kind, status: int) -> Json:
    problem = {"type": f"/problems/{kind.code}", "title": kind.title, "status": status, "detail": kind.title}
    return problem | examples.PROBLEMS.get(kind.code, {})


def _problem_schema(kind: Kind | None) -> Json:
    """The schema of one kind of problem; for None, the members that all share."""
    properties: Json = {
        "type": {"type": "string", "format": "uri-reference", "description": "The kind of problem; stable."},
        "title": {"type": "string", "description": "The kind, in words."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What happened this time, and what to change."},
    }
    required = list(properties)
    if kind is None:
        return {"type": "object", "description": "RFC 9457.", "properties": properties, "required": required}
    if kind.code != "internal-error":  # this kind may carry an invariant's own code
        properties["type"] = {"const": f"/problems/{kind.code}"}
    properties["status"] = {"enum": list(kind.statuses)} if len(kind.statuses) > 1 else {"const": kind.statuses[0]}
    for name, schema in MEMBERS.get(kind.code, {}).items():
        properties[name.removesuffix("?")] = schema
        if not name.endswith("?"):
            required.append(name)
    return {"type": "object", "description": kind.description, "properties": properties, "required": required}


def as_text(openapi: Json) -> str:
    """The document as docs/openapi.json stores it, so that a review shows changes for callers."""
    return json.dumps(openapi, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
