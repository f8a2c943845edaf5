"""From the released tables of a synthetic job to its rows: features by a mixture, then the target by an additive model.

Everything is a function of released numbers, the declaration and the specification. The random numbers come from the
released bits, which are public: rows need no secret, and the same release has the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.statistics.statistics_columns import Axis, Floats
from core.synthetic.mixture import Mixture
from core.synthetic.noisy_tables import Tables
from core.synthetic.target import with_target
from core.synthetic.utility import utility
from core.synthetic.utility_file import UtilityFile
from core.synthetic.values import Values, values_of

# Measured, see tests/synthetic: of a drawn cell, as a code, a value, and text in two files; of a model's numbers.
CELL_BYTES, MODEL_BYTES, TARGET_BYTES = 320, 96, 2**26


@dataclass(frozen=True)
class Synthesis:
    """Rows, column by column, and how near they are to the noisy tables."""

    columns: tuple[Values, ...]
    utility: UtilityFile


def synthesise(
    axes: Sequence[Axis], noisy: Sequence[Floats], stds: Sequence[float], target: str | None, rows: int
) -> Synthesis:
    """Draws rows.

    Args:
        axes: of the columns, in order.
        noisy: the released table of each pair, flat (core.contracts.marginals).
        stds: of the noise on each; 0 on public data.
        target: the name of the column that is drawn from the others; None: all are alike.
    """
    random = np.random.Generator(np.random.PCG64(_seed(noisy)))
    tables = Tables.of([len(axis.labels) for axis in axes], noisy, stds)
    codes = Mixture.fitted(tables, random).rows(rows, random)
    names = [axis.column.declared.name for axis in axes]
    if target is not None:
        codes = with_target(codes, names.index(target), tables, random)
    drawn = tuple(values_of(axis, codes[:, place], random) for place, axis in enumerate(axes))
    return Synthesis(drawn, utility(tables, axes, codes, target))


def bytes_of(numbers: int, columns: int, rows: int) -> int:
    """The memory that rows and their model take at most, from public sizes alone.

    Args:
        numbers: of all released tables.
    """
    return CELL_BYTES * columns * rows + MODEL_BYTES * 2 * numbers + TARGET_BYTES


def _seed(noisy: Sequence[Floats]) -> int:
    content = hashlib.sha256()
    for values in noisy:
        content.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return int.from_bytes(content.digest(), "big")
