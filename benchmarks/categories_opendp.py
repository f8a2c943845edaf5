"""OpenDP's thresholded Gaussian counts, for benchmarks/categories_error.py.

    PYTHON benchmarks/categories_opendp.py COUNTS.json ρ δ REPEATS

PYTHON has `opendp`. The scale is 1/√(2ρ), and the threshold the least at which the library's own map allows (ρ, δ) for
one record. Prints {"threshold", "told": the values told and their counts, for each release}.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import opendp.prelude as dp

dp.enable_features("contrib", "honest-but-curious")


def main() -> None:
    counts = json.loads(Path(sys.argv[1]).read_text())
    rho, delta, repeats = float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    domain = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=int))
    metric, scale = dp.l02inf_distance(dp.absolute_distance(T=int)), 1.0 / math.sqrt(2.0 * rho)
    low, high = 1, 10_000
    while low < high:
        middle = (low + high) // 2
        _, spent = dp.m.make_gaussian_threshold(domain, metric, scale=scale, threshold=middle).map((1, 1, 1))
        low, high = (low, middle) if spent <= delta else (middle + 1, high)
    measure = dp.m.make_gaussian_threshold(domain, metric, scale=scale, threshold=low)
    spent_rho, spent_delta = measure.map((1, 1, 1))
    assert spent_rho <= rho * (1.0 + 1e-9) and spent_delta <= delta
    print(json.dumps({"threshold": low, "told": [measure(counts) for _ in range(repeats)]}))


if __name__ == "__main__":
    main()
