"""Answers of hot routes."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response
from pydantic import BaseModel


def as_json(view: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view that we built ourselves, as it is.

    What a route returns otherwise takes another turn in the thread pool, to be checked against its own type. The route
    names its `response_model` all the same, for the OpenAPI document.
    """
    return Response(view.model_dump_json(), status, headers, "application/json")
