"""What a job's last histogram of scores says of its two classes: ROC, reliability, and thresholds by cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.dashboard.chart import Axis, Chart, Line, Point
from app.dashboard.numbers import significant
from core.contracts.metrics import ReleasedHistogram
from core.privacy.score_histogram import Curve, ScoreHistogram, Threshold

COSTS = (1.0, 2.0, 5.0, 10.0, 20.0)  # of a missed positive, in false alarms
LOW, HIGH = -0.02, 1.02  # of an axis: shares, with a margin
DIAGONAL = [Point(0.0, 0.0, "", ""), Point(1.0, 1.0, "", "")]


@dataclass(frozen=True)
class TwoClasses:
    """Charts and thresholds. `positive`: the class whose probability is the score; `on`: the scored part."""

    step: int
    on: str
    exact: bool
    positive: str
    charts: tuple[Chart, Chart]
    thresholds: list[Threshold]


def two_classes(released: ReleasedHistogram, step: int, on: str, classes: Sequence[object]) -> TwoClasses:
    """Draws a histogram of a model of these classes."""
    histogram = ScoreHistogram(released.cells, released.noise_std, released.clip_ratios)
    positive = str(classes[1])
    roc = _chart(
        "roc",
        "ROC: recall over the false-positive rate",
        Axis("false-positive rate", LOW, HIGH),
        Axis("recall", LOW, HIGH),
        [_line("recall", histogram.roc(), "false-positive rate", "recall"), _diagonal("chance")],
    )
    reliability = _chart(
        "reliability",
        f"reliability: how often '{positive}' over its predicted probability",
        Axis("mean predicted probability", LOW, HIGH),
        Axis("observed share", LOW, HIGH),
        [_line("observed", histogram.reliability(), "predicted", "observed", dots=True), _diagonal("calibrated")],
    )
    return TwoClasses(step, on, histogram.noise_std == 0.0, positive, (roc, reliability), histogram.thresholds(COSTS))


def _chart(name: str, title: str, x: Axis, y: Axis, lines: list[Line]) -> Chart:
    return Chart(f"scores-{name}", title, x, y, lines)


def _line(name: str, curve: Curve, x: str, y: str, *, dots: bool = False) -> Line:
    """Points with bands; of several at one x the last, as a line has one y there."""
    points = [
        Point(
            float(each),
            float(value),
            f"{x} {significant(each, 3)}",
            _band(y, value, low, high),
            float(low),
            float(high),
        )
        for each, value, low, high in zip(curve.x, curve.y, curve.low, curve.high, strict=True)
    ]
    last = {each.x: each for each in points}
    return Line(name, list(last.values()), shape="dots" if dots else "line", spread="bars" if dots else "band")


def _band(name: str, value: float, low: float, high: float) -> str:
    return f"{name} {significant(value, 3)}, between {significant(low, 3)} and {significant(high, 3)}"


def _diagonal(name: str) -> Line:
    return Line(name, DIAGONAL, "muted", dashed=True, quiet=True)
