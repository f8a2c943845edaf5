"""The target of each row, drawn from the row's other columns by an additive model.

    P(y | x) ∝ P(y) exp(Σ_j f_j(x_j, y))

f is fitted on the drawn rows, so that the tables of target and column are the noisy ones: the model of largest entropy
with these tables, and what an additive model of the records would be fitted to. A mixture alone matches the tables too,
but invents what columns do together, and whatever is trained on its rows learns that.
"""

from __future__ import annotations

import numpy as np

from core.statistics.statistics_columns import Floats
from core.synthetic.mixture import drawn
from core.synthetic.noisy_tables import Codes, Tables

STEPS, RATE, FRICTION = 200, 0.1, 0.9
PULL = 0.3  # to f = 0, in stds of the noise
MOST_TERMS = 4_000_000  # rows · columns · cells of a step: more rows say no more
AT_ONCE = 1_000_000  # rows · cells that are drawn at a time


def with_target(rows: Codes, target: int, tables: Tables, random: np.random.Generator) -> Codes:
    """The rows with their target drawn anew."""
    model = _Additive(rows, target, tables)
    model.fit()
    rows_with_target = rows.copy()
    rows_with_target[:, target] = model.draw(rows, random)
    return rows_with_target


class _Additive:
    """f, fitted to the rows' tables with the target."""

    def __init__(self, rows: Codes, target: int, tables: Tables) -> None:
        self.others = [column for column in range(len(tables.sizes)) if column != target]
        sizes, classes = [tables.sizes[each] for each in self.others], tables.sizes[target]
        self.starts = np.cumsum([0, *sizes[:-1]])
        self.base, self.f = np.log(tables.shares[target]), np.zeros((sum(sizes), classes))
        rows_at_once = max(MOST_TERMS // (len(self.others) * classes), 1)
        self.rows = self._places(rows[:rows_at_once])
        scale = tables.total / len(self.rows)
        self.scale, self.counts = scale, scale * np.bincount(self.rows.ravel(), minlength=sum(sizes))
        pairs = [(min(each, target), max(each, target)) for each in self.others]
        noisy = [tables.pairs[pair] if pair[1] == target else tables.pairs[pair].T for pair in pairs]
        wanted, share = np.concatenate(noisy), tables.shares[target]
        # The rows have other margins than the tables: what a cell has more or less is of all classes.
        self.wanted = wanted - (wanted.sum(axis=1) - self.counts)[:, None] * share
        stds = np.repeat([tables.stds[pair] for pair in pairs], sizes)
        self.pull = PULL * np.maximum(stds, 1.0)[:, None]
        self.curvature = self.counts[:, None] * (share * (1.0 - share)) + self.pull

    def _places(self, rows: Codes) -> Codes:
        places: Codes = rows[:, self.others] + self.starts
        return places

    def _shares(self, places: Codes) -> Floats:
        logits = np.tile(self.base, (len(places), 1))
        for column in range(places.shape[1]):
            logits += self.f[places[:, column]]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: Floats = powers / powers.sum(axis=1, keepdims=True)
        return shares

    def fit(self) -> None:
        velocity, flat = np.zeros_like(self.f), self.rows.ravel()
        for _ in range(STEPS):
            shares = self._shares(self.rows)
            expected = [
                np.bincount(flat, np.repeat(each, self.rows.shape[1]), minlength=len(self.f)) for each in shares.T
            ]
            gradient = self.scale * np.stack(expected, axis=1) - self.wanted + self.pull * self.f
            velocity = FRICTION * velocity + (1.0 - FRICTION) * gradient / self.curvature
            self.f -= RATE * velocity

    def draw(self, rows: Codes, random: np.random.Generator) -> Codes:
        uniform = random.random(len(rows))
        values = np.empty(len(rows), dtype=np.int64)
        many = max(AT_ONCE // self.f.shape[1], 1)  # at a time, as each row has shares of its own
        for first in range(0, len(rows), many):
            some = slice(first, first + many)
            shares = self._shares(self._places(rows[some]))
            values[some] = drawn(shares, np.arange(len(shares)), uniform[some])
        return values
