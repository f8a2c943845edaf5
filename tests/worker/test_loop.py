"""The loop against a supervisor's record: what is summed, noised and released; resuming, mismatches, stops."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.contracts.metrics import AUC_PARTS
from core.errors import PrivacyError
from core.privacy.slot_numbers import unstated_slots
from tests.worker.support import Supervisor, dense, key, keys_of, plan_of, records, run_direct, spec, start_of
from worker.attempt.failure_codes import StopRequested
from worker.clipping.linear_clipping import LinearClipping
from worker.data.secret_slots import Slotted
from worker.messages import BlockStart, Digest, Keys, MetricValue, Mismatch
from worker.models.linear import Linear
from worker.noise.gaussian import GaussianRelease
from worker.noise.generator import GaussianGenerator
from worker.noise.secret_places import WHOLE_DATA
from worker.optimizers.base import StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_sgd import DpSgd

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
X, Y = dense(100, 3)
TRAIN, HOLDOUT = records(X[:80], Y[:80]), records(X[80:], Y[80:])
POISSON = {"kind": "poisson", "expected_batch_size": 16}


def supervisor(**changes: Any) -> Supervisor:
    return Supervisor(start_of(spec(**changes), SHAPE))


def attempt(record: Supervisor) -> dict[str, torch.Tensor]:
    return run_direct(record, TRAIN, HOLDOUT)[0].parameters


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


def rounded(sums: torch.Tensor) -> torch.Tensor:
    """As a release rounds where the noise's std is 1."""
    return torch.round(sums * 2**10) / 2**10


# --- What a step is ---


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_loop_is_sample_clip_noise_update(sampling: dict[str, Any], dtype: Any) -> None:
    """Written out by hand: same batches in the same rows, same noise, the public divisor, momentum, the free step."""
    record = supervisor(sampling=sampling, runtime={"dtype": dtype})
    got = attempt(record)
    plan, keys = plan_of(record.start), Keys.model_validate(keys_of("s0"))
    slots, order, slack = unstated_slots(80), plan.order(keys), plan.numerics.sensitivity_slack
    sampler = plan.sampler(keys, slots)
    assert order is not None
    model = Linear(3, 2, dtype=getattr(torch, dtype))
    engine, noise = LinearClipping(model, "flat", 1.0, sums=dtype), GaussianGenerator(bytes.fromhex(keys.noise_key))
    divisor = 16 if sampling["kind"] == "poisson" else 80
    w, b = model.init()["weight"], torch.zeros(2, 3, dtype=torch.float64)
    for step in range(1, 11):
        drawn = sampler.draw(step)
        numbers = np.arange(80) if drawn is None else drawn[drawn < 80]
        rows = slots if drawn is None else plan.numerics.rows_per_step
        places = order.of(WHOLE_DATA if drawn is None else step, rows)[: len(numbers)]
        occupants = np.full(rows, -1)
        occupants[places] = numbers
        batch = Slotted(TRAIN, occupants)
        total = engine.private_sum({"weight": w}, batch)["weight"]
        b = 0.9 * b + rounded(total + slack * noise.noise(step, 0, 6).reshape(2, 3)) / divisor
        w = w - 0.5 * b
    torch.testing.assert_close(got["weight"], w - 0.5 * b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
@pytest.mark.parametrize("physical", [1, 7, 200])
def test_noise_is_added_once_per_logical_step(
    sampling: dict[str, Any], physical: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    original = GaussianRelease.release

    def counted(self: GaussianRelease, private_sum: dict[str, torch.Tensor], step: int, *more: Any) -> Any:
        steps.append(step)
        return original(self, private_sum, step, *more)

    monkeypatch.setattr(GaussianRelease, "release", counted)
    whole = attempt(supervisor(sampling=sampling))
    assert steps == list(range(1, 11))
    split = attempt(supervisor(sampling=sampling, runtime={"physical_batch_size": physical}))
    assert steps == list(range(1, 11)) * 2
    torch.testing.assert_close(split["weight"], whole["weight"], rtol=1e-11, atol=1e-13)


def test_an_empty_batch_is_a_step_of_noise_alone() -> None:
    asked = spec(sampling={"kind": "poisson", "expected_batch_size": 1})
    record = Supervisor(start_of(asked, SHAPE))
    slack = plan_of(record.start).numerics.sensitivity_slack
    nobody = records(X[:0], Y[:0])
    outcome, link = run_direct(record, nobody, HOLDOUT)
    assert link.steps == list(range(1, 11)) and outcome.steps == 10
    noise = GaussianGenerator(bytes.fromhex(keys_of("s0")["noise_key"]))
    optimizer, at = DpSgd(Descent(0.5), momentum=0.9, free_step=True), Linear(3, 2).init()
    state = optimizer.init(at)
    for step in range(1, 11):
        alone = {"weight": rounded(slack * noise.noise(step, 0, 6).reshape(2, 3))}
        at, state = optimizer.update(alone, state, at, StepInfo(step, 1.0))  # type: ignore[arg-type]
    torch.testing.assert_close(outcome.parameters["weight"], optimizer.finish(state, at, 10)["weight"])


def test_a_broken_record_is_no_oracle() -> None:
    """With a NaN record beside the others, everything that leaves is as without it."""
    x, y = np.vstack([X[:80], np.full((1, 3), np.nan, np.float32)]), np.append(Y[:80], 0)
    one, two = supervisor(), supervisor()
    clean = run_direct(one, TRAIN, HOLDOUT)[0]
    broken = run_direct(two, records(x, y), HOLDOUT)[0]
    assert broken.warnings == clean.warnings == ()
    torch.testing.assert_close(broken.parameters["weight"], clean.parameters["weight"], rtol=1e-12, atol=1e-14)
    assert [each.kind for each in one.seen] == [each.kind for each in two.seen]


# --- What leaves ---


def test_metrics_leave_after_their_digest_and_as_often_as_declared() -> None:
    record = supervisor()
    attempt(record)
    kinds = [each for each in record.seen if not isinstance(each, BlockStart)]
    for at, message in enumerate(kinds):
        if isinstance(message, MetricValue):
            assert isinstance(kinds[at - 1], Digest) and kinds[at - 1].step == message.step
    metrics = record.of(MetricValue)
    assert [(each.name, each.step, each.released_by) for each in metrics] == [
        ("accuracy", 5, "noisy_count"),
        ("accuracy", 10, "noisy_count"),
    ]
    assert list(record.digests()) == list(range(11))


def test_the_last_score_is_of_the_model_that_is_handed_out() -> None:
    """After the free step, with the hold-out's noise taken off again."""
    record = supervisor(
        optimizer={"kind": "dp_sgd", "learning_rate": 50.0, "free_step": True},
        length={"steps": 1},
        evaluation={"noise_mu": 10.0},
    )
    model, parameters = Linear(3, 2), attempt(record)
    correct = float(model.correct(model.forward(parameters, HOLDOUT), HOLDOUT.labels).sum())
    z = GaussianGenerator(bytes.fromhex(keys_of("s0")["release_key"])).noise(1, 0, 2) / 10
    right, wrong = correct + float(z[0]), 20 - correct + float(z[1])
    (metric,) = record.of(MetricValue)
    assert metric.value == pytest.approx(right / (right + wrong))


def test_public_data_show_exact_scores_and_the_training_loss() -> None:
    start = start_of(spec(privacy=None, seed=5, sampling=POISSON), SHAPE, public=True)
    first, second = (
        Supervisor(start),
        Supervisor(start, segments=[{"from_step": 1, **keys_of("other"), "recorded": []}]),
    )
    outcome, _ = run_direct(first, TRAIN, HOLDOUT)
    assert same(outcome.parameters, run_direct(second, TRAIN, HOLDOUT)[0].parameters)  # the seed decides, not the salt
    names = {(each.name, each.on, each.step, each.released_by, each.std) for each in first.of(MetricValue)}
    assert {("training_loss", "train", step, "public_data", 0.0) for step in range(1, 11)} <= names
    assert {(name, "holdout", step, "public_data", 0.0) for name in ("accuracy", "loss") for step in (5, 10)} <= names
    model = Linear(3, 2)
    exact = float(model.correct(model.forward(outcome.parameters, HOLDOUT), HOLDOUT.labels).double().mean())
    assert [each.value for each in first.of(MetricValue) if each.name == "accuracy"][-1] == exact


def test_a_private_job_with_a_public_holdout_is_scored_exactly() -> None:
    record = Supervisor(start_of(spec(), SHAPE, holdout_public=True))
    attempt(record)
    assert {(each.on, each.released_by) for each in record.of(MetricValue)} == {("holdout", "public_data")}


def test_a_public_job_without_evaluation_has_no_score_and_diverging_ones_are_left_out() -> None:
    diverging = {"kind": "dp_sgd", "learning_rate": 1e12, "momentum": 0.99}
    job = spec(privacy=None, evaluation=None, optimizer=diverging, length={"steps": 200})
    x, y = dense(80, 3, 1)
    record = Supervisor(start_of(job, SHAPE | {"outputs": 1}, public=True))
    outcome, _ = run_direct(record, records(x, y), None)
    assert {"metric-not-finite", "parameters-not-finite"} <= set(outcome.warnings)
    assert all(each.name == "training_loss" and np.isfinite(each.value) for each in record.of(MetricValue))


# --- Resuming ---


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
def test_a_killed_attempt_goes_on_to_the_same_weights_bit_for_bit(sampling: dict[str, Any]) -> None:
    """Killed in every step; the next attempt replays what was started, free of charge."""
    straight = supervisor(sampling=sampling)
    weights = attempt(straight)
    for step in range(1, 11):
        record = supervisor(sampling=sampling)
        record.die_at = step
        with pytest.raises(ConnectionError):
            attempt(record)
        record.die_at = None
        assert same(attempt(record), weights)
        assert record.digests() == straight.digests() and record.metrics == straight.metrics
        assert record.started == 10 and record.resalts == 0


def test_a_finished_job_replays_to_the_same_end() -> None:
    record = supervisor()
    weights = attempt(record)
    metrics = dict(record.metrics)
    outcome, _ = run_direct(record, TRAIN, HOLDOUT)
    assert same(outcome.parameters, weights) and outcome.warnings == ()
    assert record.metrics == metrics and record.started == 10
    assert len(record.of(MetricValue)) == 2  # nothing is measured twice


def noise_used(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int, bytes]]:
    """(key, step, the sum that met that noise), of every noise step that runs."""
    used: list[tuple[bytes, int, bytes]] = []
    original_init, original = GaussianRelease.__init__, GaussianRelease.release

    def init(self: Any, key: bytes | None, **settings: Any) -> None:
        original_init(self, key, **settings)
        self.key = key

    def release(self: Any, private_sum: dict[str, torch.Tensor], step: int, query: int, norm: float, *more: Any) -> Any:
        used.append((self.key, step, private_sum["weight"].numpy().tobytes()))
        return original(self, private_sum, step, query, norm, *more)

    monkeypatch.setattr(GaussianRelease, "__init__", init)
    monkeypatch.setattr(GaussianRelease, "release", release)
    return used


def tamper(record: Supervisor, step: int) -> None:
    for each in record.segments[-1]["recorded"]:
        if each["last_step"] == step:
            each["digest"] = key("tampered")


def test_a_replay_that_differs_goes_on_under_fresh_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old noise never meets another state: from the last match on, every step has the fresh key."""
    record = supervisor(evaluation=None)
    record.die_at = 7
    with pytest.raises(ConnectionError):
        attempt(record)
    tamper(record, 4)
    record.die_at, record.hold = None, 13
    used = noise_used(monkeypatch)
    outcome, link = run_direct(record, TRAIN, HOLDOUT)
    assert [each.matched_step for each in record.of(Mismatch)] == [3]
    old, new = (bytes.fromhex(keys_of(salt)["noise_key"]) for salt in ("s0", "s1"))
    assert [(k == new, step) for k, step, _ in used] == [(False, s) for s in (1, 2, 3, 4)] + [
        (True, s) for s in range(4, 10)
    ]
    assert old != new and link.steps == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    assert outcome.steps == 9 and outcome.warnings == ("steps-short",)  # 7 were started, 6 more were held
    assert record.started == 13


def test_after_fresh_keys_a_job_resumes_bit_for_bit() -> None:
    first = supervisor(sampling=POISSON, length={"steps": 20})
    first.hold = 60
    attempt(first)
    tamper(first, 20)
    weights = attempt(first)
    assert first.resalts == 1 and [s["from_step"] for s in first.segments] == [1, 11]
    assert same(attempt(first), weights)
    assert first.resalts == 1 and first.started == 30
    again = supervisor(sampling=POISSON, length={"steps": 20})
    again.hold, again.segments = 60, [dict(s, recorded=[]) for s in first.segments]
    again.segments[0]["recorded"] = [each for each in first.segments[0]["recorded"] if each["last_step"] <= 10]
    again.started = 20
    assert same(attempt(again), weights)


def test_a_first_state_that_differs_begins_anew_under_fresh_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    record = supervisor(evaluation=None)
    record.hold = 20
    attempt(record)
    tamper(record, 0)
    used = noise_used(monkeypatch)
    outcome, _ = run_direct(record, TRAIN, HOLDOUT)
    assert record.of(Mismatch)[0].matched_step == -1
    assert {k for k, _, _ in used} == {bytes.fromhex(keys_of("s1")["noise_key"])}
    assert outcome.steps == 10 and outcome.warnings == () and record.started == 20


def test_without_steps_left_a_mismatch_ends_at_the_match() -> None:
    record = supervisor()
    attempt(record)
    released = dict(record.metrics)
    tamper(record, 10)
    outcome, _ = run_direct(record, TRAIN, HOLDOUT)
    assert outcome.steps == 9
    assert set(outcome.warnings) == {"steps-short", "evaluation-skipped"}  # both releases were used up
    assert record.metrics == released and record.started == 10


def test_a_resumed_job_scores_where_it_ends_if_that_is_still_paid_for() -> None:
    record = supervisor()
    record.die_at = 8
    with pytest.raises(ConnectionError):
        attempt(record)
    tamper(record, 7)
    record.die_at = None
    outcome, _ = run_direct(record, TRAIN, HOLDOUT)
    assert outcome.steps == 8 and outcome.warnings == ("steps-short",)
    assert set(record.metrics) == {("accuracy", 5), ("accuracy", 8)}


def test_one_noise_never_covers_two_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many attempts, some of them on other data (a damaged replay): what left was made of one sum per noise."""
    used = noise_used(monkeypatch)
    record = supervisor(evaluation=None)
    record.hold = 40
    other = records(X[10:90], Y[10:90])
    for train, die in [(TRAIN, 4), (other, 8), (TRAIN, 9), (other, None)]:
        record.die_at = die
        try:
            run_direct(record, train, HOLDOUT)
        except ConnectionError:
            continue
    recorded = {
        (s["noise_key"], each["last_step"]) for s in record.segments for each in s["recorded"] if each["digest"]
    }
    assert len(recorded) > 10
    sums: dict[tuple[bytes, int], set[bytes]] = {}
    for k, step, total in used:
        sums.setdefault((k, step), set()).add(total)
    released: dict[tuple[str, int], set[str]] = {}
    for s in record.segments:
        for each in s["recorded"]:
            if each["digest"]:
                released.setdefault((s["noise_key"], each["last_step"]), set()).add(each["digest"])
    assert all(len(digests) == 1 for digests in released.values())
    doubled = {k_step for k_step, totals in sums.items() if len(totals) > 1}
    # A differing sum may be computed once, in the replay that finds it out; its state is thrown away.
    assert len(doubled) <= record.resalts
    assert record.started <= 40


# --- Steps and stops ---


def test_steps_are_counted_in_blocks_before_they_run() -> None:
    record = supervisor(length={"steps": 60}, evaluation=None)
    attempt(record)
    blocks = [(each.first_step, each.last_step) for each in record.of(BlockStart)]
    assert blocks == [(at, at + 2) for at in range(1, 60, 3)]
    assert record.started == 60
    order = [each.kind for each in record.seen]
    assert order == ["digest"] + ["block", "digest"] * 20


def test_stop_ends_before_the_block() -> None:
    record = supervisor()
    record.stop_at = 4
    with pytest.raises(StopRequested):
        attempt(record)
    assert record.started == 3 and list(record.digests()) == [0, 1, 2, 3]


def test_a_mismatch_in_the_first_block_resumes_bit_for_bit_later() -> None:
    """Nothing is kept then, so the state before the first step is recorded anew, under the fresh salt."""
    record = supervisor(evaluation=None)
    record.hold = 30
    attempt(record)
    tamper(record, 1)
    weights = attempt(record)
    assert [each.matched_step for each in record.of(Mismatch)] == [0] and record.started == 20
    assert same(attempt(record), weights)
    assert record.resalts == 1 and record.started == 20


@settings(max_examples=40)
@given(
    st.sampled_from([POISSON, {"kind": "full_batch"}]),
    st.lists(st.tuples(st.none() | st.integers(1, 10), st.booleans(), st.none() | st.integers(0, 10)), max_size=6),
    st.integers(10, 30),
)
def test_whatever_happens_to_attempts_the_record_holds(
    sampling: dict[str, Any], history: list[tuple[int | None, bool, int | None]], hold: int
) -> None:
    """Attempts that die anywhere, replay on other numbers or meet damaged records: the supervisor's own checks hold
    (never more steps than held, never on under the same keys after a difference), and what is left is repeatable."""
    record = Supervisor(start_of(spec(sampling=sampling), SHAPE), hold=hold)
    other = records(X[10:90], Y[10:90])
    for die_at, on_other_numbers, damaged in history:
        record.die_at = die_at
        if damaged is not None:
            tamper(record, damaged)
        with contextlib.suppress(ConnectionError):
            run_direct(record, other if on_other_numbers else TRAIN, HOLDOUT)
    record.die_at = None
    outcome, _ = run_direct(record, TRAIN, HOLDOUT)
    resalts, metrics = record.resalts, dict(record.metrics)
    again, _ = run_direct(record, TRAIN, HOLDOUT)
    assert same(again.parameters, outcome.parameters) and again.steps == outcome.steps
    assert record.resalts == resalts and record.started <= hold
    assert {name_step: record.metrics[name_step] for name_step in metrics} == metrics == record.metrics
    assert len(record.metrics) <= 2


# --- Groups of classes ---


def test_a_private_run_releases_groups_with_the_score_that_was_charged() -> None:
    record = supervisor(evaluation={"noise_mu": 0.5, "points": 2, "groups": {"second": [1]}})
    attempt(record)
    sent = record.of(MetricValue)
    released = [(each.name, each.released_by, [part.name for part in each.parts]) for each in sent]
    assert released == [("accuracy", "noisy_count", ["accuracy:second"])] * 2
    assert record.start["mechanism"]["releases"][0]["groups"] == {"second": [1]}
    record.start["spec"]["evaluation"]["groups"] = {"first": [0]}  # not what was charged
    with pytest.raises(PrivacyError):
        plan_of(record.start)


def test_a_private_run_releases_losses_of_groups_where_they_were_charged() -> None:
    record = supervisor(evaluation={"noise_mu": 0.5, "metrics": ["accuracy", "loss"], "groups": {"second": [1]}})
    attempt(record)
    sent = {each.name: each for each in record.of(MetricValue)}
    assert {name: each.released_by for name, each in sent.items()} == {"accuracy": "noisy_count", "loss": "noisy_sum"}
    assert all([part.name for part in each.parts] == [f"{each.name}:second"] for each in sent.values())
    record.start["spec"]["evaluation"]["metrics"] = ["loss"]  # not what was charged
    with pytest.raises(PrivacyError):
        plan_of(record.start)


def test_a_public_run_scores_groups_by_frequency() -> None:
    asked = spec(privacy=None, evaluation={"by_frequency": True})
    record = Supervisor(start_of(asked, SHAPE, public=True))
    attempt(record)
    names = {each.name for each in record.of(MetricValue)}
    counts = torch.bincount(TRAIN.labels).tolist()
    groups = {f"{2 ** (c.bit_length() - 1)}-{2 ** c.bit_length() - 1}" for c in counts}
    assert names == {"training_loss", "accuracy", "loss", "auc", *AUC_PARTS} | {
        f"{what}:{g}" for what in ("accuracy", "loss") for g in groups
    }
    with pytest.raises(PrivacyError):
        plan_of(start_of(spec(evaluation={"by_frequency": True}), SHAPE))
