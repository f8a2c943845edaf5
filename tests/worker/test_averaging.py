"""Averages of iterates: against torch's own, and against means of kept iterates."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch.optim.swa_utils import AveragedModel

from core.contracts import optimizers as specs
from tests.worker.optimizing import copies, gradients, info, parameters, run, same
from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.averaging import Moving, Tail, averaged
from worker.optimizers.base import Observing, Optimizer
from worker.optimizers.build import build_optimizer
from worker.optimizers.descent import Descent
from worker.optimizers.dp2 import Dp2
from worker.optimizers.dp_sgd import DpSgd
from worker.optimizers.pda_dpmd import PdaDpmd

PLAIN = DpSgd(Descent(0.3), momentum=0.9)


def iterates(optimizer: Optimizer, steps: int) -> list[Parameters]:
    """θ₁ … θ_T."""
    at, kept = parameters(), []
    state = optimizer.init(at)
    for step, noised in enumerate(gradients(steps), start=1):
        at, state = optimizer.update(noised, state, at, info(step))
        kept.append(copies(at))
    return kept


def finished(optimizer: Optimizer, steps: int) -> Parameters:
    at, state = run(optimizer, gradients(steps))
    return optimizer.finish(state, at, steps)


def weighted(kept: list[Parameters], weights: list[float]) -> Parameters:
    return {
        name: sum(w * each[name] for w, each in zip(weights, kept, strict=True)) / sum(weights)  # type: ignore[misc]
        for name in kept[0]
    }


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75, 1.0])
def test_a_tail_is_the_mean_of_the_last_iterates(share: float) -> None:
    kept = iterates(PLAIN, 8)
    last = math.ceil(share * 8)
    got = finished(averaged(PLAIN, Tail(8, share)), 8)
    for name, mean in weighted(kept[-last:], [1.0] * last).items():
        torch.testing.assert_close(got[name], mean)


def test_a_whole_tail_is_torchs_stochastic_weight_averaging() -> None:
    module = torch.nn.Linear(4, 3).double()
    model = AveragedModel(module)
    for each in iterates(PLAIN, 6):
        with torch.no_grad():
            module.weight.copy_(each["weight"])
            module.bias.copy_(each["bias"])
        model.update_parameters(module)
    got = finished(averaged(PLAIN, Tail(6, 1.0)), 6)
    for name, value in model.module.state_dict().items():
        torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.9999])
def test_a_moving_average_weighs_by_powers_of_its_decay(decay: float) -> None:
    kept = iterates(PLAIN, 8)
    got = finished(averaged(PLAIN, Moving(decay)), 8)
    for name, mean in weighted(kept, [decay ** (8 - t) for t in range(1, 9)]).items():
        torch.testing.assert_close(got[name], mean)


def test_training_is_the_same_without_the_average() -> None:
    at, state = run(averaged(PLAIN, Moving(0.5)), gradients(5))
    alone, inner = run(PLAIN, gradients(5))
    assert same(at, alone)
    assert same({name: value for name, value in state.items() if not name.startswith("average/")}, inner)


def test_a_job_that_ends_before_its_tail_hands_out_the_iterate() -> None:
    optimizer = averaged(PLAIN, Tail(100, 0.1))
    at, state = run(optimizer, gradients(5))
    assert same(optimizer.finish(state, at, 5), at)


def test_less_noise_is_left() -> None:
    """At a minimum, where steps only follow the noise: the mean of the tail has a fraction of its variance."""
    generator = torch.Generator().manual_seed(0)
    optimizer = averaged(DpSgd(Descent(0.3)), Tail(400, 0.5))
    at = {"w": torch.zeros(200, dtype=torch.float64)}
    state = optimizer.init(at)
    for step in range(1, 401):
        noise = torch.randn(200, generator=generator, dtype=torch.float64)
        at, state = optimizer.update(NoisedGradient({"w": at["w"] + noise}), state, at, info(step))
    assert optimizer.finish(state, at, 400)["w"].var() < 0.1 * at["w"].var()


@pytest.mark.parametrize(
    ("asked", "weights"),
    [({"kind": "tail"}, Tail(10, 0.5)), ({"kind": "moving", "decay": 0.9}, Moving(0.9))],
)
def test_from_the_specification(asked: dict[str, object], weights: object) -> None:
    spec = specs.DpSgd.model_validate({"learning_rate": 0.3, "averaging": asked})
    made = build_optimizer(spec, 10)
    assert made == averaged(DpSgd(Descent(0.3)), weights)  # type: ignore[arg-type]


def test_what_the_inner_optimizer_needs_is_passed_on() -> None:
    delayed = specs.Dp2RmsProp(learning_rate=0.1, learning_rate_adaptive=0.1, max_grad_norm_adaptive=1.0, delay=1)
    made = build_optimizer(delayed.model_copy(update={"averaging": specs.MovingAverage()}), 4)
    inner = build_optimizer(delayed, 4)
    assert isinstance(inner, Dp2)
    _, state = run(made, gradients(1))
    _, alone = run(inner, gradients(1))
    wanted = inner.divisors(alone, 2, 0)
    got = made.divisors(state, 2, 0)  # type: ignore[attr-defined]
    assert wanted is not None and same(dict(got), dict(wanted))
    assert isinstance(averaged(PdaDpmd(Descent(0.1), 5), Moving(0.5)), Observing)
    assert not isinstance(averaged(PLAIN, Moving(0.5)), Observing)


def test_a_free_step_and_an_average_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="give one of them"):
        specs.DpSgd.model_validate({"learning_rate": 0.1, "free_step": True, "averaging": {"kind": "tail"}})
