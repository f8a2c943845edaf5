"""The DPFormer report: tables, learning curves and attention maps."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reproduce.dpformer_text import ATTENTION, CURVES_TEXT, HEAD, VERDICT
from benchmarks.reproduce.runs import REPORTS, machine

EPSILONS = (5.0, 8.0, 10.0)
METRICS = ("ndcg@10", "hit@10")
# NDCG@10 / HIT@10 in %, on MovieLens-1M, by ε: the paper's Table 1.
PAPER = {
    "GRU": ("2.26 / 4.58", "2.40 / 4.75", "2.81 / 5.53"),
    "LSTM": ("2.65 / 5.08", "2.76 / 5.41", "2.95 / 5.55"),
    "Transformer, untied": ("2.33 / 4.47", "2.56 / 5.11", "2.74 / 5.39"),
    "Transformer": ("4.57 / 8.69", "7.05 / 13.17", "7.99 / 14.82"),
    "DPFormer, logits": ("", "", ""),
    "DPFormer, paper": ("5.88 / 11.13", "7.70 / 14.31", "8.42 / 15.40"),
}
COLOURS = dict(zip(PAPER, ("#55a868", "#8172b3", "#8c8c8c", "#4c72b0", "#c44e52", "#dd8452"), strict=True))


class Made(NamedTuple):
    """A run; `epsilon` None: without privacy."""

    name: str
    epsilon: float | None
    seed: int
    run: dict[str, Any]

    def last(self, metric: str) -> float:
        """The metric at the end, in %."""
        return 100.0 * float(self.run["metrics"][metric][-1][1])


def write(runs: list[Made], popular: tuple[float, float], size: dict[str, Any]) -> Path:
    """The report, and its figures.

    Args:
        runs: of each seed and ε as many of each model.
        popular: NDCG and HIT of the most popular items.
        size: the width, sequence length and dropout of the models.
    """
    private = [each for each in runs if each.epsilon]
    sigmas = {each.epsilon: each.run["noise_multiplier"] for each in private}
    text = HEAD.format(
        machine=machine(),
        dim=size["dim"],
        length=size["max_length"],
        dropout=size["dropout"],
        steps=private[0].run["steps"],
        sigmas=", ".join(f"{sigma:.2f} at ε = {epsilon:g}" for epsilon, sigma in sorted(sigmas.items())),
        seeds=", ".join(f"{len(_of(runs, 'GRU', e, METRICS[0]))} at ε = {e:g}" for e in EPSILONS),
    )
    text += "\n## Scores\n\n" + "\n".join([*_scores(runs, popular), "", *_differences(runs)])
    text += CURVES_TEXT + ATTENTION + "\n".join(_looks(runs))
    text += f"\n\n## What holds, and what does not\n\n{VERDICT}\n"
    _draw_curves(runs, popular)
    _draw_maps(runs)
    path = REPORTS / "dpformer.md"
    path.write_text(text, encoding="utf-8")
    return path


def _of(runs: list[Made], name: str, epsilon: float | None, metric: str) -> list[float]:
    return [each.last(metric) for each in runs if (each.name, each.epsilon) == (name, epsilon)]


def _scores(runs: list[Made], popular: tuple[float, float]) -> list[str]:
    lines = [
        "NDCG@10 / HIT@10 in %, mean ± standard deviation over seeds, and beside them the paper's on MovieLens-1M.",
        "",
        "| | " + " | ".join(f"ε = {e:g} | paper" for e in EPSILONS) + " |",
        "|---|" + "---|" * (2 * len(EPSILONS)),
    ]
    for name, theirs in PAPER.items():
        cells = []
        for epsilon, paper in zip(EPSILONS, theirs, strict=True):
            pairs = [_of(runs, name, epsilon, metric) for metric in METRICS]
            cells += [" / ".join(_spread(values) for values in pairs), paper]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", f"The most popular items for everybody: {100 * popular[0]:.2f} / {100 * popular[1]:.2f}."]
    lines += [
        f"{each.name} without privacy, {each.run['steps']} steps of batches of 256, one seed: "
        + " / ".join(f"{each.last(metric):.2f}" for metric in METRICS)
        + "."
        for each in runs
        if each.epsilon is None
    ]
    return lines


def _differences(runs: list[Made]) -> list[str]:
    """Of NDCG, from run to run with the same seed."""
    lines = [
        "Differences of NDCG@10 from the tied transformer's, seed by seed: mean ± standard error, in points.",
        "",
        "| | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
        "|---|" + "---|" * len(EPSILONS),
    ]
    for name in (name for name in PAPER if name != "Transformer"):
        cells = []
        for epsilon in EPSILONS:
            pairs = zip(*(_of(runs, each, epsilon, METRICS[0]) for each in (name, "Transformer")), strict=True)
            gaps = [one - other for one, other in pairs]
            error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
            cells.append(f"{statistics.mean(gaps):+.2f} ± {error:.2f}" if gaps else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "–"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _maps(runs: list[Made]) -> dict[str, dict[str, Any]]:
    """What was looked at, by whose it is."""
    return {
        f"{each.name}, {'without privacy' if each.epsilon is None else f'ε = {each.epsilon:g}'}": each.run["attention"]
        for each in sorted(runs, key=lambda each: (list(PAPER).index(each.name), -(each.epsilon or math.inf)))
        if "attention" in each.run
    }


def _looks(runs: list[Made]) -> list[str]:
    lines = ["| | attention of the last item to the rarer half of its items, over their share |", "|---|---|"]
    return lines + [f"| {name} | {found['rare']:.3f} |" for name, found in _maps(runs).items()]


def _draw_curves(runs: list[Made], popular: tuple[float, float]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), sharex=True, sharey="row")
    for row, metric in enumerate(METRICS):
        for column, epsilon in enumerate(EPSILONS):
            panel = axes[row][column]
            for name, colour in COLOURS.items():
                curves = [each.run["metrics"][metric] for each in runs if (each.name, each.epsilon) == (name, epsilon)]
                if curves:
                    _draw_curve(panel, name, curves, colour)
            panel.axhline(100.0 * popular[row], color="black", linestyle=":", linewidth=1, label="popularity")
            panel.set_title(f"ε = {epsilon:g}" if row == 0 else "")
            panel.grid(alpha=0.3)
        axes[row][0].set_ylabel(f"{metric.upper()} (%)")
    axes[1][1].set_xlabel("step")
    axes[0][1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(REPORTS / "dpformer_curves.png", dpi=110)
    plt.close(figure)


def _draw_curve(panel: Any, name: str, curves: list[list[tuple[int, float]]], colour: str) -> None:
    """The mean over seeds, and from the lowest to the highest."""
    steps = [step for step, _ in curves[0]]
    columns = [[100.0 * curve[at][1] for curve in curves] for at in range(len(steps))]
    panel.plot(steps, [statistics.mean(each) for each in columns], label=name, color=colour)
    panel.fill_between(steps, [min(each) for each in columns], [max(each) for each in columns], color=colour, alpha=0.1)


def _draw_maps(runs: list[Made]) -> None:
    import matplotlib.pyplot as plt

    maps = _maps(runs)
    figure, axes = plt.subplots(2, -(-len(maps) // 2), figsize=(1.5 * len(maps), 6.4), squeeze=False)
    for panel in axes.flat:
        panel.set_axis_off()
    for panel, (name, found) in zip(axes.flat, maps.items(), strict=False):
        panel.imshow(found["map"], cmap="viridis", vmin=0.0, vmax=0.5)
        panel.set_title(name, fontsize=8)
    figure.tight_layout()
    figure.savefig(REPORTS / "dpformer_attention.png", dpi=110)
    plt.close(figure)
