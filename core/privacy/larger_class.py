"""A model of two classes beside one that always answers the larger class: from its released histogram alone.

Apart from app.lifecycle.learning, as it loads numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.contracts.metrics import ReleasedHistogram
from core.privacy.releases import LEARN, MORE, READABLE, STDS, is_as_good, with_std
from core.privacy.score_histogram import STATISTICS, ScoreHistogram, larger_share


def against_larger_class(released: ReleasedHistogram, classes: Sequence[object]) -> list[str]:
    """The warnings about a model that is no more often right than always answering the larger of its two classes.

    "No more" is within two std of the noise and of the draw of the scored records.
    """
    histogram = ScoreHistogram(released.cells, released.noise_std, released.clip_ratios)
    gain, auc = histogram.gain(), histogram.banded(STATISTICS["auc"])
    if gain.value > STDS * gain.std:
        return []
    answer = f"always answering '{classes[histogram.larger_class]}'"
    accuracy, share = (histogram.estimate(each) for each in (STATISTICS["accuracy"], larger_share))
    numbers = {"accuracy": accuracy, "that answer": share, "auc": auc}
    listed = ", ".join(f"{name} {with_std(each.value, each.std)}" for name, each in numbers.items()) + " (± one std)"
    is_shown = is_as_good(gain.value, gain.std)
    if auc.value - STDS * auc.std > 0.5:
        ranks = "it ranks better than chance, so choose another threshold: the job's page has some by cost"
        answer_shown = (
            f"as good as {answer}" if is_shown else f"the noise does not show that it is better than {answer}"
        )
        return [f"at a threshold of 0.5 {answer_shown}: {listed}; {ranks}"]
    if auc.std > READABLE or not is_shown:
        return [f"the noise hides if it learned: it may be as good as {answer}: {listed}; {MORE}"]
    return [f"did not learn: as good as {answer}: {listed}; {LEARN}"]
