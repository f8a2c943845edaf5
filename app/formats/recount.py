"""Counts the protected units of stored parts. Runs in a helper process (app.sandbox): a part may be large."""

from __future__ import annotations

from typing import Any

from app.formats.part_files import units_of


def recount(request: dict[str, Any]) -> dict[str, Any]:
    """Counts the units of each part.

    Args:
        request: `parts` ({"train", "holdout"}: {"path", "sha256"}).

    Returns:
        `units` ({"train", "holdout"}): private counts, for the owner alone.

    Raises:
        DataDamagedError: a part is missing or differs from the registered one.
    """
    return {"units": {name: units_of(part["path"], part["sha256"]) for name, part in request["parts"].items()}}
