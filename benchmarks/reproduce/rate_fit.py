"""The fit of the constants: what accuracy a rule loses against the best point of the oracle's grid."""

from __future__ import annotations

import itertools
import json
import math
from functools import cache

from app.hpo.rates import Constants, PublicNumbers, rate_of
from benchmarks.reproduce.rate_data import data, length
from benchmarks.reproduce.rate_runs import KAPPAS, SETTINGS, Setting, cells, curve, kept, norm_of, rate, sigma_of
from core.contracts.optimizers import DpSgd

Cell = tuple[str, Setting, float]
GRID = tuple(round(0.3 * 1.25**k, 3) for k in range(10))  # of κ
SETTLING = tuple(round(0.3 * 1.4**k, 3) for k in range(12))  # of a
CLIPPED = (1.0, 2.0, 3.0, 4.0, 6.0, 10.0)  # of the most that clipping counts


def eta(cell: Cell, constants: Constants, assumed: float | None = None) -> float:
    """The rule's rate.

    Args:
        assumed: a ‖x‖ in the place of the set's median.
    """
    name, setting, epsilon = cell
    them = data(name)
    numbers = PublicNumbers(
        steps=setting.steps,
        expected_batch_size=setting.batch or len(them.train),
        noise_multiplier=sigma_of(name, setting, epsilon),
        max_grad_norm=norm_of(name, setting),
        length=assumed or length(name),
        outputs=them.outputs,
        is_sparse=them.sparse,
    )
    return rate_of(DpSgd(momentum=setting.momentum, free_step=True), numbers, constants).value


@cache
def points(cell: Cell) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """ln η and accuracy on the oracle's grid."""
    name, setting, epsilon = cell
    sigma = sigma_of(name, setting, epsilon)
    return tuple(math.log(rate(name, setting, sigma, kappa)) for kappa in KAPPAS), tuple(curve(*cell))


@cache
def regret(cell: Cell, constants: Constants) -> float:
    """What the rule loses against the grid's best, in points of accuracy; between its points by a line in ln η."""
    x, y = points(cell)
    at = min(max(math.log(eta(cell, constants)), x[0]), x[-1])
    right = next((k for k in range(1, len(x)) if at <= x[k]), len(x) - 1)
    share = (at - x[right - 1]) / (x[right] - x[right - 1])
    return 100.0 * (max(y) - (y[right - 1] + share * (y[right] - y[right - 1])))


def fit(over: list[Cell], clipped: tuple[float, ...] = CLIPPED) -> Constants:
    """The constants of the least mean regret; data sets weigh alike."""
    weights = {name: 1.0 / sum(cell[0] == name for cell in over) for name, _, _ in over}

    def total(cells: list[Cell], constants: Constants) -> float:
        return sum(weights[cell[0]] * regret(cell, constants) for cell in cells)

    best: tuple[float, Constants] | None = None
    for kappa, most in itertools.product(GRID, clipped):
        # The second bounds of dense features and of words concern different sets: each is fitted on its own.
        chosen = {}
        for sparse in (False, True):
            mine = [cell for cell in over if data(cell[0]).sparse == sparse]
            chosen[sparse] = min(SETTLING, key=lambda a: total(mine, Constants(kappa, most, a, a)))
        constants = Constants(kappa, most, chosen[False], chosen[True])
        worth = total(over, constants)
        if best is None or worth < best[0]:
            best = worth, constants
    if best is None:
        raise ValueError("nothing to fit")
    return best[1]


def done(names: tuple[str, ...]) -> list[Cell]:
    """The cells of these sets whose whole curve was run."""
    finished = []
    for cell in cells(names, SETTINGS):
        name, setting, epsilon = cell
        known = (f'"data": "{name}"', f'"epsilon": {epsilon}', f'"setting": "{setting}"')
        runs = sum(all(part in entry for part in known) for entry in _entries())
        if runs >= len(KAPPAS):
            finished.append(cell)
    return finished


@cache
def _entries() -> tuple[str, ...]:
    return tuple(json.dumps(json.loads(name), ensure_ascii=False, sort_keys=True) for name in kept.entries)
