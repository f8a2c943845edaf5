"""Counts the protected units of stored parts. Runs in a helper process (app.sandbox): a part may be large."""

from __future__ import annotations

from typing import Any

from app.formats.asked import Recounted, RecountRequest, SealedPart
from app.formats.part_files import units_of


def recount(request: dict[str, Any]) -> dict[str, Any]:
    """Counts the units of each part: JSON of a `RecountRequest` in, of a `Recounted` out, as on the pipe.

    Raises:
        DataDamagedError: a part is missing or differs from the registered one.
    """
    asked = RecountRequest.model_validate(request)
    holdout = None if asked.holdout is None else _units(asked.holdout)
    return Recounted(train=_units(asked.train), holdout=holdout).model_dump(mode="json")


def _units(part: SealedPart) -> int:
    return units_of(part.path, part.sha256, None if part.key is None else bytes.fromhex(part.key))
