"""What follows from a histogram of scores by class: exact without noise, and within its stated std with it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from core.contracts.metrics import AUC_PARTS
from core.privacy.score_histogram import (
    BINS,
    EDGES,
    Floats,
    ScoreHistogram,
    Threshold,
    cells_of,
    tree_sums,
)


def drawn(records: int, share: float, shift: float = -2.0, gap: float = 1.5) -> tuple[Floats, Floats]:
    """Scores (logits) and labels of a fair model."""
    generator = np.random.default_rng(0)
    labels = (generator.random(records) < share).astype(np.float64)
    return shift + gap * labels + generator.standard_normal(records), labels


def counted(scores: Floats, labels: Floats) -> Floats:
    bins = np.searchsorted(EDGES, scores)
    return np.array([np.bincount(bins[labels == each], minlength=BINS) for each in (0, 1)], dtype=np.float64)


def test_edges_are_public_and_change_the_class_at_the_middle() -> None:
    assert len(EDGES) == BINS - 1 and EDGES[BINS // 2 - 1] == 0.0
    assert np.ptp(np.diff(EDGES)) < 1e-12 and (EDGES[0], EDGES[-1]) == (-8.0, 8.0)


def test_a_record_moves_the_sums_by_at_most_one_wherever_it_is() -> None:
    moved = tree_sums(np.eye(BINS))
    norms = np.sqrt((moved**2).sum(axis=1))
    assert norms.max() <= 1.0 and norms.min() > 0.97  # and little of what is paid for is left unused
    assert np.array_equal(moved * 64.0, np.round(moved * 64.0))  # dyadic: weighted counts are exact
    counts = np.random.default_rng(0).integers(0, 10**6, (2, BINS))
    assert np.array_equal(tree_sums(counts) * 64.0, np.round(tree_sums(counts) * 64.0))
    assert np.allclose(cells_of(tree_sums(counts)), counts, rtol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_without_noise_they_are_those_of_scikit_learn(share: float) -> None:
    scores, labels = drawn(20_000, share)
    found = {name: each.value for name, each in ScoreHistogram(counted(scores, labels), 0.0).scores().items()}
    predicted, probabilities = scores > 0.0, 1.0 / (1.0 + np.exp(-scores))
    # Within a bin the order is lost: far below 0.3 points.
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-3)
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(labels, scores), abs=5e-3)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted), abs=1e-12)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted), abs=1e-12)
    assert found["recall"] == pytest.approx(metrics.recall_score(labels, predicted), abs=1e-12)
    assert found["precision"] == pytest.approx(metrics.precision_score(labels, predicted), abs=1e-12)
    assert found["positive_share"] == pytest.approx(labels.mean(), abs=1e-12)
    assert found["mean_prediction"] == pytest.approx(probabilities.mean(), abs=1e-3)
    assert set(found) == {"auc", *AUC_PARTS}


@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("noise_std", [2.0, 10.0])
def test_noisy_scores_are_off_by_as_much_as_they_say(share: float, noise_std: float) -> None:
    cells, generator = counted(*drawn(5000, share)), np.random.default_rng(1)
    exact = {name: each.value for name, each in ScoreHistogram(cells, 0.0).scores().items()}
    runs = [
        ScoreHistogram(cells_of(tree_sums(cells) + noise_std * generator.standard_normal(cells.shape)), noise_std)
        for _ in range(120)
    ]
    for name, truth in exact.items():
        found = [each.estimate(each.statistics[name]) for each in runs]
        errors = np.array([each.value - truth for each in found])
        stated = np.sqrt(np.mean([each.std**2 for each in found]))
        assert 0.75 < np.sqrt(np.mean(errors**2)) / stated < 1.35, name


def test_accuracy_has_the_noise_that_a_quote_plans() -> None:
    """Twice the noise on one count; cells with noise of their own would give it √256 times."""
    cells, generator = counted(*drawn(5000, 0.5)), np.random.default_rng(1)
    noisy = cells_of(tree_sums(cells) + generator.standard_normal((6000, *cells.shape)))
    right = noisy[:, 0, : BINS // 2].sum(axis=-1) + noisy[:, 1, BINS // 2 :].sum(axis=-1)
    errors = right - cells[0, : BINS // 2].sum() - cells[1, BINS // 2 :].sum()
    assert stats.kstest(errors / 2.0, "norm").pvalue > 1e-3
    assert stats.kstest(errors / 2.2, "norm").pvalue < 1e-3 and stats.kstest(errors / 1.8, "norm").pvalue < 1e-3


def test_the_same_release_always_says_the_same() -> None:
    cells = counted(*drawn(500, 0.2)) + 3.0 * np.random.default_rng(1).standard_normal((2, BINS))
    assert ScoreHistogram(cells, 3.0).scores() == ScoreHistogram(cells.flatten().tolist(), 3.0).scores()


@pytest.mark.parametrize("cells", [np.zeros((2, BINS)), -np.ones((2, BINS)), np.eye(2, BINS)])
@pytest.mark.parametrize("noise_std", [0.0, 5.0])
def test_hardly_any_records_give_possible_numbers(cells: Floats, noise_std: float) -> None:
    found = ScoreHistogram(cells, noise_std)
    for each in found.scores().values():
        assert 0.0 <= each.value <= 1.0 and np.isfinite(each.std)
    assert np.isfinite(found.gain().std) and found.thresholds((1.0,))
    for curve in (found.roc(), found.reliability()):
        assert all(np.all((each >= 0.0) & (each <= 1.0)) for each in (curve.x, curve.y, curve.low, curve.high))


def test_curves_are_those_of_scikit_learn_within_their_bands() -> None:
    scores, labels = drawn(5000, 0.3)
    cells = counted(scores, labels)
    false, true, at = metrics.roc_curve(labels, scores, drop_intermediate=False)
    noisy = cells_of(tree_sums(cells) + 2.0 * np.random.default_rng(2).standard_normal(cells.shape))
    exact, curve = ScoreHistogram(cells, 0.0).roc(), ScoreHistogram(noisy, 2.0).roc()
    assert np.interp(0.0, EDGES, exact.y[-2:0:-1]) == pytest.approx(true[np.argmax(at <= 0.0)], abs=1e-3)
    at_edges = [(scores[labels == 1] > edge).mean() for edge in EDGES]
    assert np.allclose(exact.y[-2:0:-1], at_edges) and np.trapezoid(exact.y, exact.x) == pytest.approx(
        metrics.auc(false, true), abs=1e-3
    )
    assert (curve.y[0], curve.y[-1]) == (0.0, pytest.approx(1.0))
    inside = (curve.low - 1e-9 <= exact.y) & (exact.y <= curve.high + 1e-9)
    assert inside.mean() > 0.8 and np.max(curve.high - curve.low) > np.max(exact.high - exact.low) > 0.0
    reliability = ScoreHistogram(cells, 0.0).reliability()
    calibrated = np.abs(reliability.x - reliability.y) <= reliability.high - reliability.low
    assert not calibrated.all()  # drawn with another intercept: not calibrated


def test_a_threshold_costs_least() -> None:
    scores, labels = drawn(5000, 0.2)
    found = ScoreHistogram(counted(scores, labels), 0.0)
    free, even, dear, endless = found.thresholds((0.0, 1.0, 10.0, 1e9))
    probabilities = 1.0 / (1.0 + np.exp(-scores))

    def cost(of: Threshold, probability: float) -> float:
        flagged = probabilities > probability
        return float(of.cost * (labels * ~flagged).sum() + ((1.0 - labels) * flagged).sum())

    for each in (even, dear):
        flagged = probabilities > each.probability
        assert each.recall.value == pytest.approx(flagged[labels == 1].mean())
        assert each.precision.value == pytest.approx(labels[flagged].mean())
        assert each.flagged.value == pytest.approx(flagged.mean())
        assert all(cost(each, each.probability) <= cost(each, 1 / (1 + np.exp(-edge))) for edge in EDGES)
    assert (free.flagged.value, free.probability) == (0.0, 1.0) and endless.recall.value == 1.0
    assert dear.probability < even.probability
