"""Keyset pagination: `{"items": […], "next": cursor or null}`. A cursor is opaque and holds the last row's sort key."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Query

from core.errors import InvalidRequest
from core.ids import rfc3339

R = TypeVar("R")

NO_CURSOR = "this is not a cursor of this list: take `next` from the page before"
Limit = Annotated[int, Query(ge=1, le=200, description="The most items on a page.")]
After = Annotated[str | None, Query(max_length=500, description="`next` from the page before.")]


def encode_cursor(*key: Any) -> str:
    """Encodes the sort key of a page's last row, URL-safe."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def cut(rows: list[R], limit: int) -> tuple[list[R], str | None]:
    """A page of rows in order of time, and the cursor of the next page; None on the last.

    Args:
        rows: those of the page, and one more if there is a next page.
    """
    page = rows[:limit]
    last: Any = page[-1] if len(rows) > limit else None
    return page, None if last is None else encode_cursor(rfc3339(last.created_at), last.id)


def decode_moment(text: str) -> datetime:
    """Decodes a cursor's time, in UTC.

    Raises:
        InvalidRequest: it is not a time with a zone, or the database cannot hold it.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest.at("/query/after", NO_CURSOR) from None


def decode_row(after: str | None) -> tuple[datetime, str] | None:
    """Decodes the cursor of a list in order of time: the last row's time and id; None: from the first row.

    Raises:
        InvalidRequest: it is not a cursor of this list.
    """
    if after is None:
        return None
    moment, last = decode_cursor(after, str, str)
    return decode_moment(moment), last


def decode_cursor(cursor: str, *types: type) -> tuple[Any, ...]:
    """Decodes a cursor into its sort key.

    Args:
        cursor: from `encode_cursor`.
        types: the type of each member, checked.

    Raises:
        InvalidRequest: it is not a cursor of this list.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        key = None
    is_valid = isinstance(key, list) and [type(member) for member in key] == list(types)
    # Our cursors never hold these, and a database may refuse them: NUL, half of a surrogate pair.
    texts = is_valid and all(member.isprintable() for member in key if isinstance(member, str))
    if not texts or not all(0 <= member < 2**63 for member in key if isinstance(member, int)):
        raise InvalidRequest.at("/query/after", NO_CURSOR)
    return tuple(key)
