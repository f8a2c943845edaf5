"""The error of OpenDP's answers on a table's columns, for benchmarks/statistics_error.py.

    PYTHON benchmarks/statistics_opendp.py COLUMNS.npz ρ REPEATS

PYTHON has `opendp` and `numpy`. Every measurement is built by the library, its scale is the smallest that its own map
allows at ρ-zCDP for one record added or removed, and the map is checked. Prints the answers as JSON: name → rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import opendp.prelude as dp

dp.enable_features("contrib", "honest-but-curious")
FLOATS = (dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance())
CELLS = (dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance())
Measure = Callable[[Any], Any]


def at(make: Callable[[float], Any], rho: float) -> Measure:
    """The measurement with the least noise at ρ."""
    measurement = dp.binary_search_chain(make, d_in=1, d_out=rho, bounds=(1e-9, 1e13))
    assert measurement.check(1, rho)
    found: Measure = measurement
    return found


def count(rho: float) -> Measure:
    return at(lambda s: CELLS >> dp.t.then_count() >> dp.m.then_gaussian(s), rho)


def cells(size: int, rho: float) -> Measure:
    by = dp.t.then_count_by_categories(list(range(size)), null_category=False, MO=dp.L2Distance[int])
    return at(lambda s: CELLS >> by >> dp.m.then_gaussian(s), rho)


def total(low: float, high: float, limit: int, rho: float) -> Measure:
    """A sum of floats whose number is unknown."""
    added = dp.t.make_bounded_float_checked_sum(limit, (low, high))
    clamped = dp.t.make_clamp(*FLOATS, (low, high))
    return at(lambda s: clamped >> added >> dp.m.then_gaussian(s), rho)


def of_known_size(kind: str, n: int, low: float, high: float, rho: float) -> Measure:
    """A mean or variance where n is told to the library, and is right."""
    resized = dp.t.make_clamp(*FLOATS, (low, high)) >> dp.t.then_resize(n, constant=(low + high) / 2.0)
    last = dp.t.then_mean() if kind == "mean" else dp.t.then_variance()
    return at(lambda s: resized >> last >> dp.m.then_gaussian(s), rho)


def quantile(candidates: list[float], q: float, rho: float) -> Measure:
    return at(lambda s: dp.m.make_private_quantile(*FLOATS, dp.zero_concentrated_divergence(), candidates, q, s), rho)


def answers(columns: dict[str, Any], rho: float, repeats: int) -> dict[str, list[Any]]:
    """The answers of each query alone at ρ, so many times."""
    x, y, first, both = (columns[name] for name in ("x", "y", "cells", "pairs"))
    n, (low, high), (low_y, high_y) = len(x), columns["range_x"], columns["range_y"]
    xs, ys = x.tolist(), y.tolist()
    sizes, firsts, pairs = columns["sizes"].tolist(), first.tolist(), both.tolist()
    half = max(abs(low), abs(high))
    squares, products = (x * x).tolist(), (x * y).tolist()
    most_y = max(abs(low_y), abs(high_y))

    def sums(parts: int, of: list[tuple[list[float], float, float]]) -> list[tuple[Measure, list[float]]]:
        return [(total(lo, hi, 4 * n, rho / parts), values) for values, lo, hi in of]

    one, histogram, table = count(rho), cells(sizes[0], rho), cells(sizes[1], rho)
    alone = total(low, high, 4 * n, rho)
    mean_of, counted_2 = sums(2, [(xs, low, high)]), count(rho / 2)
    variance_of, counted_3 = sums(3, [(xs, low, high), (squares, 0.0, half**2)]), count(rho / 3)
    of_both = [(xs, low, high), (ys, low_y, high_y), (products, -half * most_y, half * most_y)]
    of_both += [(squares, 0.0, half**2), ((y * y).tolist(), 0.0, most_y**2)]
    covariance_of, counted_6 = sums(6, of_both), count(rho / 6)
    known = {kind: of_known_size(kind, n, low, high, rho) for kind in ("mean", "variance")}
    candidates = np.linspace(low, high, 1025).tolist()
    quantiles = [quantile(candidates, q, rho / 2.0) for q in (0.5, 0.9)]
    found: dict[str, list[Any]] = {}
    for _ in range(repeats):
        found.setdefault("count", []).append([one(firsts)])
        found.setdefault("histogram", []).append(histogram(firsts))
        found.setdefault("contingency", []).append(table(pairs))
        found.setdefault("sum", []).append([alone(xs)])
        m, (s,) = counted_2(firsts), [measure(values) for measure, values in mean_of]
        found.setdefault("mean", []).append([s / m])
        m, (s, t) = counted_3(firsts), [measure(values) for measure, values in variance_of]
        found.setdefault("variance", []).append([t / m - (s / m) ** 2])
        m, (s, u, p, *_) = counted_6(firsts), [measure(values) for measure, values in covariance_of]
        found.setdefault("covariance", []).append([p / m - (s / m) * (u / m)])
        found.setdefault("quantile", []).append([measure(xs) for measure in quantiles])
        for kind, measure in known.items():
            found.setdefault(f"{kind}, n known", []).append([measure(xs)])
    return found


if __name__ == "__main__":
    with np.load(sys.argv[1]) as stored:
        print(json.dumps(answers(dict(stored), float(sys.argv[2]), int(sys.argv[3]))))
