"""Answers that undo clipping: where training stands still they are the true shares, and no order changes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from core.contracts.metrics import ClipRatios
from core.privacy.score_histogram import BINS, EDGES, ScoreHistogram
from core.privacy.two_class_answers import SLOPE, answer_logits, clip_ratios

RATIOS = [(5.0, 5.0), (1.2, 30.0), (40.0, 1.5), (0.5, 3.0), (0.5, 0.7), (1.0, 1.0), (2.0, 2.0), (1e4, 1e4)]


def shown(logits: object) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.asarray(logits)))


def pull(score: float, share: float, ratios: ClipRatios) -> float:
    """The mean clipped gradient along the score, of records of which `share` are of the second class."""
    p, (first, second) = float(shown(score)), ratios
    return (1.0 - share) * min(first * p, 1.0) - share * min(second * (1.0 - p), 1.0)


@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize("share", [0.001, 0.04, 0.3, 0.49, 0.8, 0.99])
def test_where_training_stands_still_the_answer_is_the_share(ratios: ClipRatios, share: float) -> None:
    score = brentq(pull, -30.0, 30.0, args=(share, ratios), xtol=1e-12)
    widest = SLOPE * np.log(max(*ratios, np.e)) * 2.0  # what keeps the order in the flat range moves the logit by less
    assert abs(answer_logits(score, ratios) - np.log(share / (1.0 - share))) <= widest
    if max(ratios) <= 1.0:
        assert shown(answer_logits(score, ratios)) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("ratios", RATIOS)
def test_no_order_changes(ratios: ClipRatios) -> None:
    found = answer_logits(np.linspace(-30.0, 30.0, 60_001), ratios)
    assert np.all(np.diff(found) > 0.0) and np.all(np.isfinite(found))
    assert np.isfinite(answer_logits([-1e4, 1e4], ratios)).all()


def test_equal_ratios_keep_the_class_and_no_clipping_changes_nothing() -> None:
    scores = np.linspace(-9.0, 9.0, 101)
    assert np.array_equal(np.sign(answer_logits(scores, (5.0, 5.0))), np.sign(scores))
    assert np.allclose(answer_logits(scores, (1.0, 1.0)), scores) and np.allclose(answer_logits(scores, None), scores)
    # Weights alone, unclipped, are undone exactly: p/(1 − p) is w_1/w_0 times the odds.
    assert np.allclose(answer_logits(scores, (0.2, 0.8)), scores - np.log(4.0))


def test_the_ratio_is_a_gradient_s_length_in_units_of_c() -> None:
    x, c, weights = np.array([1.0, 0.0, 2.0, 2.0]), 0.7, (0.5, 4.0)
    residual = np.array([1.0, -1.0])  # softmax less one-hot, where the answer is wrong with certainty
    wanted = [weight * np.linalg.norm(np.outer(residual, x)) / c for weight in weights]
    assert clip_ratios(float(np.linalg.norm(x)), c, weights) == pytest.approx(wanted)


def test_a_histogram_s_probabilities_are_the_answers() -> None:
    generator, ratios = np.random.default_rng(0), (5.0, 5.0)
    scores = generator.standard_normal(20_000) - 3.0
    labels = generator.random(20_000) < shown(answer_logits(scores, ratios))
    bins = np.searchsorted(EDGES, scores)
    cells = np.array([np.bincount(bins[labels == each], minlength=BINS) for each in (False, True)])
    plain, undone = ScoreHistogram(cells, 0.0), ScoreHistogram(cells, 0.0, ratios)
    before, after = plain.scores(), undone.scores()
    assert {name: each for name, each in before.items() if name != "mean_prediction"} == {
        name: each for name, each in after.items() if name != "mean_prediction"
    }
    share = after["positive_share"].value
    assert after["mean_prediction"].value == pytest.approx(share, abs=0.01) and share > 2.0 * shown(scores).mean()
    said, raw = undone.reliability(), plain.reliability()
    common = (said.y > 0.01) & (said.high - said.low < 0.2)  # groups of many records
    assert common.sum() >= 4 and np.all((said.low <= said.x) & (said.x <= said.high) | ~common)
    assert not np.any((raw.low <= raw.x) & common)
    at, flagged = undone.thresholds((5.0,))[0], shown(answer_logits(scores, ratios))
    assert at.flagged.value == pytest.approx((flagged > at.probability).mean(), abs=1e-3)
