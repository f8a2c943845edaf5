"""Noisy two-way tables of columns' cells, and what follows from them at once: the total and one-way margins.

All of core.synthetic is post-processing of released numbers, the declaration and the specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from core.statistics.answers import nonnegative
from core.statistics.statistics_columns import Floats

Codes = NDArray[np.int64]  # cells by their places, (rows, columns)
FEWEST = 1.0  # records: a noisy total may be below 0
HALF_A_RECORD = 0.5  # is added to each cell of a margin: none is impossible


@dataclass(frozen=True)
class Tables:
    """The noisy table of each pair of columns.

    Attributes:
        sizes: how many cells each column has.
        pairs: by the columns' places (i < j), (sizes[i], sizes[j]).
        stds: the std of the noise on each of a pair's numbers; 0 on public data.
    """

    sizes: tuple[int, ...]
    pairs: dict[tuple[int, int], Floats]
    stds: dict[tuple[int, int], float]
    starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", tuple(int(each) for each in np.cumsum((0, *self.sizes[:-1]))))

    @classmethod
    def of(cls, sizes: Sequence[int], noisy: Sequence[Floats], stds: Sequence[float]) -> Tables:
        """From a release's numbers, in the order of the pairs (core.contracts.marginals)."""
        places = list(combinations(range(len(sizes)), 2))
        tables = [each.reshape(sizes[i], sizes[j]) for (i, j), each in zip(places, noisy, strict=True)]
        return cls(
            tuple(sizes), dict(zip(places, tables, strict=True)), dict(zip(places, map(float, stds), strict=True))
        )

    @property
    def width(self) -> int:
        """The number of all columns' cells."""
        return sum(self.sizes)

    def span(self, column: int) -> slice:
        """A column's places among the cells of all."""
        return slice(self.starts[column], self.starts[column] + self.sizes[column])

    def weight(self, pair: tuple[int, int]) -> float:
        """1/s²; tables without noise weigh as if a cell were off by one."""
        return 1.0 / (self.stds[pair] ** 2 or 1.0)

    @cached_property
    def total(self) -> float:
        """How many records there are, from all tables by their precision."""
        weights = {pair: self.weight(pair) / table.size for pair, table in self.pairs.items()}
        weighted = sum(weight * float(self.pairs[pair].sum()) for pair, weight in weights.items())
        return max(weighted / sum(weights.values()), FEWEST)

    @cached_property
    def margins(self) -> tuple[Floats, ...]:
        """Each column's margin, from every table that it is in by its precision; nonnegative, of the one total."""
        sums, weights = [np.zeros(size) for size in self.sizes], [0.0] * len(self.sizes)
        for pair, table in self.pairs.items():
            for axis, column in enumerate(pair):
                weight = self.weight(pair) / self.sizes[pair[1 - axis]]
                sums[column] += weight * table.sum(axis=1 - axis)
                weights[column] += weight
        return tuple(_scaled(margin / weight, self.total) for margin, weight in zip(sums, weights, strict=True))

    @cached_property
    def margin_stds(self) -> tuple[float, ...]:
        """The std of the noise on each number of a margin, before it was made nonnegative."""
        precision = [0.0] * len(self.sizes)
        for (i, j), std in self.stds.items():
            if std:
                precision[i] += 1.0 / (std**2 * self.sizes[j])
                precision[j] += 1.0 / (std**2 * self.sizes[i])
        return tuple(each**-0.5 if each else 0.0 for each in precision)

    @cached_property
    def shares(self) -> tuple[Floats, ...]:
        """Each column's distribution, no cell of it 0."""
        raised = [each + HALF_A_RECORD for each in self.margins]
        return tuple(each / each.sum() for each in raised)


def _scaled(raw: Floats, total: float) -> Floats:
    values = nonnegative(raw)
    return values * (total / values.sum()) if values.any() else np.full(len(raw), total / len(raw))


def tables_of(codes: Codes, sizes: Sequence[int]) -> list[Floats]:
    """The table of each pair of columns of rows, flat, in order of the pairs."""
    return [
        np.bincount(codes[:, i] * sizes[j] + codes[:, j], minlength=sizes[i] * sizes[j]).astype(np.float64)
        for i, j in combinations(range(len(sizes)), 2)
    ]
