"""Measures an update: processor time and bytes for each parameter, of every kind of optimizer. Prints a table.

    python benchmarks/bench_update.py

The parameters are those of many small layers, or one large tensor. `transient` is the peak of memory during an update
beyond what lives from step to step; `state` is what the optimizer keeps. Times are the least of some rounds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

from worker.noise.gaussian import NoisedGradient  # noqa: E402
from worker.optimizers.base import Optimizer, StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_adagrad import DpAdaGrad  # noqa: E402
from worker.optimizers.dp_adam import DpAdam  # noqa: E402
from worker.optimizers.dp_adambc import DpAdamBc  # noqa: E402
from worker.optimizers.dp_rmsprop import DpRmsProp  # noqa: E402
from worker.optimizers.dp_sgd import DpSgd  # noqa: E402
from worker.optimizers.pieces import flattened  # noqa: E402
from worker.optimizers.scale_then_privatize import ScaleThenPrivatize  # noqa: E402

ROUNDS = 9
SIZES = {"40 tensors of 64 × 64": [(64, 64)] * 40, "one tensor of 4 million": [(2000, 2000)]}
OPTIMIZERS: dict[str, Optimizer] = {
    "dp_sgd": DpSgd(Descent(0.1)),
    "dp_sgd, momentum": DpSgd(Descent(0.1), momentum=0.9),
    "dp_adam": DpAdam(Descent(0.1)),
    "dp_adambc": DpAdamBc(Descent(0.1)),
    "dp_rmsprop": DpRmsProp(Descent(0.1)),
    "dp_adagrad": DpAdaGrad(Descent(0.1)),
    "scale_then_privatize": ScaleThenPrivatize(Descent(0.1), "adam", (0.9, 0.999), 1e-8, 0.0, 1e-2),
}


def measured(optimizer: Optimizer, shapes: list[tuple[int, int]]) -> str:
    parameters = flattened({str(at): torch.randn(shape, dtype=torch.float64) for at, shape in enumerate(shapes)})
    noised = NoisedGradient(flattened({name: torch.randn_like(value) for name, value in parameters.items()}))
    state = optimizer.init(parameters)
    numbers = sum(value.numel() for value in parameters.values())
    taken = []
    for step in range(1, ROUNDS + 1):
        began = time.process_time()
        parameters, state = optimizer.update(noised, state, parameters, StepInfo(step, 0.01))
        taken.append(time.process_time() - began)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        optimizer.update(noised, state, parameters, StepInfo(ROUNDS + 1, 0.01))
    held = sum(each.numel() * each.element_size() for each in _distinct(state))
    return f"{1e9 * min(taken) / numbers:.1f} | {_peak(profile) / numbers:.2f} | {held / numbers:.0f}"


def _distinct(state: dict[str, Tensor]) -> list[Tensor]:
    return list({each.data_ptr(): each for each in state.values()}.values())


def _peak(profile: torch.profiler.profile) -> float:
    """The most bytes that were allocated at once, from the allocator's events in their order."""
    held = peak = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda each: each.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def main() -> None:
    torch.set_num_threads(1)
    print("| optimizer | parameters | ns a parameter | transient bytes a parameter | state bytes a parameter |")
    print("|---|---|---|---|---|")
    for name, optimizer in OPTIMIZERS.items():
        for what, shapes in SIZES.items():
            print(f"| {name} | {what} | {measured(optimizer, shapes)} |", flush=True)


if __name__ == "__main__":
    main()
