"""The heavy-tail problem at any size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from benchmarks.reproduce.four import Setting
from benchmarks.reproduce.runs import Data
from core.privacy.gdp import mu_from_epsilon
from worker.data.records import DenseRecords

EPSILON, DELTA = 28.0, 1e-4
PAPER_RECORDS, PAPER_WIDTH, PAPER_NOISE = 8192, 9216, 10.0
FORGETTING = 0.001  # 1 − β₂ at the paper's size


@dataclass(frozen=True)
class Problem:
    """The data and the mechanism at one size.

    What one record's gradient gives its own logit in a step, C‖x−½‖²/(L‖x‖), over the noise on that logit,
    σC‖x−½‖/L, is 1/(2σ) at every size: √T/(2σ) over a run, as ε is held. A smaller problem with the same σ and T would
    still be another one: the bias direction, which all inputs share, limits the learning rate of gradient descent to
    some 1/√d, and what is needed to fit single records is some L/(T√d). So T ∝ n keeps the two in proportion, σ ∝ √n
    then keeps ε, and Φ beside the squared gradients of the largest class hardly moves.

    Args:
        group: g, records a group, a power of two.
        clip: C.
        noise: σ at the paper's size.
    """

    group: int
    clip: float = 1.0
    noise: float = PAPER_NOISE

    @property
    def class_sizes(self) -> list[int]:
        """Of each group, largest first."""
        return [self.group >> k for k in range(self.group.bit_length()) if self.group >> k >= 5]

    @property
    def records(self) -> int:
        return self.group * len(self.class_sizes)

    @property
    def width(self) -> int:
        return self.group + self.records

    @property
    def classes(self) -> int:
        return int(2 ** len(self.class_sizes)) - 1

    @property
    def noise_multiplier(self) -> float:
        return self.noise * math.sqrt(self.records / PAPER_RECORDS)

    @property
    def steps(self) -> int:
        """The most at which ε, of exact Gaussian differential privacy, is at most 28."""
        return int((mu_from_epsilon(EPSILON, DELTA) * self.noise_multiplier) ** 2)

    @property
    def forgetting(self) -> float:
        """1 − β₂: the second moment remembers the same share of a run at every size."""
        return FORGETTING * PAPER_RECORDS / self.records

    @property
    def step_of_one(self) -> float:
        """The learning rate of plain gradient descent that rate 1 stands for; 1 at the paper's size with C = 1."""
        return math.sqrt(PAPER_WIDTH / self.width) / self.clip

    @property
    def noise_deviation(self) -> float:
        """√Φ."""
        return self.noise_multiplier * self.clip / self.records

    @cached_property
    def data(self) -> Data:
        sizes = [size for k, size in enumerate(self.class_sizes) for _ in range(2**k)]
        labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        inputs = torch.rand(self.records, self.width, generator=torch.Generator().manual_seed(0))
        records = DenseRecords(inputs, labels)
        names = [f"class-{k}" for k in range(self.classes)]
        task = {"kind": "classification", "label": "label", "classes": names}
        features = {"kind": "tensor", "array": "inputs"}
        return Data(task, features, records, records, self.width, self.classes)


def job(problem: Problem, setting: Setting, points: int) -> dict[str, Any]:
    return {
        "model": {"kind": "linear"},
        "optimizer": setting.spec(problem.step_of_one, problem.noise_deviation, 1.0 - problem.forgetting),
        "sampling": {"kind": "full_batch"},
        "length": {"steps": problem.steps},
        "clipping": {"kind": "flat", "max_grad_norm": problem.clip},
        "privacy": {"noise_multiplier": problem.noise_multiplier, "target_delta": DELTA},
        "evaluation": {"points": points, "by_frequency": True},
    }
