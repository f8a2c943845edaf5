"""What columns of well-known names hold, by public knowledge: `columns.json`. The dashboard serves it to browsers.

A range or a list of values from here says nothing about the data; the smallest and largest value of a file do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class PublicColumn:
    """A kind of column.

    Attributes:
        names: in small letters, words joined by `_`; compared after `words`.
        unit: of the range.
        range: [lowest, highest] of a number.
        values: sets of values that such a column has, each as one file would write it.
        days: [first, last] of a date.
    """

    names: tuple[str, ...]
    unit: str = ""
    range: tuple[float, float] | None = None
    scale: str = "linear"
    values: tuple[tuple[str, ...], ...] = ()
    days: tuple[str, str] | None = None


def words(name: str) -> str:
    """A column's name in small letters, with `_` between words.

    >>> words("Patient Age"), words("dateOfBirth")
    ('patient_age', 'date_of_birth')
    """
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"[^a-z0-9]+", "_", apart.lower()).strip("_")


def public_column(name: str) -> PublicColumn | None:
    """What is publicly known of a column by its name; None if nothing is. A word such as `patient` may stand before."""
    columns, prefixes = _dictionary()
    plain = words(name)
    first, _, suffix = plain.partition("_")
    return columns.get(plain) or (columns.get(suffix) if first in prefixes else None)


@cache
def _dictionary() -> tuple[dict[str, PublicColumn], frozenset[str]]:
    document = json.loads((files("scrimp") / "columns.json").read_text(encoding="utf-8"))
    entries = [_entry(members) for members in document["columns"]]
    return {name: entry for entry in entries for name in entry.names}, frozenset(document["prefixes"])


def _entry(members: dict[str, Any]) -> PublicColumn:
    sets = tuple(tuple(values) for values in members.get("values", ()))
    low_high = members.get("range")
    return PublicColumn(
        names=tuple(members["names"]),
        unit=members.get("unit", ""),
        range=None if low_high is None else (float(low_high[0]), float(low_high[1])),
        scale=members.get("scale", "linear"),
        values=sets,
        days=None if "days" not in members else (members["days"][0], members["days"][1]),
    )
