"""The rate of `learning_rate: auto`: its formula against the service's own optimizers, fed with nothing but noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from app.hpo import rates
from app.hpo.rates import PublicNumbers, rate_of
from core.contracts.optimizers import DpAdam, DpAdamWosm, DpSgd, Optimizer
from core.contracts.table import TableFeatures
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import StepInfo
from worker.optimizers.build import build_optimizer

SMALL_STEPS = PublicNumbers(
    steps=40, expected_batch_size=1_000, noise_multiplier=1000.0, max_grad_norm=2.0, length=3.0
)  # so noisy that settling never binds

KAPPA = rates.CALIBRATED.kappa * math.sqrt(1.5)  # ‖g‖ = 3 is clipped to C = 2


def moved_by_noise(spec: Optimizer, of: PublicNumbers, coordinates: int = 20_000) -> float:
    """The standard deviation of a coordinate after the job's steps, if all gradients are zero."""
    optimizer = build_optimizer(spec, of.steps)
    at = {"weight": torch.zeros(coordinates, dtype=torch.float64)}
    state, generator = optimizer.init(at), torch.Generator().manual_seed(0)
    std = of.noise_multiplier * of.max_grad_norm / of.expected_batch_size
    for step in range(1, of.steps + 1):
        noise = NoisedGradient({"weight": std * torch.randn(coordinates, generator=generator, dtype=torch.float64)})
        at, state = optimizer.update(noise, state, at, StepInfo(step, std**2))
    return float(optimizer.finish(state, at, of.steps)["weight"].std())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("free_step", [False, True])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "warmup_linear"])
def test_noise_alone_leaves_kappa_in_an_output(momentum: float, free_step: bool, schedule: str) -> None:
    spec = DpSgd.model_validate({"momentum": momentum, "free_step": free_step, "schedule": {"kind": schedule}})
    found = rate_of(spec, SMALL_STEPS)
    spec = spec.model_copy(update={"learning_rate": found.value})
    left = moved_by_noise(spec, SMALL_STEPS) * SMALL_STEPS.length
    # Momentum and a schedule together are not in the formula: a step's noise acts at later rates too.
    assert left == pytest.approx(KAPPA, rel=0.03 if schedule == "constant" else 0.2)


def test_adam_moves_by_noise_as_the_formula_says() -> None:
    found = rate_of(DpAdam(), SMALL_STEPS)
    spec = DpAdam(learning_rate=found.value)
    left = moved_by_noise(spec, SMALL_STEPS) * SMALL_STEPS.length
    assert left == pytest.approx(rates.CALIBRATED.adam_dense, rel=0.1)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("eps", [1e-8, 10.0])
def test_wosm_moves_by_noise_as_the_formula_says(beta: float, eps: float) -> None:
    """The κ of DP-SGD with momentum: their outputs bear equal noise. A large γ is in the formula too."""
    found = rate_of(DpAdamWosm(beta=beta, eps=eps), SMALL_STEPS)
    spec = DpAdamWosm(learning_rate=found.value, beta=beta, eps=eps)
    assert moved_by_noise(spec, SMALL_STEPS) * SMALL_STEPS.length == pytest.approx(KAPPA, rel=0.03)


@pytest.mark.parametrize("noise_multiplier", [100.0, 1e4])
def test_wosms_rate_depends_on_no_noise_where_noise_bounds_it(noise_multiplier: float) -> None:
    """η is in units of σC/L: T and the length are left."""
    wanted = KAPPA / (math.sqrt(40) * 3.0 * rates.averaged(0.9, 40))
    of = replace(SMALL_STEPS, noise_multiplier=noise_multiplier, expected_batch_size=100)
    assert rate_of(DpAdamWosm(), of).value == pytest.approx(wanted, rel=0.01)


def test_wosm_settles_where_momentum_does() -> None:
    """At the same rate once the bias correction is over, with as many steps."""
    quiet = PublicNumbers(steps=200, expected_batch_size=10**6, noise_multiplier=1e-3, max_grad_norm=1.0, length=1.0)
    found = rate_of(DpAdamWosm(beta=0.8), quiet)
    momentum = rate_of(DpSgd(momentum=0.8), quiet)
    assert "settle" in found.because and "settle" in momentum.because
    assert found.value * (1.0 - 0.8) / (quiet.noise_std + 1e-8) == pytest.approx(momentum.value, rel=0.01)
    assert rates.steps_of(DpAdamWosm(beta=0.8), quiet, 1.0) == rates.steps_of(DpSgd(momentum=0.8), quiet, 1.0)


@pytest.mark.parametrize(("beta", "steps"), [(0.9, 5_000), (0.999, 5_000), (0.99999, 4_000), (0.5, 1_001)])
def test_of_many_steps_an_averages_noise_is_that_of_groups(beta: float, steps: int) -> None:
    share = total = 0.0
    for step in range(steps, 0, -1):
        share = beta * share + (1.0 - beta) / (1.0 - beta**step)
        total += share**2
    assert rates.averaged(beta, steps) == pytest.approx(math.sqrt(total / steps), rel=0.01)


def test_without_much_noise_training_must_settle() -> None:
    quiet = PublicNumbers(steps=10, expected_batch_size=10**6, noise_multiplier=1.0, max_grad_norm=1.0, length=2.0)
    none = PublicNumbers(steps=10, expected_batch_size=10**6, noise_multiplier=0.0, max_grad_norm=1.0, length=2.0)
    for of in (quiet, none):
        found = rate_of(DpSgd(momentum=0.5), of)
        # 2 (1 + β) over the curvature ‖x‖²/a, and c = ‖g‖/C = 2.
        assert found.value == pytest.approx(2.0 * 1.5 / (4.0 / rates.CALIBRATED.dense) * 2.0**1.5, rel=0.01)
        assert "settle" in found.because


def test_steps_are_so_many_that_settling_does_not_bind() -> None:
    for mu in (0.2, 0.4):  # between the least and the most steps
        quiet = PublicNumbers(
            steps=1, expected_batch_size=12_000, noise_multiplier=1.0, max_grad_norm=1.0, length=3.5, outputs=2
        )
        spec = DpSgd(momentum=0.9)
        steps = rates.steps_of(spec, quiet, mu).value
        assert rates.LEAST_STEPS < steps < rates.MOST_STEPS
        at = replace(quiet, steps=int(steps), noise_multiplier=math.sqrt(steps) / mu)
        assert rate_of(spec, at).value <= rates.most_rate(spec, at) / rates.MARGIN * 1.15  # m_T, below 1 so early
        assert "κ" in rate_of(spec, at).because
    assert rates.steps_of(DpSgd(), quiet, math.inf).value == rates.MOST_STEPS


def test_noise_on_a_table_counts_by_what_differs_between_records() -> None:
    whole = replace(SMALL_STEPS, spread=None)
    assert rate_of(DpSgd(), replace(whole, spread=1.0)).value == pytest.approx(3.0 * rate_of(DpSgd(), whole).value)


def test_a_tables_length_is_that_of_random_records() -> None:
    columns: list[dict[str, Any]] = [{"kind": "number", "name": f"n{k}", "range": [0, 1]} for k in range(30)]
    columns += [{"kind": "category", "name": f"c{k}", "values": ["a", "b", "c"]} for k in range(5)]
    table = TableFeatures.model_validate({"kind": "table", "columns": columns})
    numbers = np.random.default_rng(0).uniform(-1.0, 1.0, (10_000, 30))
    norms = np.sqrt((numbers**2).sum(axis=1) + 5.0)
    assert table.length(table.width) == pytest.approx(np.median(norms), rel=0.02)


@pytest.mark.parametrize("free_step", [False, True])
@pytest.mark.parametrize(
    ("momentum", "steps"), [(0.9, 10), (0.5, 3), (0.0, 4), (0.99, 1), (0.999999, 50), (0.999, 5_000)]
)
def test_settled_is_what_a_steps_noise_becomes(momentum: float, steps: int, free_step: bool) -> None:
    shares = [1.0 - momentum**k + free_step * (1.0 - momentum) * momentum ** (k - 1) for k in range(1, steps + 1)]
    expected = math.sqrt(sum(each**2 for each in shares) / steps)
    assert rates.settled(momentum, steps, free_step=free_step) == pytest.approx(expected, rel=1e-5)
