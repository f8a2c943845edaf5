"""Counts units and records of stored parts. Runs in a helper process (app.sandbox.limited): a part may be large."""

from __future__ import annotations

from typing import Any

from app.formats.asked import PartCount, PartCounts, RecountRequest, SealedPart
from core.parts.part_files import count_of


def recount(request: dict[str, Any]) -> dict[str, Any]:
    """Counts each part: JSON of a `RecountRequest` in, of `PartCounts` out, as on the pipe.

    Raises:
        DataDamagedError: a part is missing or differs from the registered one.
    """
    question = RecountRequest.model_validate(request)
    holdout = None if question.holdout is None else _count(question.holdout)
    return PartCounts(train=_count(question.train), holdout=holdout).model_dump(mode="json")


def _count(part: SealedPart) -> PartCount:
    units, rows = count_of(part.path, part.sha256, None if part.key is None else bytes.fromhex(part.key))
    return PartCount(units=units, rows=rows)
