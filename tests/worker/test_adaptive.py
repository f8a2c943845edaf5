"""Adaptive clipping: what is counted, what its noise is, what a step releases together, and that it replays."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig, TrainingMechanism
from tests.by_night import but
from tests.worker.support import Supervisor, dense, keys_of, mechanism, plan_of, records, run_direct, spec, start_of
from worker.clipping.adaptive import AdaptiveNorm
from worker.clipping.engine import Clip, CountingEngine, half_count
from worker.messages import Keys, MetricValue
from worker.models.linear import Linear
from worker.noise.gaussian import COUNT_STREAM, CountRelease, GaussianRelease, NoisedCount
from worker.noise.generator import GaussianGenerator
from worker.optimizers.base import StepInfo
from worker.telemetry import Telemetry
from worker.training.plan import Plan

KEY = bytes(range(32))
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
X, Y = dense(100, 3)
TRAIN, HOLDOUT = records(X[:80], Y[:80]), records(X[80:], Y[80:])
POISSON = {"kind": "poisson", "expected_batch_size": 16}
MLP = {"kind": "mlp", "hidden": [4]}
ADAPTIVE = {
    "kind": "adaptive",
    "max_grad_norm": 0.5,
    "adaptive": {"target_quantile": 0.3, "learning_rate": 0.5, "count_noise_multiplier": 4.0},
}
ENGINES: dict[str, dict[str, Any]] = {
    "linear": {"runtime": {"dtype": "float64"}},
    "bookkeeping": {"model": MLP, "runtime": {"dtype": "float64"}},
    "opacus": {"model": MLP, "runtime": {"dtype": "float64"}, "clipping": ADAPTIVE | {"engine": "opacus"}},
}


def adaptive_start(**changes: Any) -> dict[str, Any]:
    job = spec(**{"clipping": ADAPTIVE, **changes})
    start = start_of(job, SHAPE)
    start["mechanism"]["training"]["adaptive"] = ADAPTIVE["adaptive"]
    return start


def adaptive_plan(**changes: Any) -> tuple[Plan, CountingEngine, dict[str, Tensor]]:
    plan = plan_of(adaptive_start(**changes))
    assert plan.adaptive_norm is not None
    parameters = {name: value + 0.1 for name, value in plan.model.init(KEY).items()}
    return plan, plan.adaptive_norm.engine, parameters


def norms(engine: CountingEngine, parameters: dict[str, Tensor], x: np.ndarray, y: np.ndarray) -> list[float]:
    """Of each record's gradient, from sums that are not clipped."""
    alone = [
        engine.private_sum_and_count(parameters, records(x[i : i + 1], y[i : i + 1]), Clip(1e6))[0]
        for i in range(len(x))
    ]
    return [math.sqrt(sum(float(each.square().sum()) for each in one.values())) for one in alone]


@pytest.mark.parametrize("kind", ENGINES)
def test_the_count_is_of_the_records_within_c(kind: str) -> None:
    _, engine, parameters = adaptive_plan(**ENGINES[kind])
    lengths = sorted(norms(engine, parameters, X[:20], Y[:20]))
    for within in (0, 1, 8, 19, 20):
        C = 0.5 * ((lengths[within - 1] if within else 0.0) + (lengths[within] if within < 20 else 2 * lengths[-1]))
        total, count = engine.private_sum_and_count(parameters, records(X[:20], Y[:20]), Clip(C))
        assert count.dtype == torch.float64 and count.tolist() == [within - 10.0]
        assert all(float(each.norm()) <= 20 * C for each in total.values())


@pytest.mark.parametrize("kind", ENGINES)
def test_one_record_moves_the_count_by_half_and_a_broken_one_by_no_more(kind: str) -> None:
    _, engine, parameters = adaptive_plan(**ENGINES[kind])
    whole = engine.private_sum_and_count(parameters, TRAIN, Clip(0.4))[1]
    for at in range(0, 80, 9):
        without = records(np.delete(X[:80], at, 0), np.delete(Y[:80], at))
        assert abs(float(whole - engine.private_sum_and_count(parameters, without, Clip(0.4))[1])) == 0.5
    broken = records(np.vstack([X[:80], np.full((1, 3), np.inf, np.float32)]), np.append(Y[:80], 0))
    assert abs(float(whole - engine.private_sum_and_count(parameters, broken, Clip(0.4))[1])) <= 0.5
    nobody = TRAIN.select(np.empty(0, dtype=np.int64))
    assert engine.private_sum_and_count(parameters, nobody, Clip(0.4))[1].tolist() == [0.0]


def test_a_count_of_factors() -> None:
    """½ where nothing is clipped, −½ where something is; a gradient that is not finite counts nothing."""
    factors = torch.tensor([1.0, 1.0, 1.0, 0.9995, 1.0 - 2.0**-53, 1e-300, 0.0, 0.0], dtype=torch.float64)
    assert half_count(factors).tolist() == [0.0] and half_count(factors[:2]).tolist() == [1.0]


@pytest.mark.parametrize(("n", "off"), but([(10_000, 0.06), (40_000, 0.03)], lambda case: case[0] == 10_000))
def test_the_count_has_the_noise_that_was_charged(n: int, off: float) -> None:
    """σ_c/2, and not 3 % off: with 40,000 counts that is 8 standard deviations of the variance."""
    release = CountRelease(KEY, 4.0)
    sums = torch.linspace(-300, 300, n, dtype=torch.float64).mul(2).round().div(2)
    noise = np.array([release.release(sums[i : i + 1], i + 1) for i in range(n)]) - sums.numpy()
    import scipy.stats

    for wrong, accepted in [(1.0, True), (1.0 - off, False), (1.0 + off, False)]:
        scaled = noise / (2.0 * wrong)
        assert bool(abs((scaled**2).sum() - n) < 4 * math.sqrt(2 * n)) is accepted
    assert scipy.stats.kstest(noise / 2.0, "norm").pvalue > 1e-3
    of_gradient = GaussianGenerator(KEY).noise(1, 0, 1)
    assert float(of_gradient) != float(GaussianGenerator(KEY).noise(1, COUNT_STREAM, 1))


def test_the_noise_of_a_count_is_used_once() -> None:
    release = CountRelease(KEY, 4.0)
    release.release(torch.zeros(1, dtype=torch.float64), 3)
    for step in (3, 2):
        with pytest.raises(PrivacyError):
            release.release(torch.zeros(1, dtype=torch.float64), step)
    for wrong in (0.0, math.nan, math.inf, -1.0):
        with pytest.raises(PrivacyError):
            CountRelease(KEY, wrong)


# --- What a step releases together ---


def training(sigma: float, count: float, **changes: Any) -> TrainingMechanism:
    base = mechanism(spec(), SHAPE)["training"] | {"noise_multiplier": sigma, "clipping": "adaptive"}
    return TrainingMechanism.model_validate(
        base | {"adaptive": ADAPTIVE["adaptive"] | {"count_noise_multiplier": count}} | changes
    )


@settings(max_examples=200)
@given(st.floats(0.1, 1e5), st.floats(2.0, 1e4))
def test_gradient_and_count_are_one_mechanism_of_what_is_charged(sigma: float, ratio: float) -> None:
    """σ_g⁻² + σ_c⁻² ≤ σ⁻² over the rationals, and hardly less."""
    made = training(sigma, sigma * ratio * (1 + 1e-9))
    assert made.adaptive is not None
    of_gradient, of_count = Fraction(made.gradient_noise_multiplier), Fraction(made.adaptive.count_noise_multiplier)
    spent = (1 / of_gradient**2 + 1 / of_count**2) * Fraction(sigma) ** 2
    assert 1 - Fraction(1, 10**13) < spent <= 1


def test_a_mechanism_has_a_count_where_it_adapts_and_nowhere_else() -> None:
    assert mechanism(spec(), SHAPE)["training"].get("adaptive") is None
    for wrong in ({"adaptive": None}, {"clipping": "flat"}, {"noise_multiplier": 2.1}):
        with pytest.raises(ValueError, match="count"):
            training(1.0, 4.0, **wrong)


@pytest.mark.parametrize("kind", ["linear", "bookkeeping"])
def test_no_record_changes_gradient_and_count_by_more_than_was_charged(kind: str) -> None:
    plan, engine, parameters = adaptive_plan(**ENGINES[kind])
    assert plan.mechanism is not None and plan.mechanism.training.adaptive is not None
    charged = plan.mechanism.training
    x, y = np.vstack([X[:30] * 10.0**e for e in (-3, 0, 3)]).astype(np.float32), np.tile(Y[:30], 3)
    for C in (1e-6, 0.1, 10.0, 1e6):
        whole, count = engine.private_sum_and_count(parameters, records(x, y), Clip(C))
        for at in range(0, 90, 13):  # of all three sizes
            batch = records(np.delete(x, at, 0), np.delete(y, at))
            rest, fewer = engine.private_sum_and_count(parameters, batch, Clip(C))
            moved = math.sqrt(sum(float((whole[n] - rest[n]).square().sum()) for n in whole)) / C
            counted = abs(float(count - fewer)) / 0.5
            loss = (moved / charged.gradient_noise_multiplier) ** 2 + (counted / 4.0) ** 2
            assert loss <= (1 + 1e-6) / charged.noise_multiplier**2


# --- The norm ---


def norm_of(plan: Plan) -> AdaptiveNorm:
    assert plan.adaptive_norm is not None
    return plan.adaptive_norm


def test_the_norm_moves_as_the_paper_says() -> None:
    """C exp(−η (b̃ − γ)), b̃ from the shifted count over the public L; bounded where noise makes no share of it."""
    adaptive = norm_of(plan_of(adaptive_start(sampling=POISSON)))
    assert (adaptive.first, adaptive.expected_batch_size) == (0.5, 16)
    assert adaptive.after(2.0, NoisedCount(4.0)) == 2.0 * math.exp(-0.5 * (0.5 + 4 / 16 - 0.3))
    assert adaptive.after(2.0, NoisedCount(1e9)) == 2.0 * math.exp(-0.5 * 0.7)
    assert adaptive.after(2.0, NoisedCount(-1e9)) == 2.0 * math.exp(0.5 * 0.3)
    assert adaptive.after(1e-6, NoisedCount(1e9)) == 1e-6 and adaptive.after(1e6, NoisedCount(-1e9)) == 1e6


def test_it_finds_the_quantile() -> None:
    lengths = np.random.default_rng(0).lognormal(1.0, 0.7, 1000)
    adaptive = AdaptiveNorm(norm_of(plan_of(adaptive_start())).engine, 0.1, 0.3, 0.2, 1000)
    release, at = CountRelease(KEY, 100.0), 0.1
    for step in range(1, 301):
        count = torch.tensor([(lengths <= at).sum() - 500.0], dtype=torch.float64)
        at = adaptive.after(at, release.release(count, step))
    assert abs((lengths <= at).mean() - 0.3) < 0.05


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
def test_the_loop_clips_to_c_noises_with_it_and_moves_it(sampling: dict[str, Any]) -> None:
    """Written out by hand, to the same bits, in float64: there the order of a batch does not matter."""
    record = Supervisor(adaptive_start(sampling=sampling, runtime={"dtype": "float64"}))
    got = run_direct(record, TRAIN, HOLDOUT)[0].parameters["weight"]
    plan, keys = plan_of(record.start), Keys.model_validate(keys_of("s0"))
    adaptive, noise = norm_of(plan), bytes.fromhex(keys.noise_key)
    sampler, C = plan.sampler(keys, 80), 0.5
    at = {"weight": Linear(3, 2).init()["weight"]}
    state, sigma = plan.optimizer.init(at), 1 / math.sqrt(1 - 1 / 16)
    for step in range(1, 11):
        indices = sampler.draw(step)
        batch = TRAIN if indices is None else TRAIN.select(indices)
        total, count = adaptive.engine.private_sum_and_count(at, batch, Clip(C))
        release = GaussianRelease(
            noise,
            noise_multiplier=sigma * (1 + 1e-14),
            max_grad_norm=C,
            expected_batch_size=plan.expected_batch_size,
            sensitivity_slack=plan.numerics.sensitivity_slack,
        )
        info = StepInfo(step, release.noise_variance(C))
        at, state = plan.optimizer.update(release.release(total, step), state, at, info)
        C = adaptive.after(C, CountRelease(noise, 4.0).release(count, step))
    torch.testing.assert_close(got, plan.optimizer.finish(state, at, 10)["weight"], rtol=1e-11, atol=1e-12)
    last = record.metrics["clipping_norm", 10]
    assert last["value"] == pytest.approx(C) and (last["std"], last["released_by"]) == (0.0, "post_processing")


# --- What leaves, and replays ---


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
def test_a_killed_attempt_goes_on_to_the_same_bits(sampling: dict[str, Any]) -> None:
    straight = Supervisor(adaptive_start(sampling=sampling, length={"steps": 20}))
    weights = run_direct(straight, TRAIN, HOLDOUT)[0].parameters["weight"]
    assert [step for name, step in straight.metrics if name == "clipping_norm"] == [10, 20]
    for step in (1, 10, 11, 20):
        record = Supervisor(adaptive_start(sampling=sampling, length={"steps": 20}), die_at=step)
        with pytest.raises(ConnectionError):
            run_direct(record, TRAIN, HOLDOUT)
        record.die_at = None
        assert torch.equal(run_direct(record, TRAIN, HOLDOUT)[0].parameters["weight"], weights)
        assert record.digests() == straight.digests() and record.metrics == straight.metrics
        assert record.started == 20 and record.resalts == 0


def test_the_digest_holds_c() -> None:
    """Two jobs that differ in C alone, at a learning rate that leaves the weights as they are."""
    digests = []
    for first in (0.5, 0.25):
        start = adaptive_start(clipping=ADAPTIVE | {"max_grad_norm": first})
        record = Supervisor(start)
        run_direct(record, TRAIN, HOLDOUT)
        digests.append(record.digests()[0])
    assert digests[0] != digests[1]


def test_a_norm_leaves_only_where_counts_were_charged() -> None:
    sent: list[Any] = []

    class Sender:
        send = record = staticmethod(sent.append)

    for start, allowed in ((adaptive_start(), True), (start_of(spec(), SHAPE), False)):
        charged = MechanismConfig.model_validate(start["mechanism"])
        telemetry = Telemetry(Sender(), charged, data_public=False, holdout_public=False)
        with pytest.raises(PrivacyError):
            telemetry.clipping_norm(5, 0.7)  # before its digest
        telemetry.digest(5, "0" * 64)
        if allowed:
            telemetry.clipping_norm(5, 0.7)
        else:
            with pytest.raises(PrivacyError):
                telemetry.clipping_norm(5, 0.7)
    assert [each.value for each in sent if isinstance(each, MetricValue)] == [0.7]


@pytest.mark.parametrize(
    "change",
    [
        {"adaptive": None, "clipping": "flat"},
        {"adaptive": ADAPTIVE["adaptive"] | {"count_noise_multiplier": 40.0}},
        {"adaptive": ADAPTIVE["adaptive"] | {"target_quantile": 0.4}},
        {"max_grad_norm": 1.0},
    ],
)
def test_a_count_that_was_not_charged_is_refused(change: dict[str, Any]) -> None:
    start = adaptive_start()
    start["mechanism"]["training"] |= change
    with pytest.raises(PrivacyError):
        plan_of(start)


def test_what_was_left_to_admission_is_as_it_was_charged() -> None:
    start = adaptive_start(clipping={"kind": "adaptive", "max_grad_norm": 0.5})
    left = {"target_quantile": 0.5, "learning_rate": 0.2, "count_noise_multiplier": 12.0}
    start["mechanism"]["training"]["adaptive"] = left
    assert norm_of(plan_of(start)).target_quantile == 0.5
