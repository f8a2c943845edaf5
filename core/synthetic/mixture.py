"""A mixture of products: a row has a hidden group, and its columns are independent within the group.

    P(x) = Σ_z π_z Π_j P_zj(x_j)        the table of columns i, j: Σ_z π_z P_zi P_zjᵀ

Groups are fitted to all noisy tables at once, by least squares in units of their noise: ½ Σ (n P_ij − T_ij)²/s_ij², and
a pull of each group to the margins where the tables say little. 64 groups of W cells have far fewer numbers than the
tables: most of the noise fits no group.

Source: mixtures of products for noisy marginals: Liu, Vietri & Wu 2021, "Iterative methods for private synthetic data".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.statistics.statistics_columns import Floats
from core.synthetic.noisy_tables import Codes, Tables

# Chosen on tables that no report is about (docs/decisions/0050).
GROUPS, STEPS, RATE, FIRST_SPREAD, PULL = 64, 400, 0.1, 0.3, 10.0
LEAST_RATE = 0.02  # the last step's, of RATE


@dataclass(frozen=True)
class Mixture:
    """Fitted groups.

    Attributes:
        groups: π, (K,).
        cells: P, (K, W): the columns' distributions side by side.
    """

    groups: Floats
    cells: Floats
    tables: Tables

    @classmethod
    def fitted(cls, tables: Tables, random: np.random.Generator) -> Mixture:
        """The mixture of these tables; the same for the same tables and random numbers."""
        return _Fit(tables, random).result()

    def rows(self, count: int, random: np.random.Generator) -> Codes:
        """Draws rows. A group's rows are drawn evenly: their margins are off by less than one row a cell."""
        counts = np.floor(self.groups * count).astype(np.int64)
        drawn_groups = random.choice(len(self.groups), count - int(counts.sum()), p=self.groups)
        members = counts + np.bincount(drawn_groups, minlength=len(counts))
        groups = np.repeat(np.arange(len(members)), members)
        first = np.repeat(np.cumsum(members) - members, members)
        rows_drawn = np.empty((count, len(self.tables.sizes)), dtype=np.int64)
        for column in range(rows_drawn.shape[1]):
            # An order of each group's rows by chance: the rank of a random number within the group.
            order = np.lexsort((random.random(count), groups))
            ranks = np.empty(count)
            ranks[order] = np.arange(count) - first
            evenly = (ranks + random.random(count)) / members[groups]
            rows_drawn[:, column] = drawn(self.cells[:, self.tables.span(column)], groups, evenly)
        shuffled: Codes = rows_drawn[random.permutation(count)]
        return shuffled


def drawn(shares: Floats, which: Codes, uniform: Floats) -> Codes:
    """The cell of each row: of distribution `which` of `shares`, (K, cells), at a uniform number."""
    cumulated = np.cumsum(shares, axis=1)
    cumulated /= cumulated[:, -1:]
    count = shares.shape[1]
    # One search for all rows: distribution k lies between k and k + 1.
    flat = (cumulated + np.arange(len(shares))[:, None]).ravel()
    places = np.searchsorted(flat, which + uniform, side="right") - which * count
    cells: Codes = np.clip(places, 0, count - 1)
    return cells


class _Fit:
    """Gradient steps (Adam) on the groups' logits, around the margins'."""

    def __init__(self, tables: Tables, random: np.random.Generator) -> None:
        width = tables.width
        self.tables = tables
        self.starts = np.array(tables.starts)
        self.column = np.repeat(np.arange(len(tables.sizes)), tables.sizes)
        self.margins = np.concatenate([np.log(each) for each in tables.shares])
        self.wanted, self.weights = np.zeros((width, width)), np.zeros((width, width))
        for pair, table in tables.pairs.items():
            one, other = map(tables.span, pair)
            self.wanted[one, other] = table / tables.total
            self.weights[one, other] = tables.total**2 * tables.weight(pair)
        self.wanted, self.weights = self.wanted + self.wanted.T, self.weights + self.weights.T
        spread = FIRST_SPREAD * random.standard_normal((GROUPS, width))
        self.logits, self.group_logits = spread, np.zeros(GROUPS)

    def result(self) -> Mixture:
        cells, groups = _Adam(self.logits), _Adam(self.group_logits)
        for step in range(STEPS):
            rate = RATE * (0.5 * (1.0 + np.cos(np.pi * step / STEPS)) + LEAST_RATE)
            by_cells, by_groups = self._gradient()
            cells.step(by_cells, rate)
            groups.step(by_groups, rate)
        shares, products = self._shares()
        return Mixture(shares, products, self.tables)

    def _shares(self) -> tuple[Floats, Floats]:
        raised = self.logits + self.margins
        powers = np.exp(raised - np.maximum.reduceat(raised, self.starts, axis=1)[:, self.column])
        groups = np.exp(self.group_logits - self.group_logits.max())
        return groups / groups.sum(), powers / np.add.reduceat(powers, self.starts, axis=1)[:, self.column]

    def _gradient(self) -> tuple[Floats, Floats]:
        groups, products = self._shares()
        off = self.weights * (products.T @ (groups[:, None] * products) - self.wanted)
        by_product = products @ off
        pulled = groups[:, None] * by_product
        mean = np.add.reduceat(pulled * products, self.starts, axis=1)[:, self.column]
        by_cells = products * (pulled - mean) + PULL * groups[:, None] * self.logits
        by_share = 0.5 * (by_product * products).sum(axis=1)
        return by_cells, groups * (by_share - float(groups @ by_share))


class _Adam:
    """Adam on one array, in place."""

    def __init__(self, parameters: Floats) -> None:
        self.parameters, self.steps = parameters, 0
        self.first, self.second = np.zeros_like(parameters), np.zeros_like(parameters)

    def step(self, gradient: Floats, rate: float) -> None:
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient**2
        first, second = self.first / (1.0 - 0.9**self.steps), self.second / (1.0 - 0.99**self.steps)
        self.parameters -= rate * first / (np.sqrt(second) + 1e-12)
