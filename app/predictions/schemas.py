"""The requests and responses of the predictions' routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.db.row_view import Column, Moment, RowView
from core.contracts.base import Document

MAX_RECORDS = 1000


class PredictionRequest(Document):
    """The caller's own inputs. `top`: how many classes, items or next tokens to return for each record.

    A record, by the data set's features, and its answer:

    * columns: `{"age": 40, "height": 1.7}`; numbers may be text, other members are ignored. `{"class": 1,
      "probabilities": {"1": 0.8, "0": 0.2}}`, or for a regression `{"value": 3.2}`.
    * a table: `{"age": "40", "sex": "f", "admitted": null}`, cells as in a file; null or `""` for a missing one. The
      same answer.
    * a tensor: `[0.0, 0.5, …]`, flattened. A text: `"a fine film"`. The same answer.
    * a text of a language model: `{"loss": 3.1, "perplexity": 22.2, "tokens": 4, "next": [{"token": " about", "id":
      546, "probability": 0.12}, …]}`. `loss` is the mean of −log p over the predicted `tokens`, which include the
      text's end if the whole text was read; `next` the most probable tokens after what was read.
    * a rating: `{"user": "196", "item": "242"}`. `{"value": 3.9}`, within the scale.
    * a sequence: `["50", "172", "181"]`, oldest first. `{"items": [{"item": "174", "row": 173, "score": 2.1}, …]}`;
      `item` is null where ids are hashed.
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
