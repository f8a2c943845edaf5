"""Ids and times, in the contract's notation."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime


def new_id(prefix: str) -> str:
    """`prefix_` and 100 random bits, lower-case base 32: not guessable, safe in URLs and file names."""
    return f"{prefix}_{base64.b32encode(secrets.token_bytes(13)).decode().rstrip('=').lower()}"


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def whole_second() -> datetime:
    """The last whole second. Times that could reveal work on private data are written with this precision."""
    return now().replace(microsecond=0)


def rfc3339(moment: datetime | None) -> str | None:
    """`2026-01-31T12:00:00.123456Z`."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
