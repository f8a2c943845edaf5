"""How near synthetic rows are to the noisy tables: free, as nothing else is compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from core.statistics.statistics_columns import Axis, Floats
from core.synthetic.noisy_tables import Codes, Tables, tables_of
from core.synthetic.utility_file import Cell, ColumnUtility, PairUtility, UtilityFile


def utility(tables: Tables, axes: Sequence[Axis], rows: Codes, target: str | None) -> UtilityFile:
    """Compares rows with the tables that they were drawn from."""
    names = [axis.column.declared.name for axis in axes]
    one_way = [
        ColumnUtility(
            column=names[place],
            error=_apart(drawn := _shares(rows[:, place], axis), margin := tables.margins[place] / tables.total),
            noise=_of_noise(len(margin), tables.margin_stds[place], tables.total),
            cells=tuple(
                Cell(cell=label, noisy=float(noisy), rows=float(share))
                for label, noisy, share in zip(axis.labels, margin, drawn, strict=True)
            ),
        )
        for place, axis in enumerate(axes)
    ]
    two_way = [
        PairUtility(
            columns=(names[i], names[j]),
            error=_apart(table / len(rows), noisy.ravel() / tables.total),
            noise=_of_noise(noisy.size, tables.stds[i, j], tables.total),
        )
        for ((i, j), noisy), table in zip(tables.pairs.items(), tables_of(rows, tables.sizes), strict=True)
    ]
    return UtilityFile(
        rows=len(rows), records=tables.total, target=target, one_way=tuple(one_way), two_way=tuple(two_way)
    )


def _shares(codes: Codes, axis: Axis) -> Floats:
    return np.bincount(codes, minlength=len(axis.labels)) / len(codes)


def _apart(one: Floats, other: Floats) -> float:
    return 0.5 * float(np.abs(one - other).sum())


def _of_noise(cells: int, std: float, total: float) -> float:
    """½ Σ E|noise| over the total."""
    return 0.5 * cells * std * math.sqrt(2.0 / math.pi) / total
