"""Each optimizer against torch.optim or an independent one, without noise; golden numbers of the bias correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.worker.optimizing import copies, gradients, parameters, run
from tests.worker.support import Supervisor, dense, records, run_direct, spec, start_of
from worker.noise.gaussian import GaussianRelease, NoisedGradient
from worker.noise.generator import GaussianGenerator
from worker.optimizers.base import Optimizer, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adagrad import DpAdaGrad
from worker.optimizers.dp_adam import DpAdam
from worker.optimizers.dp_adambc import DpAdamBc, resolution
from worker.optimizers.dp_adamwosm import DpAdamWosm
from worker.optimizers.dp_rmsprop import DpRmsProp
from worker.optimizers.dp_sgd import DpSgd
from worker.optimizers.schedules import Cosine

KEY = bytes(range(32))


def descent(rate: float, decay: float = 0.0, coupled: bool = True) -> Descent:
    return Descent(rate, weight_decay=decay, coupled=coupled)


def test_the_floor_of_adambc_is_the_deviation_of_what_noise_makes_of_v_hat() -> None:
    generator, beta2, v, n = np.random.default_rng(0), 0.9, 0.0, 200_000
    squares = np.zeros(n)
    for step in range(1, 31):
        squares = beta2 * squares + (1.0 - beta2) * generator.normal(size=n) ** 2
        v = squares / (1.0 - beta2**step)
        if step in (1, 2, 10, 30):
            assert np.mean(v) == pytest.approx(1.0, abs=0.01)
            assert np.std(v) == pytest.approx(resolution(beta2, step), rel=0.02)
    assert resolution(0.999, 10**6) == pytest.approx(0.001**0.5, rel=1e-3)


def test_adambc_without_a_floor_of_its_own_takes_it() -> None:
    given = [DpAdamBc(Descent(1.0), (0.0, 0.9), eps_root=root) for root in (None, 4.0 * resolution(0.9, 1))]
    start = {"w": torch.zeros(3, dtype=torch.float64)}
    noised = NoisedGradient({"w": torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)})
    (one, _), (other, _) = (each.update(noised, each.init(start), copies(start), StepInfo(1, 4.0)) for each in given)
    assert torch.equal(one["w"], other["w"])


# Ours, and torch's with the same settings.
TORCH: dict[str, tuple[Optimizer, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (DpSgd(descent(0.3)), lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (DpSgd(descent(0.3), 0.9), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
    "momentum, coupled": (
        DpSgd(descent(0.3, 0.1), 0.9),
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, weight_decay=0.1),
    ),
    "adam": (DpAdam(descent(0.1)), lambda p: torch.optim.Adam(p, lr=0.1)),
    "adam, settings": (
        DpAdam(descent(0.1), (0.5, 0.7), 1e-2),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.7), eps=1e-2),
    ),
    "adam, coupled": (DpAdam(descent(0.1, 0.1)), lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1)),
    "adam, decoupled": (
        DpAdam(descent(0.1, 0.1, coupled=False)),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    ),
    "adambc": (DpAdamBc(descent(0.1), eps_root=1e-30), lambda p: torch.optim.Adam(p, lr=0.1, eps=0.0)),
    "adambc, decoupled": (
        DpAdamBc(descent(0.1, 0.1, coupled=False), (0.8, 0.9), 1e-30),
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.9), weight_decay=0.1, eps=0.0),
    ),
    "rmsprop": (DpRmsProp(descent(0.1), 0.9, 1e-3), lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.9, eps=1e-3)),
    "rmsprop, coupled": (
        DpRmsProp(descent(0.1, 0.1), 0.9, 1e-8),
        lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.9, eps=1e-8, weight_decay=0.1),
    ),
    "adagrad": (DpAdaGrad(descent(0.1)), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "adagrad, coupled": (
        DpAdaGrad(descent(0.1, 0.1), 1e-2),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-2, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_without_noise_an_optimizer_is_torchs(name: str) -> None:
    """At every step: no state begins in another way."""
    ours, make = TORCH[name]
    leaves = {key: value.clone().requires_grad_() for key, value in parameters().items()}
    reference = make(leaves.values())
    steps = gradients(20)
    for count, noised in enumerate(steps, start=1):
        for key, leaf in leaves.items():
            leaf.grad = noised[key].clone()
        reference.step()
        if count in (1, 2, 7, 20):
            at, _ = run(ours, steps[:count], variance=0.0)
            for key, leaf in leaves.items():
                torch.testing.assert_close(at[key], leaf.detach(), rtol=1e-12, atol=1e-12)


JOBS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "dp_sgd": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "dp_adam": ({}, lambda p: torch.optim.Adam(p, lr=0.1)),
    "dp_adambc": ({"eps_root": 1e-30}, lambda p: torch.optim.Adam(p, lr=0.1, eps=0.0)),
    "dp_rmsprop": ({"weight_decay": 0.1, "decay": "coupled"}, lambda p: torch.optim.RMSprop(p, 0.1, 0.9, 1e-8, 0.1)),
    "dp_adagrad": ({}, lambda p: torch.optim.Adagrad(p, lr=0.1)),
}


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_without_clipping_and_noise_is_torchs_training(kind: str) -> None:
    """The whole path, from the specification on; with a schedule."""
    x, y = dense(80, 3, 3)
    settings = {"kind": kind, "learning_rate": 0.1, "schedule": {"kind": "cosine", "final": 0.2}} | JOBS[kind][0]
    shape = {"records_train": 80, "records_holdout": 0, "features": 3, "outputs": 3, "sparse": False}
    job = spec(privacy=None, evaluation=None, optimizer=settings, model={"kind": "linear", "bias": True})
    job["runtime"] = {"dtype": "float64"}
    outcome, _ = run_direct(Supervisor(start_of(job, shape, public=True)), records(x, y), None)
    model = torch.nn.Linear(3, 3).double()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    reference = JOBS[kind][1](model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 10, eta_min=0.02)
    for _ in range(10):
        reference.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
        reference.step()
        schedule.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(outcome.parameters[name], parameter.detach(), rtol=1e-9, atol=1e-9)


# --- DP-AdamBC ---


@pytest.mark.parametrize(
    ("sigma", "clip", "batch", "phi"),
    [(0.4, 0.1, 256, 2.4414e-8), (1.0, 1.0, 256, 1.5259e-5), (10.0, 1.0, 8192, 1.4901e-6)],
)
def test_golden_phi(sigma: float, clip: float, batch: int, phi: float) -> None:
    release = GaussianRelease(KEY, noise_multiplier=sigma, max_grad_norm=clip, expected_batch_size=batch)
    assert release.noise_variance(clip) == pytest.approx(phi, rel=1e-4)
    assert release.noise_variance(clip) == pytest.approx((sigma * clip / batch) ** 2, rel=1e-12)


def test_phi_is_the_variance_of_the_noise_and_the_bias_of_v() -> None:
    """Of noise alone v̂ is Φ on average, at every step: what is subtracted leaves nothing."""
    n = 40_000
    release = GaussianRelease(KEY, noise_multiplier=0.4, max_grad_norm=0.1, expected_batch_size=256)
    optimizer = DpAdam(Descent(0.0))
    at = {"w": torch.zeros(n, dtype=torch.float64)}
    state = optimizer.init(at)
    for step in range(1, 11):
        noised = release.release({"w": torch.zeros(n, dtype=torch.float64)}, step)
        at, state = optimizer.update(noised, state, at, StepInfo(step, release.noise_variance(0.1)))
        v_hat = state["v/w"] / (1 - 0.999**step)
        # v̂ of noise is Φ times a mean of chi-squares: its mean over n numbers has a std of Φ √(2/(n step)).
        assert float(v_hat.mean()) == pytest.approx(release.noise_variance(0.1), rel=5 * (2 / n / step) ** 0.5 + 1e-3)


def numpy_adambc(
    steps: list[NDArray[np.float64]],
    start: NDArray[np.float64],
    eta: float,
    betas: tuple[float, float],
    phis: list[float],
    floor: float,
) -> NDArray[np.float64]:
    """Written from the definition, sums instead of recursions: m̂ = Σ w_s g_s / Σ w_s, w_s = β₁^(t−s)."""
    theta = start.copy()
    for t in range(1, len(steps) + 1):
        one = np.array([betas[0] ** (t - s) for s in range(1, t + 1)])
        two = np.array([betas[1] ** (t - s) for s in range(1, t + 1)])
        past = np.stack(steps[:t])
        m_hat = np.tensordot(one, past, 1) / one.sum()
        v_hat = np.tensordot(two, past**2, 1) / two.sum()
        phi = float(two @ np.array(phis[:t]) / two.sum())
        least = phi * np.sqrt(2.0 * np.sum((two / two.sum()) ** 2))
        theta -= eta * m_hat / np.sqrt(np.maximum(v_hat - phi, floor if floor > 0 else least))
    return theta


@pytest.mark.parametrize("floor", [0.0, 1e-3])
@pytest.mark.parametrize("moving", [False, True])
def test_adambc_is_what_its_definition_says(floor: float, moving: bool) -> None:
    """Also where C, and Φ with it, moves between steps."""
    phis = [0.09 * (1 + 0.3 * moving * t) for t in range(12)]
    optimizer = DpAdamBc(Descent(0.1), (0.8, 0.95), floor or None)
    at = parameters()
    state = optimizer.init(at)
    for step, noised in enumerate(gradients(12), start=1):
        at, state = optimizer.update(noised, state, at, StepInfo(step, phis[step - 1]))
    steps = [noised["weight"].numpy() for noised in gradients(12)]
    wanted = numpy_adambc(steps, parameters()["weight"].numpy(), 0.1, (0.8, 0.95), phis, floor)
    np.testing.assert_allclose(at["weight"].numpy(), wanted, rtol=1e-9)


def test_phi_is_subtracted_from_the_corrected_moment_and_the_floor_stands_under_the_root() -> None:
    """One step, one coordinate: v̂₁ = g², so the step is η g / √max(g² − Φ, γ′)."""
    for g, wanted in ((0.5, 0.5 / (0.25 - 0.09) ** 0.5), (0.2, 0.2 / 1e-2**0.5)):
        optimizer = DpAdamBc(Descent(1.0), eps_root=1e-2)
        at = {"w": torch.zeros(1, dtype=torch.float64)}
        noised = NoisedGradient({"w": torch.tensor([g], dtype=torch.float64)})
        moved, _ = optimizer.update(noised, optimizer.init(at), at, StepInfo(1, 0.09))
        assert float(moved["w"]) == pytest.approx(-wanted, rel=1e-12)


@pytest.mark.parametrize(("phi", "limit"), [(2.44e-8, 0.64), (1.526e-5, 0.0256)])
def test_where_phi_dominates_dp_adam_is_dp_sgdm(phi: float, limit: float) -> None:
    """With the learning rate η(1−β₁)/((1−β₁ᵗ)√Φ): for η = 0.001, β₁ = 0.9 its limit is 0.64 and 0.0256."""
    eta, beta1, n, steps = 1e-3, 0.9, 2000, 400

    class Implied:
        def factor(self, step: int) -> float:
            return (1 - beta1) / ((1 - beta1**step) * phi**0.5)

    assert eta * Implied().factor(10_000) == pytest.approx(limit, rel=2e-3)
    noise = GaussianGenerator(KEY)
    signal = 1e-3 * phi**0.5 * torch.linspace(-1, 1, n, dtype=torch.float64)
    adam, momentum = DpAdam(Descent(eta, Cosine(10**9, 1.0)), (beta1, 0.999)), DpSgd(Descent(eta, Implied()), beta1)
    one, two = ({"w": torch.zeros(n, dtype=torch.float64)} for _ in range(2))
    states = adam.init(one), momentum.init(two)
    for step in range(1, steps + 1):
        noised = NoisedGradient({"w": signal + phi**0.5 * noise.noise(step, 0, n)})
        one, first = adam.update(noised, states[0], one, StepInfo(step, phi))
        two, second = momentum.update(noised, states[1], two, StepInfo(step, phi))
        states = first, second
    moved = float((one["w"] - two["w"]).norm() / two["w"].norm())
    assert moved < 0.12  # v̂ is within some percent of Φ, once it has seen enough noise
    bare = NoisedGradient({"w": signal})
    later, _ = adam.update(bare, states[0], copies(one), StepInfo(steps + 1, phi))
    other, _ = momentum.update(bare, states[1], copies(two), StepInfo(steps + 1, phi))
    ratio = ((later["w"] - one["w"]) / (other["w"] - two["w"])).median()
    assert float(ratio) == pytest.approx(1.0, abs=0.02)


# --- DPAdamWOSM ---


def numpy_wosm(
    steps: list[NDArray[np.float64]], start: NDArray[np.float64], beta: float, variances: list[float], eps: float
) -> NDArray[np.float64]:
    """Written from the definition, with sums: η = 0.1, m̂ = Σ w_s g_s / Σ w_s, w_s = βᵗ⁻ˢ, over √Φ_t + γ."""
    theta = start.copy()
    for t in range(1, len(steps) + 1):
        weights = np.array([beta ** (t - s) for s in range(1, t + 1)])
        m_hat = np.tensordot(weights, np.stack(steps[:t]), 1) / weights.sum()
        theta -= 0.1 * m_hat / (np.sqrt(variances[t - 1]) + eps)
    return theta


@pytest.mark.parametrize("moving", [False, True])
def test_wosm_is_what_its_definition_says(moving: bool) -> None:
    """Also where C moves between steps: each is divided by its own σC/L."""
    variances = [0.09 * (1 + 0.3 * moving * t) for t in range(12)]
    optimizer, at = DpAdamWosm(Descent(0.1), 0.8, 1e-2), parameters()
    state = optimizer.init(at)
    for step, noised in enumerate(gradients(12), start=1):
        at, state = optimizer.update(noised, state, at, StepInfo(step, variances[step - 1]))
    wanted = numpy_wosm(
        [noised["weight"].numpy() for noised in gradients(12)], parameters()["weight"].numpy(), 0.8, variances, 1e-2
    )
    np.testing.assert_allclose(at["weight"].numpy(), wanted, rtol=1e-11)


def test_wosm_is_dp_sgd_with_momentum_at_a_rate_from_public_numbers() -> None:
    """η(1−β)/((1−βᵗ)(σC/L + γ)), to the last digits: nothing adapts to a coordinate."""
    eta, beta, eps, variance = 0.1, 0.9, 1e-2, 0.09

    class Public:
        def factor(self, step: int) -> float:
            return (1.0 - beta) / ((1.0 - beta**step) * (variance**0.5 + eps))

    steps = gradients(30)
    ours, _ = run(DpAdamWosm(Descent(eta), beta, eps), steps, variance)
    momentum, _ = run(DpSgd(Descent(eta, Public()), beta), steps, variance)
    for name, value in ours.items():
        torch.testing.assert_close(value, momentum[name], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("phi", [2.44e-8, 1.526e-5])
def test_where_noise_dominates_dp_adam_comes_to_wosm(phi: float) -> None:
    """v̂ is a mean of squares of 400 steps: within some percent of Φ."""
    n, steps, noise = 2000, 400, GaussianGenerator(KEY)
    adam, wosm = DpAdam(Descent(1e-3)), DpAdamWosm(Descent(1e-3))
    one, two = ({"w": torch.zeros(n, dtype=torch.float64)} for _ in range(2))
    states = adam.init(one), wosm.init(two)
    for step in range(1, steps + 1):
        noised = NoisedGradient({"w": phi**0.5 * noise.noise(step, 0, n)})
        one, first = adam.update(noised, states[0], one, StepInfo(step, phi))
        two, second = wosm.update(noised, states[1], two, StepInfo(step, phi))
        states = first, second
    assert float((one["w"] - two["w"]).norm() / two["w"].norm()) < 0.12


def test_wosm_without_noise_is_an_error() -> None:
    optimizer, at = DpAdamWosm(Descent(0.1)), parameters()
    with pytest.raises(ValueError, match="without noise"):
        optimizer.update(gradients(1)[0], optimizer.init(at), at, StepInfo(1, 0.0))


def test_a_private_job_by_wosm_is_a_job_by_momentum() -> None:
    """The whole path, from the specification on: a bigger σ or C changes nothing but g̃ in units of its noise."""
    x, y = dense(80, 3, 3)
    shape = {"records_train": 80, "records_holdout": 0, "features": 3, "outputs": 3, "sparse": False}
    sigma, clip, beta, eta = 2.0, 0.5, 0.5, 0.1
    shared: dict[str, Any] = {
        "privacy": {"noise_multiplier": sigma},
        "clipping": {"kind": "flat", "max_grad_norm": clip},
        "evaluation": None,
        "model": {"kind": "linear", "bias": True},
        "sampling": {"kind": "full_batch"},
        "length": {"steps": 1},
    }
    rate = eta / (sigma * clip / 80 + 1e-8)  # of the first step, where m̂ = g̃
    outcomes = []
    for optimizer in (
        {"kind": "dp_adamwosm", "learning_rate": eta, "beta": beta},
        {"kind": "dp_sgd", "learning_rate": rate, "momentum": beta},
    ):
        job = spec(optimizer=optimizer, **shared)
        job["runtime"] = {"dtype": "float64"}
        outcomes.append(run_direct(Supervisor(start_of(job, shape)), records(x, y), None)[0].parameters)
    for name, value in outcomes[0].items():
        torch.testing.assert_close(value, outcomes[1][name], rtol=1e-9, atol=1e-9)
