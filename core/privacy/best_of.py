"""The best of a secret number K of Gaussian runs: its Rényi divergence (decision 72).

    D_λ ≤ λμ²/2 + 1/(λ−1) · sup_q [ λ log f′(q) − (λ−1) log f′(Φ(Φ⁻¹(q) − μ)) ],        f(x) = Σ P(K = k) x^k

for a run that is μ-GDP and K ≥ 1. It holds for every law of K, so also for one that is cut: nothing goes into δ.

Source: Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", Lemma 7; Dong, Roth & Su 2022
(the trade-off curve, which bounds q′ from q).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_REACH, _CELLS = 12.0, 2**16  # Φ⁻¹(q) from −12 to 12, and one cell beyond each end
_ROUNDING = 1e-9  # absolute, on the excess: of sums of at most 100 positive terms, and of Φ

NO_BEST = (
    "no Gaussian bound is known for the best of a secret number of runs, so this data set's `gdp` filter refuses it: "
    "use a data set with the filter `rdp`, or another strategy"
)


def divergence(weights: tuple[int, ...], mu: float, order: float) -> float:
    """A bound on D_λ of the best of K runs, each μ-GDP. Never too small.

    Args:
        weights: of K = 1, 2, …
        mu: of one run with its score.
        order: λ > 1.
    """
    upper, lower = _slopes(weights, mu)
    excess = float((order * upper - (order - 1.0) * lower).max())
    return order * mu * mu / 2.0 + (excess + _ROUNDING * order) / (order - 1.0)


@lru_cache(maxsize=64)
def _slopes(weights: tuple[int, ...], mu: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For cells of q: log f′ at the cell's upper end, and log f′ of the least q′ at its lower end.

    f′ rises, so that no q within a cell has a larger difference than these.
    """
    import numpy as np  # noqa: PLC0415 - slow to import
    from scipy import special  # noqa: PLC0415

    ends = np.linspace(-_REACH, _REACH, _CELLS + 1)
    upper = np.append(special.ndtr(ends), 1.0)
    lower = np.insert(special.ndtr(ends - mu), 0, 0.0)
    return _log_slope(weights, upper), _log_slope(weights, lower)


def _log_slope(weights: tuple[int, ...], at: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log f′ at numbers in [0, 1]: Σ k w_k x^{k−1} / Σ w, by Horner's rule."""
    import numpy as np  # noqa: PLC0415

    total, value = sum(weights), np.zeros_like(at)
    for k in range(len(weights), 0, -1):
        value = value * at + k * (weights[k - 1] / total)
    return np.log(value)
