"""Methods that divide gradients before they are clipped, against simulations written apart, record by record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from core.errors import PrivacyError
from tests.worker.optimizing import gradients, parameters, phases
from tests.worker.support import (
    Supervisor,
    dense,
    key,
    keys_of,
    plan_of,
    records,
    run_child,
    run_direct,
    spec,
    start_of,
    stored_part,
)
from worker.messages import Finished, Keys
from worker.noise.gaussian import GaussianRelease, NoisedGradient
from worker.noise.generator import GaussianGenerator
from worker.optimizers.base import StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp2 import AdaGradMoment, Dp2, RmsPropMoment, SecondMoment, YogiMoment
from worker.optimizers.scale_then_privatize import ScaleThenPrivatize

Array = NDArray[np.float64]
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
X, Y = dense(100, 3)
TRAIN, HOLDOUT = records(X[:80], Y[:80]), records(X[80:], Y[80:])
POISSON = {"kind": "poisson", "expected_batch_size": 16}
RATE, ADAPTIVE_RATE, CLIP, ADAPTIVE_CLIP, EPS, SIGMA, STEPS = 0.5, 0.05, 1.0, 3.0, 1e-2, 0.7, 23

U: dict[str, Callable[[Array, Array], Array]] = {
    "dp2_rmsprop": lambda v, m: 0.9 * v + 0.1 * m**2,
    "dp2_adagrad": lambda v, m: v + m**2,
    "dp2_yogi": lambda v, m: v + 0.1 * np.where(m**2 > v, 1.0, np.where(m**2 < v, -1.0, 0.0)) * m**2,
}


def dp2(kind: str, **changes: Any) -> dict[str, Any]:
    delays = {"delay": 3} if changes.get("variant") == "extra_query" else {"delay_sgd": 3, "delay_adaptive": 4}
    return {
        "kind": kind,
        "learning_rate": RATE,
        "learning_rate_adaptive": ADAPTIVE_RATE,
        "max_grad_norm_adaptive": ADAPTIVE_CLIP,
        "eps": EPS,
        **delays,
        **changes,
    }


def job(optimizer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    base = {"privacy": {"noise_multiplier": SIGMA, "target_delta": 1e-5}, "length": {"steps": STEPS}}
    wide = {} if "model" in changes else {"runtime": {"dtype": "float64"}}  # as the textbook's numbers
    return spec(optimizer=optimizer, **(base | wide | changes))


class Private:
    """The data, the batches and the noise of a job, and the textbook mechanism on them, one record at a time."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.plan, keys = plan_of(start_of(asked, SHAPE)), Keys.model_validate(keys_of("s0"))
        self.sampler, self.L = self.plan.sampler(keys, 80), self.plan.expected_batch_size
        self.noise = GaussianGenerator(bytes.fromhex(keys.noise_key))

    def __call__(self, w: Array, step: int, clip: float, divisor: Array | float = 1.0, query: int = 0) -> Array:
        indices = self.sampler.draw(step)
        total = np.zeros((2, 3))
        for i in range(80) if indices is None else indices:
            x = X[i].astype(np.float64)
            p = np.exp(w @ x - (w @ x).max())
            g = np.outer(p / p.sum() - np.eye(2)[Y[i]], x) / divisor
            total += g * min(1.0, clip / np.sqrt((g**2).sum()))
        z = self.noise.noise(step, query, 6).numpy().reshape(2, 3)
        std = SIGMA * clip
        grid = 2.0 ** math.floor(math.log2(std / 2**10))
        return np.round((total + std * z) / grid) * grid / self.L


def simulated_dp2(kind: str, private: Private, *, variant: str = "delayed", debias: bool = False) -> Array:
    """Algorithm 1, with t from 0 as it is printed."""
    w, v, G = np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3))
    s1, s2 = 3, 4
    for t in range(STEPS):
        if t % (s1 + s2) == 0:
            G = np.zeros((2, 3))
        if t % (s1 + s2) == s1:
            m = G / s1
            if debias:
                m = np.sqrt(np.maximum(m**2 - SIGMA**2 * CLIP**2 / (s1 * private.L**2), 0.0))
            v, G = U[kind](v, m), np.zeros((2, 3))
        sgd = t % (s1 + s2) < s1
        D = 1.0 if sgd else np.sqrt(v) + EPS
        if variant == "noise_first":
            g = private(w, t + 1, CLIP if sgd else ADAPTIVE_CLIP) / D
        else:
            g = private(w, t + 1, CLIP if sgd else ADAPTIVE_CLIP, D)
        G, w = G + g, w - (RATE if sgd else ADAPTIVE_RATE) * g
    return w


def simulated_extra_query(kind: str, private: Private) -> Array:
    """Algorithm 2, with t from 1 as it is printed."""
    w, v, G, s = np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3)), 3
    for t in range(1, STEPS + 1):
        g = private(w, t, CLIP)
        G = G + g
        if (t - 1) % s == 0:
            v, G = U[kind](v, G / s), np.zeros((2, 3))
            w = w - RATE * g
        else:
            w = w - ADAPTIVE_RATE * private(w, t, ADAPTIVE_CLIP, np.sqrt(v) + EPS, query=1)
    return w


def trained(asked: dict[str, Any]) -> Array:
    return run_direct(Supervisor(start_of(asked, SHAPE)), TRAIN, HOLDOUT)[0].parameters["weight"].numpy()


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
@pytest.mark.parametrize("kind", U)
def test_dp2_is_the_papers_algorithm(kind: str, sampling: dict[str, Any]) -> None:
    """Phase switch, C and η of the phase, first v, and that the division comes before the clip, the noise after it."""
    asked = job(dp2(kind), sampling=sampling, evaluation=None)
    np.testing.assert_allclose(trained(asked), simulated_dp2(kind, Private(asked)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", U)
@pytest.mark.parametrize("how", [{"variant": "noise_first"}, {"debias": True}])
def test_dp2s_other_ways_are_what_they_say(kind: str, how: dict[str, Any]) -> None:
    asked = job(dp2(kind, **how), evaluation=None)
    np.testing.assert_allclose(trained(asked), simulated_dp2(kind, Private(asked), **how), rtol=1e-9, atol=1e-12)
    assert np.abs(trained(asked) - trained(job(dp2(kind), evaluation=None))).max() > 1e-5


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
@pytest.mark.parametrize("kind", U)
def test_an_extra_query_is_the_papers_second_algorithm(kind: str, sampling: dict[str, Any]) -> None:
    """With noise of its own: the streams after those of the first query."""
    asked = job(dp2(kind, variant="extra_query"), sampling=sampling, evaluation=None)
    np.testing.assert_allclose(trained(asked), simulated_extra_query(kind, Private(asked)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("base", ["adam", "rmsprop"])
def test_scale_then_privatize_is_its_definition(base: str) -> None:
    settings = {"kind": "scale_then_privatize", "learning_rate": 0.1, "base": base, "eps_scale": 0.05, "eps_root": 1e-4}
    asked = job(settings, clipping={"kind": "flat", "max_grad_norm": CLIP}, evaluation=None)
    private = Private(asked)
    w, m, v = np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3))
    for t in range(1, STEPS + 1):
        D = np.sqrt(v) + 0.05
        g = D * private(w, t, CLIP, D)
        if base == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t) + 1e-4) + 1e-8)
        else:
            v = 0.9 * v + 0.1 * g**2
            w = w - 0.1 * g / (np.sqrt(v + 1e-4) + 1e-8)
    np.testing.assert_allclose(trained(asked), w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("base", ["adam", "rmsprop"])
def test_without_noise_scale_then_privatize_is_its_base(base: str) -> None:
    """On public data nothing is clipped, and what was divided is multiplied back."""
    scaled = {"kind": "scale_then_privatize", "learning_rate": 0.1, "base": base, "eps_scale": 1e-2}
    plain = {"kind": f"dp_{'adam' if base == 'adam' else 'rmsprop'}", "learning_rate": 0.1}
    one, two = (
        run_direct(
            Supervisor(start_of(spec(privacy=None, evaluation=None, optimizer=each), SHAPE, public=True)), TRAIN, None
        )
        for each in (scaled, plain)
    )
    torch.testing.assert_close(one[0].parameters, two[0].parameters, rtol=1e-9, atol=1e-9)


def test_without_noise_dp2_alternates_between_sgd_and_a_stale_rmsprop() -> None:
    asked = job(dp2("dp2_rmsprop"), privacy=None, evaluation=None)
    outcome, _ = run_direct(Supervisor(start_of(asked, SHAPE, public=True)), TRAIN, None)
    x, y = torch.from_numpy(X[:80]).double(), torch.from_numpy(Y[:80])
    w, v, G = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3), torch.zeros(2, 3)
    for t in range(STEPS):
        leaf = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x @ leaf.T, y), leaf)
        if t % 7 == 3:
            v, G = 0.9 * v + 0.1 * (G / 3) ** 2, torch.zeros(2, 3)
        w = w - RATE * g if t % 7 < 3 else w - ADAPTIVE_RATE * g / (v.sqrt() + EPS)
        G = G + g if t % 7 < 3 else G
    torch.testing.assert_close(outcome.parameters["weight"], w, rtol=1e-9, atol=1e-9)


# --- What the state holds ---


@pytest.mark.parametrize("moment", [RmsPropMoment(0.9), AdaGradMoment(), YogiMoment(0.9)])
def test_gradients_of_adaptive_steps_never_feed_the_second_moment(moment: SecondMoment) -> None:
    optimizer = Dp2(Descent(0.1), Descent(0.1), moment, phases(2, 3), 1e-3)
    at = parameters()
    state = optimizer.init(at)
    seen = []
    for step, noised in enumerate(gradients(7), start=1):
        at, state = optimizer.update(noised, state, at, StepInfo(step, 0.0))
        seen.append(state["v/weight"].clone())
    first = ((gradients(2)[0]["weight"] + gradients(2)[1]["weight"]) / 2) ** 2
    assert not seen[0].any()
    torch.testing.assert_close(
        seen[1], first if isinstance(moment, AdaGradMoment) else (1 - 0.9) * first
    )  # golden: 0.1 ḡ²
    assert all(torch.equal(each, seen[1]) for each in seen[2:6]) and not torch.equal(seen[6], seen[5])


def test_yogi_moves_by_the_sign_and_stays_positive() -> None:
    v = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    squares = torch.tensor([4.0, 0.25, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(YogiMoment(0.9)(v, squares), torch.tensor([1.4, 0.975, 1.0, 0.0], dtype=torch.float64))


def test_a_second_query_that_was_not_made_is_an_error() -> None:
    optimizer = Dp2(Descent(0.1), Descent(0.1), AdaGradMoment(), phases(2, 2, "extra_query"), 1e-3)
    state = optimizer.init(parameters())
    with pytest.raises(PrivacyError):
        optimizer.update(gradients(1)[0], state, parameters(), StepInfo(2, 0.0))


KINDS: dict[str, dict[str, Any]] = {
    "dp_sgd": {"kind": "dp_sgd", "learning_rate": 0.5, "momentum": 0.9, "free_step": True},
    "dp_adam": {"kind": "dp_adam", "learning_rate": 0.1, "weight_decay": 0.1, "decay": "coupled"},
    "dp_adambc": {"kind": "dp_adambc", "learning_rate": 0.1},
    "dp_adamwosm": {"kind": "dp_adamwosm", "learning_rate": 0.1},
    "dp_rmsprop": {"kind": "dp_rmsprop", "learning_rate": 0.1, "schedule": {"kind": "cosine"}},
    "dp_adagrad": {"kind": "dp_adagrad", "learning_rate": 0.1},
    "dp2_rmsprop": dp2("dp2_rmsprop", debias=True),
    "dp2_adagrad": dp2("dp2_adagrad", variant="extra_query"),
    "dp2_yogi": dp2("dp2_yogi", variant="noise_first"),
    "scale_then_privatize": {"kind": "scale_then_privatize", "learning_rate": 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_state_holds_anything_that_is_not_noised(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run's state is can be computed, bit for bit, from its noised releases alone, and no number of a sum before
    its noise is in it."""
    released: list[tuple[int, int, NoisedGradient, float]] = []
    private: list[torch.Tensor] = []
    states: list[dict[str, torch.Tensor]] = []
    release = GaussianRelease.release

    def noted(
        self: GaussianRelease, total: Any, step: int, query: int = 0, C: float | None = None, shards: Any = None
    ) -> Any:
        private.extend(each.clone() for each in total.values())
        noised = release(self, total, step, query, C, shards)
        std = SIGMA * plan.numerics.sensitivity_slack * (CLIP if C is None else C)
        released.append((step, query, NoisedGradient({k: v.clone() for k, v in noised.items()}), (std / 80) ** 2))
        return noised

    monkeypatch.setattr(GaussianRelease, "release", noted)
    record = Supervisor(start_of(job(KINDS[kind], evaluation=None), SHAPE))
    plan = plan_of(record.start)
    update = type(plan.optimizer).update

    def watched(self: Any, noised: Any, state: Any, at: Any, info: Any) -> Any:
        after = update(self, noised, state, at, info)
        states.append({name: value.clone() for name, value in after[1].items()})
        return after

    monkeypatch.setattr(type(plan.optimizer), "update", watched)
    run_direct(record, TRAIN, HOLDOUT)
    monkeypatch.undo()
    at = plan.model.init(None)
    state = plan.optimizer.init(at)
    for step in range(1, STEPS + 1):
        first, *more = [each for each in released if each[0] == step]
        info = StepInfo(step, first[3], more[0][2] if more else None)
        at, state = plan.optimizer.update(first[2], state, at, info)
        assert state.keys() == states[step - 1].keys()
        for name, value in state.items():
            torch.testing.assert_close(states[step - 1][name], value, rtol=1e-12, atol=1e-18)
    unnoised = torch.cat([each.flatten() for each in private])
    unnoised = torch.cat([unnoised, unnoised / 80, unnoised**2, (unnoised / 80) ** 2])
    kept = torch.cat([value.flatten() for state in states for value in state.values()] or [torch.zeros(1)])
    kept, unnoised = kept[kept != 0], unnoised[unnoised != 0]
    assert not (len(kept) and bool(((kept[:, None] - unnoised[None]).abs() <= 1e-12 * kept[:, None].abs()).any()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_is_the_same_bit_for_bit_and_free(kind: str) -> None:
    """The digest covers the state: an attempt that died is gone through again, and every digest holds."""
    asked = job(KINDS[kind], evaluation=None)
    straight = Supervisor(start_of(asked, SHAPE))
    whole = run_direct(straight, TRAIN, None)[0].parameters["weight"]
    for died in (2, 4, 9, STEPS):
        record = Supervisor(start_of(asked, SHAPE), die_at=died)
        with pytest.raises(ConnectionError):
            run_direct(record, TRAIN, None)
        record.die_at = None
        again = run_direct(record, TRAIN, None)[0].parameters["weight"]
        assert torch.equal(again, whole) and record.resalts == 0 and record.started == STEPS
        assert record.digests() == straight.digests()


@pytest.mark.parametrize("kind", ["dp2_rmsprop", "dp2_adagrad", "scale_then_privatize"])
def test_a_state_that_was_tampered_with_is_found_out(kind: str) -> None:
    record = Supervisor(start_of(job(KINDS[kind], evaluation=None), SHAPE), hold=2 * STEPS)
    run_direct(record, TRAIN, None)
    for each in record.segments[-1]["recorded"]:
        if each["last_step"] == 5:
            each["digest"] = key("tampered")
    run_direct(record, TRAIN, None)
    assert record.resalts == 1


@pytest.mark.slow
def test_a_whole_process_trains_with_two_queries_a_step(tmp_path: Any) -> None:
    asked = job(KINDS["dp2_adagrad"], evaluation=None)
    part = stored_part(tmp_path / "train.npz", X[:80], Y[:80])
    record = Supervisor(start_of(asked, SHAPE, parts={"train": part}, output_dir=tmp_path))
    ended = run_child(record)
    assert isinstance(ended.last, Finished) and ended.last.steps_effective == STEPS


def test_the_first_division_is_by_the_guard_alone() -> None:
    optimizer = ScaleThenPrivatize(Descent(0.1), "adam", (0.9, 0.999), 1e-8, 0.0, 0.25)
    divisors = optimizer.divisors(optimizer.init(parameters()), 1, 0)
    assert all(bool((value == 0.25).all()) for value in divisors.values())
