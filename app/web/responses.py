"""Responses of frequently called routes."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response
from pydantic import BaseModel


def as_json(view: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Serializes a view that we built ourselves, without validating it again.

    FastAPI checks other return values against the route's type, which takes another turn in the thread pool. The route
    still names its `response_model`, for the OpenAPI document.
    """
    return Response(view.model_dump_json(), status, headers, "application/json")
