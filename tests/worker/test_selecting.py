"""The best of a secret number of runs: one attempt, of which one run leaves and nothing tells how many counted."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from core.contracts.hpo import GridPoints, Space
from core.contracts.job_spec import JobSpec
from core.errors import PrivacyError
from tests.worker.support import (
    DirectLink,
    Supervisor,
    dense,
    key,
    keys_of,
    plan_of,
    records,
    run_child,
    spec,
    start_of,
    stored_part,
)
from worker.attempt import selecting
from worker.attempt.selecting import selected
from worker.messages import Digest, Finished, Keys, MetricValue
from worker.metrics.scores import Score
from worker.noise.hidden import hidden_rate, hidden_size, keys_of_run
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.best import Best, Run
from worker.training.loop import Outcome

SHAPE = {"records_train": 200, "records_holdout": 60, "features": 4, "outputs": 2, "sparse": False}
HPO: dict[str, Any] = {
    "strategy": "random_size",
    "distribution": {"kind": "negative_binomial", "eta": 1.0, "gamma": 0.3},
    "most_runs": 5,
    "duration_s": 1,
    "space": {"learning_rate": [0.01, 10.0]},
}
KEYS = Keys.model_validate(keys_of("s0"))


def start(**changes: Any) -> dict[str, Any]:
    job = spec(**{"hpo": HPO, "evaluation": {"noise_mu": 0.5, "metrics": ["accuracy"]}} | changes)
    made = start_of(job, SHAPE)
    asked = JobSpec.model_validate(job).selection
    assert asked is not None
    made["mechanism"]["selection"] = {"weights": list(asked.weights)}
    return made


class Link(DirectLink):
    """A link that counts how often it hears that the attempt is alive."""

    def loading(self) -> None:
        self.steps.append(0)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "_wait", lambda _began, _asked, _link: None)


def attempt(supervisor: Supervisor) -> tuple[Outcome, Link]:
    message, link = supervisor.message(), Link(supervisor)
    exit_ = Telemetry(link, message.mechanism, data_public=False, holdout_public=False, released=message.released)
    x, y = dense(200, 4)
    held = dense(60, 4, seed=1)
    data = TrainingData(records(x, y), records(*held), False)
    return selected(message, plan_of(supervisor.start), data, link, exit_), link


def counted(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(selecting, "hidden_size", lambda _keys, _weights: size)


def test_a_selection_is_the_best_of_the_first_runs(no_wait: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a second way: each run alone, by the same keys."""
    runs: list[Run] = []
    real = selecting._run

    def kept(*by: Any) -> Run:
        runs.append(real(*by))
        return runs[-1]

    monkeypatch.setattr(selecting, "_run", kept)
    for size in range(1, 6):
        runs.clear()
        counted(monkeypatch, size)
        outcome, _ = attempt(Supervisor(start()))
        assert len(runs) == 5
        values = [run.scores[0].value for run in runs]
        best = int(np.argmax(values[:size]))
        for name, value in runs[best].outcome.parameters.items():
            assert torch.equal(outcome.parameters[name], value)


def test_what_leaves_tells_no_run_but_the_best(no_wait: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each size: the same messages but for the values of the best run, and the same number of looks."""
    told, looks = [], []
    for size in range(1, 6):
        counted(monkeypatch, size)
        supervisor = Supervisor(start())
        _, link = attempt(supervisor)
        told.append([_form(each) for each in supervisor.seen])
        looks.append(len(link.steps))
    assert all(each == told[0] for each in told)
    assert set(looks) == {5 * 10}  # runs times steps
    kinds = [kind for kind, *_ in told[0]]
    assert kinds == ["digest", "block", "digest", "metric", "metric"]
    assert told[0][1][1:] == (1, 10)


def _form(message: Any) -> tuple[Any, ...]:
    if isinstance(message, Digest):
        return message.kind, message.step
    if isinstance(message, MetricValue):
        return message.kind, message.step, message.name, message.released_by
    return message.kind, message.first_step, message.last_step


def test_a_retry_draws_the_same_and_reaches_the_same_model(no_wait: None) -> None:
    one, other = Supervisor(start()), Supervisor(start(), die_at=3)
    first, _ = attempt(one)
    with pytest.raises(ConnectionError):
        attempt(other)
    other.die_at = None
    again, _ = attempt(other)
    assert one.digests() == other.digests()
    assert one.metrics == other.metrics
    assert all(torch.equal(first.parameters[name], value) for name, value in again.parameters.items())
    third, _ = attempt(other)  # after its digest: the same, and the score is not released twice
    assert all(torch.equal(first.parameters[name], value) for name, value in third.parameters.items())
    assert sum(isinstance(each, MetricValue) and each.name == "accuracy" for each in other.seen) == 1


def test_a_retry_that_reaches_another_model_ends(no_wait: None) -> None:
    supervisor = Supervisor(start())
    attempt(supervisor)
    (digest,) = [row for row in supervisor.segments[0]["recorded"] if row["last_step"] == 10]
    digest["digest"] = key("another")
    with pytest.raises(PrivacyError, match="covers no second release"):
        attempt(supervisor)


def test_fresh_keys_after_a_start_release_nothing(no_wait: None) -> None:
    supervisor = Supervisor(start())
    attempt(supervisor)
    supervisor.segments = [{"from_step": 0, **keys_of("s1"), "recorded": []}]
    with pytest.raises(PrivacyError, match="covers no second release"):
        attempt(supervisor)


def test_a_run_s_release_is_checked_as_ever(no_wait: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = start()
    wrong["mechanism"]["releases"][0]["noise_mu"] = 0.4
    with pytest.raises(PrivacyError, match="differ"):
        attempt(Supervisor(wrong))


def test_the_result_leaves_at_the_public_length_doubled_until_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = JobSpec.model_validate(start()["spec"]).selection
    assert asked is not None
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    for took, wanted in ((0.2, 1.0), (0.99, 1.0), (1.0, 1.0), (1.1, 2.0), (2.1, 4.0), (3.1, 4.0), (99.0, 128.0)):
        clock[0] = 100.0 + took
        selecting._wait(100.0, asked, Link(Supervisor(start())))
        assert clock[0] == pytest.approx(100.0 + wanted, abs=1e-6)


def run_of(value: float, number: int) -> Run:
    outcome = Outcome(10, {"w": torch.tensor([float(number)])}, ())
    return Run(0.1 * number, outcome, (Score("accuracy", value, 0.0),))


SCORES = (0.2, math.nan, 0.7, 0.7, 0.9)


@pytest.mark.parametrize(("size", "wanted"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5)])
def test_the_best_of_so_many(size: int, wanted: int) -> None:
    asked = JobSpec.model_validate(start()["spec"]).evaluation
    assert asked is not None
    best = Best(size)
    for number, value in enumerate(SCORES, 1):
        run = run_of(value, number)
        best.offer(run, run.value(asked))
    assert best.run.outcome.parameters["w"].item() == wanted
    assert best.run.rate == pytest.approx(0.1 * wanted)


def test_a_smaller_loss_is_better_and_no_number_is_worst() -> None:
    asked = JobSpec.model_validate(start(evaluation={"noise_mu": 0.5, "metrics": ["loss"]})["spec"]).evaluation
    assert asked is not None
    one, other = (Run(0.1, Outcome(1, {}, ()), (Score("loss", value, 0.0),)) for value in (0.3, 0.5))
    no_number = Run(0.1, Outcome(1, {}, ()), (Score("loss", math.nan, 0.0),))
    assert one.value(asked) > other.value(asked) > no_number.value(asked)
    with pytest.raises(PrivacyError, match="no score of the name"):  # or the first run would be delivered in silence
        Run(0.1, Outcome(1, {}, ()), ()).value(asked)


@pytest.mark.parametrize("leak", ["early end", "a look for each run that counts"])
def test_a_planted_leak_of_the_size_is_seen(no_wait: None, monkeypatch: pytest.MonkeyPatch, leak: str) -> None:
    """The comparison of `test_what_leaves_tells_no_run_but_the_best` bites."""
    real, looks = Best.offer, []

    for size in (1, 4):
        counted(monkeypatch, size)
        supervisor = Supervisor(start())
        link = Link(supervisor)

        def offer(best: Best, run: Run, value: torch.Tensor, size: int = size, link: Link = link) -> None:
            real(best, run, value)
            if len(best._runs) > size:
                return
            link.loading()
            if leak == "early end" and len(best._runs) == size:
                raise StopIteration

        monkeypatch.setattr(Best, "offer", offer)
        message = supervisor.message()
        exit_ = Telemetry(link, message.mechanism, data_public=False, holdout_public=False)
        data = TrainingData(records(*dense(200, 4)), records(*dense(60, 4, seed=1)), False)
        with suppress(StopIteration):
            selected(message, plan_of(supervisor.start), data, link, exit_)
        looks.append(len(link.steps))
    assert looks[0] != looks[1]


def sizes(weights: tuple[int, ...], count: int) -> np.ndarray:
    drawn = [hidden_size(Keys.model_validate(keys_of(f"draw {number}")), weights) for number in range(count)]
    return np.bincount(drawn, minlength=len(weights) + 1)[1:]


def test_the_size_has_the_priced_law() -> None:
    """χ² of 4,000 draws against the weights; and against wrong parameters, which it refuses."""
    asked = JobSpec.model_validate(start()["spec"]).selection
    assert asked is not None
    weights = asked.weights
    found = sizes(weights, 4000)
    right = np.array(weights) / sum(weights) * 4000
    assert scipy.stats.chisquare(found, right).pvalue > 1e-3
    planted = asked.model_copy(update={"distribution": asked.distribution.model_copy(update={"gamma": 0.35})})
    wrong = np.array(planted.weights, dtype=float)
    assert scipy.stats.chisquare(found, wrong / wrong.sum() * 4000).pvalue < 1e-3


@pytest.mark.parametrize("fault", [None, "one more counts", "all count"])
def test_the_best_has_the_law_that_is_priced(fault: str | None) -> None:
    """Of runs whose score is N(0, 1): P(best ≤ x) = f(Φ(x)), the law of tests/privacy/test_best_of.py, by the draw and
    the choice that attempts make; and what is planted is seen."""
    asked = JobSpec.model_validate(start()["spec"])
    assert asked.selection is not None and asked.evaluation is not None
    weights, values, draws = asked.selection.weights, [], np.random.default_rng(3)
    for number in range(3000):
        counted = hidden_size(Keys.model_validate(keys_of(f"law {number}")), weights)
        best = Best({"one more counts": counted + 1, "all count": len(weights)}.get(fault or "", counted))
        scores = draws.normal(size=len(weights)).tolist()
        for at, score in enumerate(scores, 1):
            run = run_of(score, at)
            best.offer(run, run.value(asked.evaluation))
        values.append(scores[int(best.run.outcome.parameters["w"].item()) - 1])
    shares = np.array(weights) / sum(weights)

    def law(x: Any) -> Any:
        return sum(share * scipy.stats.norm.cdf(x) ** k for k, share in enumerate(shares, 1))

    assert (scipy.stats.kstest(values, law).pvalue > 1e-3) == (fault is None)


def test_rates_are_uniform_in_their_logarithm_and_on_the_grid() -> None:
    bounds, keys = (0.01, 100.0), [keys_of_run(KEYS, number) for number in range(1, 2001)]
    logs = np.log10([hidden_rate(each, Space(learning_rate=bounds)) for each in keys])
    assert scipy.stats.kstest((logs + 2.0) / 4.0, "uniform").pvalue > 1e-3
    points = [hidden_rate(each, Space(learning_rate=bounds, points=GridPoints(learning_rate=5))) for each in keys]
    values, counts = np.unique(points, return_counts=True)
    assert values == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_runs_share_no_key_with_each_other_or_with_their_job() -> None:
    every = [KEYS, *(keys_of_run(KEYS, number) for number in range(1, 6))]
    values = [getattr(each, name) for each in every for name in Keys.model_fields]
    assert len(set(values)) == len(values)
    assert hidden_size(KEYS, (3, 2, 1)) == hidden_size(KEYS, (3, 2, 1))
    with pytest.raises(PrivacyError):
        hidden_size(KEYS, (0, 0))


def test_runs_that_overflow_end_no_attempt(no_wait: None) -> None:
    """A loser's overflow would tell of it by a failure. With every run lost, the first one leaves, with a warning."""
    hpo = HPO | {"space": {"learning_rate": [1e11, 1e12]}}
    supervisor = Supervisor(start(hpo=hpo, optimizer={"kind": "dp_sgd", "learning_rate": 1e11, "momentum": 0.9}))
    outcome, _ = attempt(supervisor)
    assert outcome.steps == 10 and {name for name, _ in supervisor.metrics} == {"accuracy", "learning_rate"}


def test_a_whole_attempt_in_its_sandbox(tmp_path: Path) -> None:
    made = start(length={"steps": 3}, hpo=HPO | {"most_runs": 2})
    asked = JobSpec.model_validate(made["spec"]).selection
    assert asked is not None
    parts = {
        "train": stored_part(tmp_path / "t", *dense(200, 4)),
        "holdout": stored_part(tmp_path / "h", *dense(60, 4)),
    }
    out = tmp_path / "out"
    out.mkdir()
    whole = start_of(made["spec"], SHAPE, parts=parts, output_dir=out)
    whole["mechanism"]["selection"] = made["mechanism"]["selection"]
    supervisor = Supervisor(whole)
    ended = run_child(supervisor)
    assert isinstance(ended.last, Finished) and ended.printed == b""
    assert {name for name, _ in supervisor.metrics} == {"accuracy", "learning_rate"}
    least, most = HPO["space"]["learning_rate"]
    assert least <= supervisor.metrics["learning_rate", 3]["value"] <= most
    assert {each.name for each in ended.last.artifacts} >= {"model.safetensors"}
