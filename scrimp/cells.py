"""Cells of an owner's file and of records: numbers as text, columns by name, and what an error says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

NAMED, SHOWN = 5, 60  # how many columns an error names, and how much of a cell


def require_columns(record: Mapping[str, Any], names: Sequence[str], at: int) -> None:
    """Names the model's columns that a record lacks, and members that may be meant.

    Raises:
        ValueError: there are some.
    """
    message = lacking([str(each) for each in record], names)
    if message is not None:
        raise ValueError(
            f"records/{at}: a record must have the model's {len(names)} columns (others are ignored): it {message}"
        )


def lacking(present: Sequence[str], names: Sequence[str]) -> str | None:
    """Says which columns a record or a file lacks, and which of its columns may be meant; None if it lacks none.

    >>> lacking(["Age", "sex"], ["age", "sex"])
    'lacks `age`; perhaps `Age` must be called `age`'
    """
    missing = [name for name in names if name not in set(present)]
    if not missing:
        return None
    foreign = [each for each in present if each not in set(names)]
    hints = [
        f"; perhaps `{like}` must be called `{each}`" for each in missing[:NAMED] for like in _similar(each, foreign)
    ]
    remainder = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    listed = ", ".join(f"`{each}`" for each in missing[:NAMED]) + remainder
    return f"lacks {listed}{''.join(hints)}"


def _similar(name: str, names: Sequence[str]) -> list[str]:
    """The most similar name, in any case of letters; none if none is."""
    by_lower = {each.lower(): each for each in names}
    return [by_lower[each] for each in get_close_matches(name.lower(), list(by_lower), n=1)]


def shown(cell: Any) -> str:
    """A cell, for an error about it.

    >>> shown("4O"), shown(None)
    ("'4O'", 'None')
    """
    text = repr(cell.item() if hasattr(cell, "item") else cell)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def python_rows(table: Any, before: int = 0) -> list[dict[str, Any]]:
    """The rows of a table or a batch of Arrow, in Python's types.

    Args:
        before: so many rows of the file come before them, for errors.

    Raises:
        ValueError: Python has no such day, as its years are 1 to 9999; names the column and its first row.
    """
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError):
        for name, cells in zip(table.schema.names, table.columns, strict=True):
            for at, cell in enumerate(cells):
                try:
                    cell.as_py()
                except (ValueError, OverflowError):
                    raise ValueError(
                        f"row {before + at + 1:,} of column `{name}` is no day of the years 1 to 9999"
                    ) from None
        raise
    return rows


def text_number(cell: str) -> float:
    """The number that a file's cell is; raises ValueError if it is none."""
    if "_" in cell:  # Python reads 20_24 as a number; a data file does not mean one
        raise ValueError
    return float(cell)
