"""The best of the first K runs, whose number is secret: what is kept is chosen without a branch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.contracts.job_spec import Evaluation
from core.errors import PrivacyError
from worker.metrics.scores import Score
from worker.models.base import Parameters
from worker.training.loop import Outcome


@dataclass(frozen=True)
class Run:
    """What one run would release."""

    rate: float
    outcome: Outcome
    scores: tuple[Score, ...]

    def value(self, evaluation: Evaluation) -> Tensor:
        """The score that compares runs, the larger the better; −∞ where it is no number."""
        compared = [
            each for score in self.scores for each in (score, *score.parts) if each.name == evaluation.compared_by
        ]
        if not compared:
            raise PrivacyError("a run has no score of the name that runs are compared by")
        value = torch.tensor(compared[0].value, dtype=torch.float64)
        value = value if evaluation.larger_is_better else -value
        return torch.where(torch.isnan(value), torch.tensor(-math.inf, dtype=torch.float64), value)


class Best:
    """The best of the first `counted` runs that are offered; of equal ones the first.

    Every offer does the same work: what is kept is chosen number by number, and no branch depends on `counted`.
    """

    def __init__(self, counted: int) -> None:
        self._counted = torch.tensor(counted)
        self._value = torch.tensor(-math.inf, dtype=torch.float64)
        self._number = torch.tensor(0)
        self._parameters: Parameters = {}
        self._runs: list[Run] = []  # without their models

    def offer(self, run: Run, value: Tensor) -> None:
        """Takes the next run."""
        self._runs.append(replace(run, outcome=replace(run.outcome, parameters={})))
        number = torch.tensor(len(self._runs))
        takes = (number <= self._counted) & ((value > self._value) | (number == 1))
        self._value = torch.where(takes, value, self._value)
        self._number = torch.where(takes, number, self._number)
        previous = self._parameters or run.outcome.parameters
        self._parameters = {
            name: torch.where(takes, value, previous[name]) for name, value in run.outcome.parameters.items()
        }

    @property
    def run(self) -> Run:
        """The best run, with its model."""
        best = self._runs[int(self._number) - 1]
        return replace(best, outcome=replace(best.outcome, parameters=self._parameters))
