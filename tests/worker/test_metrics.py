"""Scores: exact on public data; noisy sums with the declared sensitivity on private data."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from core.contracts.job_spec import MlpModel
from core.contracts.metrics import AUC_PARTS, CELLS
from core.errors import PrivacyError
from core.privacy.releases import SCORE, NoisyCount, NoisySum
from core.privacy.score_histogram import BINS, tree_sums
from core.privacy.two_class_answers import answer_logits
from tests.worker.support import dense, records
from worker.metrics.score_cells import cell_of
from worker.metrics.scores import (
    Score,
    _private_sums,
    frequency_groups,
    noisy_score,
    public_scores,
    public_training_loss,
)
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.models.networks import Network
from worker.noise.generator import GaussianGenerator

KEY = bytes(range(32))


def fitted(model: Linear) -> Parameters:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in model.init().items()
    }


def declared(what: str = "accuracy", **changes: float) -> NoisyCount | NoisySum:
    return SCORE.validate_python({"what": what, "account": "holdout", "noise_mu": 0.5, "records": 100} | changes)


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
    training = public_training_loss(model, parameters, records(x, y, sparse=sparse))
    assert training.name == "training_loss" and training.value == pytest.approx(loss.value)


def test_exact_scores_of_a_regression() -> None:
    x, y = dense(50, 6, 1)
    model = Linear(6, 1)
    parameters = fitted(model)
    (loss,) = public_scores(model, parameters, records(x, y))
    errors = (x.astype(float) @ parameters["weight"].numpy()[0] - y) ** 2
    assert (loss.name, loss.value) == ("loss", pytest.approx(errors.mean()))
    assert public_training_loss(model, parameters, records(x, y)).value == pytest.approx(errors.mean() / 2)


def test_no_public_records_have_no_score() -> None:
    x, y = dense(5, 6, 3)
    assert public_scores(Linear(6, 3), Linear(6, 3).init(), records(x[:0], y[:0])) == []


def test_a_noisy_score_is_the_ratio_of_two_sums_with_keyed_noise() -> None:
    x, y = dense(80, 6, 3)
    model = Linear(6, 3)
    parameters = fitted(model)
    correct = int(model.correct(model.forward(parameters, records(x, y)), torch.from_numpy(y)).sum())
    score = noisy_score(declared(), KEY, 10, 0, model, parameters, records(x, y))
    z = GaussianGenerator(KEY).noise(10, 0, 2).numpy()
    right, wrong = correct + 2.0 * z[0], 80 - correct + 2.0 * z[1]
    a = right / (right + wrong)
    assert score.value == pytest.approx(a, rel=1e-3)
    assert score.std == pytest.approx(2.0 * (a**2 + (1 - a) ** 2) ** 0.5 / (right + wrong), rel=1e-3)
    assert (score.name, score.noise_std) == ("accuracy", 2.0)
    assert noisy_score(declared(), KEY, 10, 0, model, parameters, records(x, y)) == score
    assert noisy_score(declared(), KEY, 11, 0, model, parameters, records(x, y)) != score


def test_a_score_has_no_bias_from_the_declared_count() -> None:
    """The public count says 1000, the hash held out 500: the accuracy is that of the 500, within its printed noise."""
    x, y = dense(500, 6, 3)
    model = Linear(6, 3)
    scores = [
        noisy_score(declared(records=1000), KEY, step, 0, model, model.init(), records(x, y)) for step in range(150)
    ]
    truth = float((y == 0).mean())  # zeros everywhere: the first class wins
    z = np.array([(score.value - truth) / score.std for score in scores])
    assert abs(z.mean()) < 4 / 150**0.5 and abs((z**2).mean() - 1) < 4 * (2 / 150) ** 0.5 + 0.02


@pytest.mark.parametrize("removed", [0, 37, 79])
def test_one_record_moves_both_sums_together_by_at_most_the_sensitivity(removed: int) -> None:
    for outputs, what, bound in ((3, "accuracy", 1.0), (1, "loss", 0.7)):
        x, y = dense(80, 6, outputs)
        model = Linear(6, outputs)
        parameters = fitted(model)
        release = declared(what, sensitivity=bound)
        kept = np.arange(80) != removed
        whole = _private_sums(release, model, parameters, records(x, y))
        fewer = _private_sums(release, model, parameters, records(x[kept], y[kept]))
        assert np.hypot(whole[0] - fewer[0], whole[1] - fewer[1]) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("n", [0, 1, 500])
def test_a_score_is_clamped_to_what_is_possible(n: int) -> None:
    x, y = dense(500, 6, 3)
    model = Linear(6, 3)
    everything_right = np.zeros_like(y)
    got = [
        noisy_score(declared(), KEY, step, 0, model, model.init(), records(x[:n], everything_right[:n]))
        for step in range(20)
    ]
    assert all(0.0 <= each.value <= 1.0 and np.isfinite(each.std) and each.std > 0 for each in got)


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
    z = GaussianGenerator(KEY).noise(3, 0, 2).numpy()
    loss, rest = total + z[0], 80 * bound - total + z[1]
    assert score.value == pytest.approx(min(max(loss / (loss + rest), 0), 1) * bound, rel=1e-3)
    assert score.noise_std == pytest.approx(bound / 0.5)


def test_parameters_that_are_not_finite_count_as_wrong() -> None:
    x, y = dense(30, 6, 1)
    classes = np.zeros(30, dtype=np.int64)
    for model, labels, what, expected in [(Linear(6, 3), classes, "accuracy", 0.0), (Linear(6, 1), y, "loss", 30.0)]:
        broken = {name: value * torch.nan for name, value in fitted(model).items()}
        score = noisy_score(declared(what), KEY, 1, 0, model, broken, records(x, labels))
        z = GaussianGenerator(KEY).noise(1, 0, 2).numpy()
        right, wrong = expected + 2 * z[0], 30 - expected + 2 * z[1]
        assert score.value == pytest.approx(min(max(right / (right + wrong), 0.0), 1.0), rel=1e-3)


@pytest.mark.parametrize(
    ("model", "release"),
    [
        (Linear(6, 3), declared(sensitivity=0.5)),
        (Linear(6, 1), declared("accuracy")),
        (Linear(6, 3), declared("auc")),
    ],
)
def test_a_sensitivity_that_is_not_the_measurement_s_is_refused(model: Linear, release: NoisyCount | NoisySum) -> None:
    x, y = dense(10, 6, model.outputs)
    with pytest.raises(PrivacyError):
        noisy_score(release, KEY, 1, 0, model, model.init(), records(x, y))


# --- The histogram of scores by class ---


def test_scores_of_two_classes_of_public_data() -> None:
    x, y = dense(4000, 6, 2)
    model = Linear(6, 2)
    parameters = fitted(model)
    found = {each.name: each for each in public_scores(model, parameters, records(x, y))}
    scores = x.astype(np.float64) @ (parameters["weight"][1] - parameters["weight"][0]).numpy()
    assert set(found) == {"accuracy", "loss", "auc", *AUC_PARTS} and all(each.std == 0.0 for each in found.values())
    assert found["auc"].value == pytest.approx(roc_auc_score(y, scores), abs=3e-3)
    assert found["accuracy"].value == pytest.approx(((scores > 0.0) == y).mean())
    assert found["positive_share"].value == pytest.approx(y.mean())
    assert _cells(found["auc"]).sum() == 4000.0


@pytest.mark.parametrize("removed", range(0, 80, 7))
def test_one_record_is_in_one_cell_of_class_and_score(removed: int) -> None:
    x, y = dense(80, 6, 2)
    model = Linear(6, 2)
    kept = np.arange(80) != removed
    whole, fewer = (
        np.array(_private_sums(declared("auc"), model, fitted(model), records(x[at], y[at])))
        for at in (slice(None), kept)
    )
    moved = (whole - fewer).reshape(2, BINS)
    assert 0.97 < np.linalg.norm(moved) <= 1.0
    assert not moved[1 - y[removed]].any()
    assert np.array_equal(np.abs(moved[y[removed]]), np.abs(tree_sums(np.eye(BINS))[_bin(model, x, removed)]))


def _bin(model: Linear, x: npt.NDArray[np.float32], place: int) -> int:
    one = records(x[place : place + 1], np.zeros(1, dtype=np.int64))
    return int(cell_of(model.forward(fitted(model), one), one.labels))


def test_outputs_that_are_not_finite_are_wrong_with_certainty() -> None:
    nan, inf = math.nan, math.inf
    outputs = torch.tensor([[0.0, nan, 1.0, 0.0, inf, 0.0], [0.0, 1.0, nan, inf, 0.0, 1e300]], dtype=torch.float64)
    labels = torch.tensor([1, 0, 1, 1, 0, 1])
    middle = BINS + BINS // 2 - 1  # a tie is the first class's, as in `correct`
    assert cell_of(outputs, labels).tolist() == [middle, BINS - 1, BINS, BINS, BINS - 1, CELLS - 1]


def test_scores_are_of_the_answers_and_the_order_of_the_outputs_stays() -> None:
    x, y = dense(400, 6, 2)
    plain = Linear(6, 2)
    undone, parameters, batch = replace(plain, clip_ratios=(5.0, 8.0)), fitted(plain), records(x, y)
    logits = answer_logits(np.diff(plain.forward(parameters, batch).numpy(), axis=0)[0], undone.clip_ratios)
    p = 1.0 / (1.0 + np.exp(-logits))
    before, after = ({each.name: each for each in public_scores(of, parameters, batch)} for of in (plain, undone))
    assert after["loss"].value == pytest.approx(log_loss(y, p)) and after["loss"].value != before["loss"].value
    assert after["mean_prediction"].value == pytest.approx(p.mean(), abs=2e-3)
    assert before["mean_prediction"].value != pytest.approx(p.mean(), abs=2e-3)
    for name in ("auc", "accuracy", "recall"):
        assert after[name].value == before[name].value
    for score in (after["auc"], noisy_score(declared("auc"), KEY, 0, 0, undone, parameters, batch)):
        assert score.histogram is not None and score.histogram.clip_ratios == (5.0, 8.0)


def test_the_histogram_has_the_noise_that_was_charged() -> None:
    x, y = dense(500, 6, 2)
    model = Linear(6, 2)
    parameters, batch = fitted(model), records(x, y)
    exact = np.array(_private_sums(declared("auc"), model, parameters, batch))
    runs = [noisy_score(declared("auc"), KEY, step, 0, model, parameters, batch) for step in range(12)]
    errors = np.array([tree_sums(_cells(run)).flatten() - exact for run in runs]).flatten()
    assert stats.kstest(errors / 2.0, "norm").pvalue > 1e-3  # σ = 1/μ = 2
    assert all(stats.kstest(errors / scale, "norm").pvalue < 1e-3 for scale in (1.8, 2.2))
    assert runs[0] != runs[1] and runs[0] == noisy_score(declared("auc"), KEY, 0, 0, model, parameters, batch)
    for run in runs:
        assert (run.name, run.noise_std) == ("auc", 2.0) and {each.name for each in run.parts} == set(AUC_PARTS)
        assert abs(run.value - roc_auc_score(y, _scores(parameters, x))) < 4 * run.std


def _cells(score: Score) -> npt.NDArray[np.float64]:
    assert score.histogram is not None
    return np.reshape(score.histogram.cells, (2, BINS))


def _scores(parameters: Parameters, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    difference: npt.NDArray[np.float64] = (parameters["weight"][1] - parameters["weight"][0]).numpy()
    return x.astype(np.float64) @ difference


# --- Groups of classes ---

GROUPS = {"rare": (2, 4), "common": (0,)}


def test_scores_of_groups_of_public_data_are_exact() -> None:
    x, y = dense(300, 6, 5)
    model = Linear(6, 5)
    parameters = fitted(model)
    found = {each.name: each for each in public_scores(model, parameters, records(x, y), GROUPS | {"nobody": (7,)})}
    logits = x.astype(np.float64) @ parameters["weight"].numpy().T
    right = logits.argmax(axis=1) == y
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(300), y]
    assert set(found) == {"accuracy", "loss", "accuracy:rare", "loss:rare", "accuracy:common", "loss:common"}
    for name, places in GROUPS.items():
        inside = np.isin(y, places)
        assert found[f"accuracy:{name}"].value == pytest.approx(right[inside].mean(), rel=1e-12)
        assert found[f"loss:{name}"].value == pytest.approx(losses[inside].mean(), rel=1e-9)
        assert found[f"loss:{name}"].std == 0.0


def test_groups_by_frequency_are_powers_of_two() -> None:
    labels = torch.tensor([0] * 1 + [1] * 2 + [2] * 3 + [3] * 4 + [5] * 8 + [6] * 15)
    wanted = {"1-1": (0,), "2-3": (1, 2), "4-7": (3,), "8-15": (5, 6)}
    assert frequency_groups(labels, 8) == wanted  # classes without records are in none


@pytest.mark.parametrize("removed", range(0, 80, 7))
def test_one_record_is_in_one_cell_of_the_histogram(removed: int) -> None:
    x, y = dense(80, 6, 5)
    model = Linear(6, 5)
    release = declared("accuracy", groups=GROUPS)
    kept = np.arange(80) != removed
    whole, fewer = (
        np.array(_private_sums(release, model, fitted(model), records(x[at], y[at]))) for at in (slice(None), kept)
    )
    assert whole.shape == (6,) and whole.sum() == 80.0
    assert np.abs(whole - fewer).sum() == 1.0


def test_noisy_scores_of_groups_are_right_on_average_and_say_their_noise() -> None:
    x, y = dense(1000, 6, 5)
    model = Linear(6, 5)
    parameters, batch = fitted(model), records(x, y)
    exact = {each.name: each.value for each in public_scores(model, parameters, batch, GROUPS)}
    runs = [noisy_score(declared(groups=GROUPS), KEY, step, 0, model, parameters, batch) for step in range(200)]
    for name in ("accuracy", "accuracy:rare", "accuracy:common"):
        scores = [each for run in runs for each in (run, *run.parts) if each.name == name]
        values, said = np.array([each.value for each in scores]), np.mean([each.std for each in scores])
        assert len(scores) == 200 and abs(values.mean() - exact[name]) < 5 * said / math.sqrt(200) + 1e-3
        assert 0.8 < values.std() / said < 1.25
    assert runs[0].noise_std == declared(groups=GROUPS).noise_std


@pytest.mark.parametrize("removed", range(0, 80, 7))
def test_a_loss_of_classes_is_clipped_and_in_one_cell(removed: int) -> None:
    x, y = dense(80, 6, 5)
    model = Linear(6, 5)
    release = declared("loss", sensitivity=1.2, groups=GROUPS)
    kept = np.arange(80) != removed
    whole, fewer = (
        np.array(_private_sums(release, model, fitted(model), records(x[at], y[at]))) for at in (slice(None), kept)
    )
    assert whole.sum() == pytest.approx(80 * 1.2)
    assert np.count_nonzero(np.abs(whole - fewer) > 1e-9) <= 2  # a sum and what it lacks, of one group
    assert np.linalg.norm(whole - fewer) <= 1.2 * (1 + 1e-9) and np.abs(whole - fewer).sum() == pytest.approx(1.2)


def test_noisy_losses_of_groups_are_right_on_average_and_say_their_noise() -> None:
    x, y = dense(1000, 6, 5)
    model = Linear(6, 5)
    parameters, batch = fitted(model), records(x, y)
    exact = {each.name: each.value for each in public_scores(model, parameters, batch, GROUPS)}
    release = declared("loss", sensitivity=50.0, noise_mu=2.0, groups=GROUPS)  # above all losses: nothing is clipped
    runs = [noisy_score(release, KEY, step, 0, model, parameters, batch) for step in range(200)]
    for name in ("loss", "loss:rare", "loss:common"):
        scores = [each for run in runs for each in (run, *run.parts) if each.name == name]
        values, said = np.array([each.value for each in scores]), np.mean([each.std for each in scores])
        assert len(scores) == 200 and abs(values.mean() - exact[name]) < 5 * said / math.sqrt(200) + 1e-3
        assert 0.8 < values.std() / said < 1.25


def test_groups_that_overlap_are_no_histogram() -> None:
    with pytest.raises(ValueError, match="overlap"):
        declared(groups={"one": (0, 1), "two": (1,)})


def test_who_is_right_does_not_depend_on_who_else_is_scored() -> None:
    """In single precision a product's last digits depend on how large its batch is: here two classes' logits are sums
    of the same terms, and which one was larger depended on it."""
    network = Network(8, 2, MlpModel(hidden=[96], activation="tanh"), dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = torch.randn(48, 8, generator=generator), torch.randn(48, generator=generator)
    first, last = (name for name, value in network.init(b"k" * 32).items() if value.dim() == 2)
    parameters = {name: torch.zeros_like(value) for name, value in network.init(b"k" * 32).items()}
    parameters[first] = torch.cat([inputs, inputs.flip(0)]).double()
    parameters[last][0, :48], parameters[last][1, 48:] = outputs.double(), outputs.flip(0).double()
    x = torch.randn(64, 8, generator=generator).numpy()
    labels = np.zeros(64, dtype=np.int64)
    alone = [bool(_right(network, parameters, x[at : at + 1], labels[:1])) for at in range(64)]
    for count in (2, 3, 5, 17, 64):
        assert _right(network, parameters, x[:count], labels[:count]).tolist() == alone[:count]


def _right(network: Network, parameters: Parameters, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> Tensor:
    part = records(x, y)
    return network.correct(network.forward(parameters, part), part.labels)
