"""The requests and responses of the predictions' routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.db.row_view import Column, Moment, RowView
from core.contracts.base import Document

MAX_RECORDS = 1000


class PredictionRequest(Document):
    """The caller's own inputs. `records`: objects for columns and tables, whose other members are ignored and
    whose numbers may be text, lists of numbers for tensors, texts, objects with `user` and `item` for ratings, lists of
    items' ids for next items. `top`: how many classes, items or next tokens to return
    for each record.
    """

    records: Annotated[list[Any], Field(min_length=1, max_length=MAX_RECORDS)]
    top: Annotated[int, Field(strict=True, ge=1, le=100)] = 10


class PredictionView(RowView):
    """`predictions`, one for each record in order, once it has succeeded: `class` and the `top` classes'
    `probabilities`; `value` for a regression or rating; `items`, the best ones with their scores; for a language model
    the text's `loss`, `perplexity` and number of `tokens`, and the `top` most probable `next` ones."""

    id: str
    job: Annotated[str, Column("job_id")]
    status: Literal["queued", "running", "succeeded", "failed"]
    predictions: Annotated[list[dict[str, Any]] | None, Column("outputs")]
    failure: dict[str, str] | None
    created_at: Annotated[str, Moment("created_at")]
    expires_at: Annotated[str, Moment("expires_at")]
