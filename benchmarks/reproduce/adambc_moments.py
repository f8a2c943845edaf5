"""The moments of a private run beside those that it would have without noise, on the same batches and parameters.

Only on public data: clean moments are exactly what no private job may keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.reproduce.runs import Data, run
from core.contracts.job_spec import LinearModel
from worker.clipping.linear_clipping import LinearClipping
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.noise.attempt_keys import public_key_of_seed
from worker.noise.batch_sampling import PoissonSampler
from worker.optimizers.base import State, slot_of

QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Moments:
    """At the end of a run, one number a coordinate.

    Attributes:
        phi: Φ = (σC/L)².
        floor: γ′.
        values: "m clean", "m private", "v clean", "v private": m̂ and v̂.
    """

    step: int
    phi: float
    floor: float
    values: dict[str, Tensor]

    def derived(self) -> dict[str, Tensor]:
        """With the corrected second moment, and the three updates of the paper's Table 2: all along the private m̂."""
        m, clean, private = (self.values[name] for name in ("m private", "v clean", "v private"))
        corrected = (private - self.phi).clamp(min=self.floor)
        updates = {"clean": clean, "private": private, "corrected": corrected}
        return (
            self.values
            | {"v corrected": corrected}
            | {f"update {name}": torch.where(m == 0.0, 0.0, m / v.sqrt()) for name, v in updates.items()}
        )

    def summary(self) -> dict[str, list[float]]:
        """Quartiles and mean of each."""
        at = torch.tensor(QUARTILES, dtype=torch.float64)
        return {
            name: [*torch.quantile(value[torch.isfinite(value)], at).tolist(), float(value.nanmean())]
            for name, value in self.derived().items()
        }


class _Clean:
    """Adam's moments of the clipped gradients without noise, step by step beside a run."""

    def __init__(self, data: Data, job: dict[str, Any], seed: int) -> None:
        batch = job["sampling"]["expected_batch_size"]
        model = Linear(data.features_count, data.outputs, bias=LinearModel().bias)
        self.data, self.batch, self.betas = data, batch, job["optimizer"]["betas"]
        self.engine = LinearClipping(model, "flat", job["clipping"]["max_grad_norm"])
        # The seed is public: this is the sampler of the run.
        self.sampler = PoissonSampler(public_key_of_seed(seed, "sampler"), batch / len(data.train), len(data.train))
        self.before = model.init()
        self.m = torch.zeros_like(self.before["weight"])
        self.v = torch.zeros_like(self.m)
        self.state: State = {}
        self.step = 0

    def watch(self, step: int, parameters: Parameters, state: State) -> None:
        records = self.data.train.select(self.sampler.draw(step))
        gradient = self.engine.private_sum(self.before, records)["weight"] / self.batch
        beta1, beta2 = self.betas
        self.m = beta1 * self.m + (1.0 - beta1) * gradient
        self.v = beta2 * self.v + (1.0 - beta2) * gradient.square()
        self.before = {name: value.clone() for name, value in parameters.items()}  # the next step changes them
        self.state, self.step = state, step


def measured(data: Data, job: dict[str, Any], *, floor: float, seed: int = 0) -> Moments:
    """A run of Adam's kind, and what its moments would be without noise."""
    clean = _Clean(data, job, seed)
    result = run(data, job, seed=seed, watch=clean.watch)
    beta1, beta2 = (1.0 - beta**clean.step for beta in clean.betas)
    std = (result.noise_multiplier or 0.0) * job["clipping"]["max_grad_norm"] / clean.batch
    values = {
        "m clean": clean.m / beta1,
        "m private": slot_of(clean.state, "m")["weight"] / beta1,
        "v clean": clean.v / beta2,
        "v private": slot_of(clean.state, "v")["weight"] / beta2,
    }
    return Moments(clean.step, std**2, floor, {name: value.flatten() for name, value in values.items()})
