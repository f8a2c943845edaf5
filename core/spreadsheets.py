"""Texts in CSV files that a spreadsheet program may open."""

from __future__ import annotations

# A cell that begins so is a formula to the programs that open such files; the last four are wide = + - @.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def plain(cell: object) -> object:
    """A text that no program takes for a formula: an apostrophe before it says so.

    >>> plain("=1+1"), plain("a"), plain(-1.0)
    ("'=1+1", 'a', -1.0)
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
