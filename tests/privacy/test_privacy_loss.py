"""The reader's own accountant: against dp_accounting, golden numbers, and the exact trade-off of one sampled sum."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import fft, optimize, special

from core.privacy import gdp, pld
from core.privacy.events import Event, Truncation, composed, leaves, noisy_sums, read
from scrimp.explain import FALSE_POSITIVES
from scrimp.privacy_loss import Curve, epsilon, losses, mu_of
from scrimp.recompute import chance_of_a_full_batch
from tests.by_night import but


def tree(event: Event) -> Any:
    return event.model_dump(mode="json")


def sampled(rate: float, sigma: float, count: int, cut: dict[str, int] | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"kind": "gaussian", "noise_multiplier": sigma}
    if cut is not None:
        event = {**cut, "kind": "truncated_sampled", "sample_rate": rate, "event": event}
    elif rate < 1.0:
        event = {"kind": "poisson_sampled", "sample_rate": rate, "event": event}
    return {"kind": "self_composed", "count": count, "event": event}


@pytest.mark.parametrize(
    ("epsilon_", "found", "advantage"), [(1.0, 0.0024, 0.107), (2.5, 0.0066, 0.240), (4.0, 0.0152, 0.356)]
)
def test_golden_numbers_of_a_full_batch(epsilon_: float, found: float, advantage: float) -> None:
    mu = gdp.mu_from_epsilon(epsilon_, 1e-5)
    got = tree(noisy_sums(1.0, math.sqrt(50) / mu, 50))
    assert Curve.of(got).attack([0.001])[0.001] == pytest.approx(found, abs=5e-5)
    assert Curve.of(got).deltas([0.0])[0] == pytest.approx(advantage, abs=5e-4)
    assert mu_of(got) == pytest.approx(mu)
    assert epsilon(got, 1e-5) == pytest.approx(epsilon_, abs=1e-8)


CUT = {"records": 5000, "largest_batch": 80}
TREES: dict[str, list[dict[str, Any]]] = {
    "a thousand sampled steps": [sampled(0.01024, 1.86, 1953)],
    "little noise": [sampled(0.001, 0.6, 5000)],
    "sampled, with a mean": [sampled(0.3, 4.0, 200), sampled(1.0, 10.0, 1)],
    "truncated": [sampled(0.01, 1.0, 100, CUT)],
    "large losses": [sampled(0.5, 0.5, 3)],
}


@pytest.mark.parametrize("name", TREES)
def test_epsilon_is_dp_accountings(name: str) -> None:
    """On the same grid the two differ by the rounding of their transforms, which the service adds once more."""
    event = {"kind": "composed", "events": TREES[name]}
    for delta in (1e-3, 1e-5):
        theirs = pld.epsilon(read(event), delta)
        assert epsilon(event, delta) == pytest.approx(theirs, rel=1e-6)
    assert Curve.of(event).deltas([0.5, 1.0])[1] == pytest.approx(max_delta(event, 1.0), rel=1e-6)


def max_delta(event: Any, epsilon_: float) -> float:
    return max(side.delta(epsilon_) for side in losses(event))


def of_one_sampled_sum(q: float, sigma: float, alpha: float) -> float:
    """The best test accuses above a threshold. Of N(0, σ²) against the mixture, or of the mixture against N(0, σ²),
    whichever finds more."""
    adding = (1.0 - q) * alpha + q * special.ndtr(special.ndtri(alpha) + 1.0 / sigma)

    def accused(threshold: float) -> float:  # of the mixture, below a threshold
        return float((1.0 - q) * special.ndtr(threshold) + q * special.ndtr(threshold - 1.0 / sigma)) - alpha

    return max(float(adding), float(special.ndtr(optimize.brentq(accused, -40.0, 40.0))))


SAMPLED = [(sigma, q) for sigma in (0.5, 1.0, 4.0) for q in (0.01, 0.3, 0.9)]


@pytest.mark.parametrize(("sigma", "q"), but(SAMPLED, {(0.5, 0.01), (1.0, 0.3), (4.0, 0.9)}.__contains__))
def test_a_sampled_sum_is_bounded_closely(q: float, sigma: float) -> None:
    got = tree(noisy_sums(q, sigma, 1))
    assert mu_of(got) is None
    rates = Curve.of(got).attack(FALSE_POSITIVES)
    for alpha in FALSE_POSITIVES:
        exact = of_one_sampled_sum(q, sigma, alpha)
        assert exact <= rates[alpha] <= exact * 1.03 + 1e-4
    advantage = q * math.erf(0.5 / sigma / math.sqrt(2.0))
    assert advantage <= Curve.of(got).deltas([0.0])[0] <= advantage * 1.01 + 1e-4


def test_many_sampled_steps_are_never_below_a_gaussian_with_the_same_limit() -> None:
    """By the central limit theorem they come close to μ² = q² T (e^{1/σ²} − 1)."""
    q, sigma, steps = 0.01, 1.0, 2000
    limit = math.sqrt(q * q * steps * math.expm1(1.0 / sigma**2))
    got = Curve.of(tree(composed([noisy_sums(q, sigma, steps)]))).attack(FALSE_POSITIVES)
    for alpha in FALSE_POSITIVES:
        assert got[alpha] == pytest.approx(float(special.ndtr(special.ndtri(alpha) + limit)), rel=0.15, abs=1e-3)


def test_what_cannot_be_resolved_is_not_guessed() -> None:
    got = tree(noisy_sums(1e-6, 50.0, 10**9))
    assert epsilon(got, 1e-5) < 0.2
    with pytest.raises(ValueError, match="unknown kind"):
        epsilon({"kind": "laplace"}, 1e-5)


def test_nothing_released_is_nothing_found() -> None:
    nothing = tree(composed([]))
    assert Curve.of(nothing).attack(FALSE_POSITIVES) == pytest.approx({alpha: alpha for alpha in FALSE_POSITIVES})
    assert (mu_of(nothing), epsilon(nothing, 1e-5), Curve.of(nothing).deltas([0.0])) == (0.0, 0.0, [0.0])


WIDE, NARROW = Truncation(records=120_000, largest_batch=130), Truncation(records=5000, largest_batch=60)
EXTREMES: dict[str, Event] = {
    "many truncated steps": noisy_sums(0.001, 1.0, 100_000, WIDE),
    "often full": noisy_sums(0.01, 2.0, 500, NARROW),
    "many scores": composed([noisy_sums(0.01, 1.0, 100), noisy_sums(1.0, 100.0, 10_000)]),
    "many steps": noisy_sums(1e-4, 0.8, 100_000),
    "one step": noisy_sums(0.1, 1.0, 1),
    "much noise": noisy_sums(0.5, 200.0, 10_000),
    "little noise": noisy_sums(0.02, 0.2, 2),
    "nearly all": noisy_sums(0.999, 30.0, 1000),
    "several phases": composed([noisy_sums(0.005 * k, 1.0 + 0.1 * k, 100 * k) for k in range(1, 6)]),
}


# By night those whose lower bound by dp_accounting takes seconds: they go through the same transforms as the others.
@pytest.mark.parametrize("name", but(EXTREMES, lambda name: name not in ("little noise", "several phases")))
def test_epsilon_is_neither_too_small_nor_above_the_services(name: str) -> None:
    """Above the optimistic bound of dp_accounting, and between what a certificate prints and the same without what the
    service takes off for its transforms; also where δ is small."""
    event = EXTREMES[name]
    off = pld.CONVOLUTION_ERROR_PER_STEP * sum(n for leaf, n in leaves(event).items() if leaf.sample_rate < 1.0)
    for delta in (1e-5, 1e-7, 1e-8):
        got = epsilon(tree(event), delta)
        assert pld.epsilon(event, delta + off) - 1e-6 <= got <= pld.epsilon(event, delta) + 2e-6
        assert got >= optimistic(event, delta)


def optimistic(event: Event, delta: float, grid: float = 1e-3) -> float:
    """A lower bound of ε; what the transforms may be off by is given away."""

    def gaussian(sigma: float, rate: float) -> Any:
        return privacy_loss_distribution.from_gaussian_mechanism(
            sigma, pessimistic_estimate=False, value_discretization_interval=grid, sampling_prob=rate
        )

    total, steps = None, 0
    for leaf, count in leaves(event).items():
        part = gaussian(leaf.noise_multiplier, leaf.sample_rate)
        if leaf.overflow > 0.0:
            part = gaussian(leaf.noise_multiplier / 2.0, leaf.sample_rate).compute_mixture(part, leaf.overflow)
        part = part.self_compose(count) if count > 1 else part
        total, steps = part if total is None else total.compose(part), steps + count
    assert total is not None
    return float(total.get_epsilon_for_delta(delta + 1e-15 * steps))


def test_plain_gaussians_at_any_rate_are_one_exactly() -> None:
    """On the grid, ten thousand steps hid a δ of 1e-12, and ε was ∞."""
    all_units = {
        "kind": "poisson_sampled",
        "sample_rate": 1.0,
        "event": {"kind": "gaussian", "noise_multiplier": 100.0},
    }
    got = epsilon({"kind": "self_composed", "count": 10_000, "event": all_units}, 1e-12)
    assert got == pytest.approx(gdp.epsilon_from_mu(1.0, 1e-12), rel=1e-9)


@pytest.mark.parametrize(("rate", "sigma", "count"), [(0.001, 1.0, 100_000), (0.02, 1.0, 5000), (0.5, 100.0, 20_000)])
def test_what_a_transform_is_off_by_is_counted(rate: float, sigma: float, count: int) -> None:
    """Against the same power in long doubles, at every ε. What is counted is more than the difference."""
    step = losses(sampled(rate, sigma, 1), 1e-8 / count)[0]
    power = losses(sampled(rate, sigma, count), 1e-8)[0]
    length = fft.next_fast_len(2 * max(len(power.masses), len(step.masses)), real=True)
    buffer = np.zeros(length, dtype=np.longdouble)
    buffer[np.arange(step.first, step.first + len(step.masses)) % length] = step.masses
    exact = np.roll(fft.irfft(fft.rfft(buffer) ** count, length), -(power.first % length))[: len(power.masses)]
    above = np.exp(-np.maximum(1e-4 * (power.first + np.arange(len(power.masses))), 0.0))
    difference = (power.masses - exact)[::-1]
    off = np.cumsum(difference) - np.cumsum(difference * above[::-1]) / above[::-1]
    assert float(np.abs(off).max()) < 5e-16 * count < power.infinite


def test_one_distribution_gives_the_epsilon_of_every_delta() -> None:
    event = tree(EXTREMES["several phases"])
    wanted = [10.0**-k for k in range(1, 11)]
    curve = Curve.of(event, wanted[-1])
    got = curve.epsilons(wanted)
    assert all(one <= other for one, other in pairwise(got))
    for delta, value in zip(wanted, got, strict=True):
        assert value == pytest.approx(epsilon(event, delta), abs=1e-5)
        exact = max(side.delta(value) for side in curve.sides)
        assert exact <= delta
        if value > 0.0:
            assert max(side.delta(value - 1e-7) for side in curve.sides) > delta


@pytest.mark.parametrize(
    ("event", "grid"),
    [
        (sampled(0.5, 1.0, 3000), 1e-4),
        (sampled(0.5, 1e-99, 1), 1e-4),
        (sampled(0.1, 1.0, 10), 1e-300),
        ({"kind": "composed", "events": [sampled(0.1, 1.0, 10), sampled(1.0, 1e-3, 1)]}, 1e-4),
    ],
)
def test_a_distribution_too_large_to_compute_is_refused_before_memory_is_taken(
    event: dict[str, Any], grid: float
) -> None:
    with pytest.raises(ValueError, match=r"this accountant computes 4194304"):
        epsilon(event, 1e-5, grid)


@pytest.mark.parametrize(("delta", "grid"), [(0.0, 1e-4), (1.0, 1e-4), (math.nan, 1e-4), (1e-5, 0.0), (1e-5, math.nan)])
def test_figures_that_no_certificate_has_are_refused(delta: float, grid: float) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        epsilon(sampled(0.1, 1.0, 10), delta, grid)


@pytest.mark.parametrize(
    ("records", "most", "rate"), [(100, 30, 0.2), (100, 20, 0.2), (100, 5, 0.2), (5000, 60, 0.01), (10**10, 2, 1e-3)]
)
def test_the_chance_of_a_full_batch(records: int, most: int, rate: float) -> None:
    assert chance_of_a_full_batch(records, most, rate) == pytest.approx(float(special.bdtrc(most - 1, records, rate)))
