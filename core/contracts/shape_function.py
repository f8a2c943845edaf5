"""What a linear model of a table learned of a column, as its card says it."""

from __future__ import annotations

from core.contracts.base import Document


class ShapeFunction(Document):
    """One column's function, or a pair's.

    Attributes:
        columns: the column, or the two of a pair.
        places: of each column, in order: bins, categories, or the ends of a range.
        outputs: what `values` add to: a class, or the target.
        values: for each output its values, at each place; of a pair row by row.
    """

    columns: tuple[str, ...]
    places: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
