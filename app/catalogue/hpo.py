"""The strategies of private search: what each does, what it costs, when to use it."""

from __future__ import annotations

from typing import NamedTuple

from app.contracts import hpo
from app.contracts.base import Document


class Entry(NamedTuple):
    spec: type[Document]
    summary: str
    cost: str
    when_to_use: str
    source: str


STRATEGIES: dict[str, Entry] = {
    "linear_scaling": Entry(
        hpo.LinearScaling,
        "Cheap runs at two or three small ε find the best total step size r = ηT at each; the line through them gives "
        "that of the final run.",
        "Pilots, scores and final run together are the job's total: μ_f² = μ² − Σ μ_pilot² − Σ μ_score². At ε = 1 with "
        "three pilots each at 0.1 and 0.2 the final run has ε = 0.88.",
        "The default. Full batch is best: then T is searched too, and the sums are exact.",
        'Panda, Tang, Mahloujifar, Sehwag & Mittal 2024, "A New Linear Scaling Rule for Private Adaptive '
        'Hyperparameter Optimization", Algorithm 1. It looks at scores for free; here they are charged.',
    ),
    "random": Entry(
        hpo.Random,
        "One draw from the space.",
        "That one run: the whole total.",
        "As a baseline, or where the space is narrow because much is known.",
        "Bergstra & Bengio 2012.",
    ),
    "random_k": Entry(
        hpo.RandomK,
        "k draws with an equal part of the budget each; the model with the best noisy score is handed out.",
        "k runs and k scores, composed: each run has about 1/√k of the total's μ.",
        "Where r is not what matters, and the budget is large.",
        "Composition: Dong, Roth & Su 2022.",
    ),
    "grid_oracle": Entry(
        hpo.GridOracle,
        "Every point of a log grid, each with the whole budget, none accounted.",
        "Nothing that is counted: refused unless the data set is public.",
        "To know how far a private search stays behind: RERR = (ours − random) / (oracle − random).",
        "Panda et al. 2024, Table 3.",
    ),
}
