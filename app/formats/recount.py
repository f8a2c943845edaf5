"""Counts the protected units of stored parts. Runs in a helper process (app.sandbox): a part may be large."""

from __future__ import annotations

from typing import Any

from app.formats.part_files import units_of


def recount(request: dict[str, Any]) -> dict[str, Any]:
    """Counts the units of each part.

    Args:
        request: `parts` ({"train", "holdout"}: {"path", "sha256", "key"}); the key is hex, or null.

    Returns:
        `units` ({"train", "holdout"}): private counts, for the owner alone.

    Raises:
        DataDamagedError: a part is missing or differs from the registered one.
    """
    found = {}
    for name, part in request["parts"].items():
        key = None if part["key"] is None else bytes.fromhex(part["key"])
        found[name] = units_of(part["path"], part["sha256"], key)
    return {"units": found}
