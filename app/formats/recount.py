"""Counts the protected units of stored parts. Runs in a helper process (app.sandbox): a part may be large."""

from __future__ import annotations

from typing import Any

from app.formats.stored import load_part


def recount(request: dict[str, Any]) -> dict[str, Any]:
    """Counts the units of each part.

    Args:
        request: `parts` ({"train", "holdout"}: {"path", "sha256"}).

    Returns:
        `units` ({"train", "holdout"}): private counts, for the owner alone.

    Raises:
        DataDamagedError: a part is missing or differs from the registered one.
    """
    return {"units": {name: load_part(part["path"], part["sha256"]).units for name, part in request["parts"].items()}}
