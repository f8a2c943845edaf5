"""Scores: exact on public data; noisy sums with the declared sensitivity on private data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.errors import PrivacyError
from app.privacy.mechanism import NoisySum
from tests.worker.support import dense, records
from worker.metrics.scores import noisy_score, public_scores, public_training_loss
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.noise.generator import GaussianGenerator

KEY = bytes(range(32))


def fitted(model: Linear) -> Parameters:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in model.init().items()
    }


def declared(what: str = "accuracy", **changes: float) -> NoisySum:
    return NoisySum.model_validate({"what": what, "account": "holdout", "noise_mu": 0.5, "records": 100} | changes)


@pytest.mark.parametrize("sparse", [False, True])
def test_exact_scores_of_classes(sparse: bool) -> None:
    x, y = dense(50, 6, 3)
    model = Linear(6, 3, bias=True)
    parameters = fitted(model)
    accuracy, loss = public_scores(model, parameters, records(x, y, sparse=sparse))
    logits = torch.from_numpy(x).double() @ parameters["weight"].T + parameters["bias"]
    assert accuracy.value == pytest.approx(float((logits.argmax(1).numpy() == y).mean()))
    assert loss.value == pytest.approx(float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))))
    assert accuracy.std == loss.std == 0.0
    training = public_training_loss(model, parameters, records(x, y, sparse=sparse).split(7))
    assert training.name == "training_loss" and training.value == pytest.approx(loss.value)


def test_exact_scores_of_a_regression() -> None:
    x, y = dense(50, 6, 1)
    model = Linear(6, 1)
    parameters = fitted(model)
    (loss,) = public_scores(model, parameters, records(x, y))
    errors = (x.astype(float) @ parameters["weight"].numpy()[0] - y) ** 2
    assert (loss.name, loss.value) == ("loss", pytest.approx(errors.mean()))
    assert public_training_loss(model, parameters, records(x, y).split(None)).value == pytest.approx(errors.mean() / 2)


def test_no_public_records_have_no_score() -> None:
    x, y = dense(5, 6, 3)
    assert public_scores(Linear(6, 3), Linear(6, 3).init(), records(x[:0], y[:0])) == []


def test_a_noisy_count_is_the_count_plus_keyed_noise_over_the_public_number() -> None:
    x, y = dense(80, 6, 3)
    model = Linear(6, 3)
    parameters = fitted(model)
    correct = int(model.correct(model.forward(parameters, records(x, y)), torch.from_numpy(y)).sum())
    score = noisy_score(declared(), KEY, 10, 0, model, parameters, records(x, y))
    z = float(GaussianGenerator(KEY).noise(10, 0, 1)[0])
    assert score.value == pytest.approx((correct + 2.0 * z) / 100)
    assert (score.name, score.std) == ("accuracy", 2.0 / 100)
    assert noisy_score(declared(), KEY, 10, 0, model, parameters, records(x, y)) == score
    assert noisy_score(declared(), KEY, 11, 0, model, parameters, records(x, y)) != score


def test_the_noise_of_counts_has_the_declared_scale() -> None:
    x, y = dense(500, 6, 3)
    model = Linear(6, 3)
    values = [
        noisy_score(declared(records=1000), KEY, step, 0, model, model.init(), records(x, y)).value * 1000
        for step in range(400)
    ]
    count = float((y == 0).sum())  # zeros everywhere: the first class wins
    z = (np.array(values) - count) / 2.0
    assert abs(z.mean()) < 5 / 400**0.5 and abs((z**2).mean() - 1) < 5 * (2 / 400) ** 0.5


@pytest.mark.parametrize(("n", "value"), [(0, 0.0), (500, 1.0)])
def test_a_noisy_count_is_clamped_to_what_is_possible(n: int, value: float) -> None:
    """With fewer or more private records than declared, too: the number of records is not shown."""
    x, y = dense(500, 6, 3)
    model = Linear(6, 3)
    everything_right = np.zeros_like(y)
    got = [
        noisy_score(declared(), KEY, step, 0, model, model.init(), records(x[:n], everything_right[:n])).value
        for step in range(20)
    ]
    assert value in got and all(0.0 <= each <= 1.0 for each in got)


def test_a_noisy_loss_clips_each_squared_error() -> None:
    x, y = dense(80, 6, 1)
    y[3], y[4] = 1e200, np.nan
    model = Linear(6, 1)
    parameters = fitted(model)
    bound = 0.5
    with np.errstate(over="ignore"):
        errors = (x.astype(float) @ parameters["weight"].numpy()[0] - y) ** 2
    total = np.minimum(np.nan_to_num(errors, nan=np.inf), bound).sum()
    score = noisy_score(declared("loss", sensitivity=bound), KEY, 3, 0, model, parameters, records(x, y))
    z = float(GaussianGenerator(KEY).noise(3, 0, 1)[0])
    assert score.value == pytest.approx((total + bound / 0.5 * z) / 100)
    assert score.std == pytest.approx(bound / 0.5 / 100)


def test_parameters_that_are_not_finite_count_as_wrong() -> None:
    x, y = dense(30, 6, 1)
    classes = np.zeros(30, dtype=np.int64)
    for model, labels, what, expected in [(Linear(6, 3), classes, "accuracy", 0.0), (Linear(6, 1), y, "loss", 30.0)]:
        broken = {name: value * torch.nan for name, value in fitted(model).items()}
        score = noisy_score(declared(what), KEY, 1, 0, model, broken, records(x, labels))
        z = float(GaussianGenerator(KEY).noise(1, 0, 1)[0])
        assert score.value == pytest.approx(max(0.0, expected + 2 * z) / 100)


@pytest.mark.parametrize(
    ("model", "release"),
    [
        (Linear(6, 3), declared(sensitivity=0.5)),
        (Linear(6, 3), declared("loss")),
        (Linear(6, 1), declared("accuracy")),
    ],
)
def test_a_sensitivity_that_is_not_the_measurement_s_is_refused(model: Linear, release: NoisySum) -> None:
    x, y = dense(10, 6, model.outputs)
    with pytest.raises(PrivacyError):
        noisy_score(release, KEY, 1, 0, model, model.init(), records(x, y))
