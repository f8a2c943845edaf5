"""The strategies of private studies: what each does, what it costs, when to use it."""

from __future__ import annotations

from typing import NamedTuple

from core.contracts import hpo
from core.contracts.base import Document


class Entry(NamedTuple):
    """A study strategy in the catalogue."""

    spec: type[Document]
    summary: str
    cost: str
    when_to_use: str
    source: str


STRATEGIES: dict[str, Entry] = {
    "auto": Entry(
        hpo.Auto,
        "For a linear model with `dp_sgd` or `dp_adam`: no search, but one run whose learning rate comes from public "
        "numbers. For other jobs: linear scaling with its defaults, at the job's own T.",
        "One run with the whole total, or linear scaling's bill.",
        "Where you would rather not choose. `quote.resolved` says what was chosen and why.",
        "benchmarks/reports/reproduce/search.md: what a search takes from the budget, and what it gains.",
    ),
    "linear_scaling": Entry(
        hpo.LinearScaling,
        "Cheap trials at two or three small ε find the best total step size r = ηT at each; the line through them "
        "gives r for the final trial.",
        "Pilots, scores and final trial together are the job's total: μ_f² = μ² − Σ μ_pilot² − Σ μ_score². By "
        "default three pilots each at 0.15 and 0.3 of the total's μ take 34 % of μ².",
        "The default. Works best with full batches: T is then searched too, and the accounting is exact.",
        'Panda, Tang, Mahloujifar, Sehwag & Mittal 2024, "A New Linear Scaling Rule for Private Adaptive '
        'Hyperparameter Optimization", Algorithm 1. The paper reads scores for free; here they are charged.',
    ),
    "random": Entry(
        hpo.Random,
        "One draw from the space.",
        "The single trial gets the whole total.",
        "As a baseline, or where prior knowledge makes the space narrow.",
        "Bergstra & Bengio 2012.",
    ),
}
