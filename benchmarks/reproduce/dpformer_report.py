"""The DPFormer report: tables, learning curves and attention maps."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.reproduce.dpformer_text import ATTENTION, CURVES_TEXT, HEAD, VERDICT
from benchmarks.reproduce.runs import REPORTS, machine

Runs = list[tuple[str, float | None, dict[str, Any]]]
Maps = dict[str, dict[str, Any]]
Tuned = dict[str, tuple[dict[str, Any], float]]
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
CURVES = ("Transformer, untied", "Transformer", "DPFormer, logits", "DPFormer, paper")
COLOURS = {"Transformer, untied": "#8c8c8c", "Transformer": "#4c72b0", "DPFormer, logits": "#c44e52"}


def write(runs: Runs, maps: Maps, popular: tuple[float, float], tuned: Tuned) -> Path:
    """The report, and its figures.

    Args:
        runs: model, ε (None: without privacy) and result; of each ε as many of each model.
        maps: attention of some trained models.
        popular: NDCG and HIT of the most popular items.
        tuned: the model and learning rate that were chosen, by name.
    """
    sigmas = {epsilon: run["noise_multiplier"] for _, epsilon, run in runs if epsilon}
    chosen = "; ".join(
        f"{name} {rate:g}" + (f", scale {model['re_attention']['scale']:g}" if "re_attention" in model else "")
        for name, (model, rate) in tuned.items()
    )
    steps = runs[0][2]["steps"]
    text = HEAD.format(
        machine=machine(),
        size="dimension 32, 1 head, 2 blocks (1 recurrent layer), the last 12 items, dropout 0.2",
        steps=steps,
        epochs=steps * 256 / 943,
        sigmas=", ".join(f"{sigma:.2f} at ε = {epsilon:g}" for epsilon, sigma in sorted(sigmas.items())),
        tuned=chosen,
        seeds=", ".join(f"{len(_of(runs, 'GRU', e, METRICS[0]))} at ε = {e:g}" for e in EPSILONS),
    )
    text += "\n## Scores\n\n" + "\n".join(_scores(runs, popular))
    text += CURVES_TEXT + ATTENTION + "\n".join(_looks(maps))
    text += f"\n\n## What holds, and what does not\n\n{VERDICT}\n"
    _draw_curves(runs)
    _draw_maps(maps)
    path = REPORTS / "dpformer.md"
    path.write_text(text, encoding="utf-8")
    return path


def _of(runs: Runs, name: str, epsilon: float | None, metric: str) -> list[float]:
    return [100.0 * run["metrics"][metric][-1][1] for of, eps, run in runs if (of, eps) == (name, epsilon)]


def _scores(runs: Runs, popular: tuple[float, float]) -> list[str]:
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
    free = {name: [_of(runs, name, None, metric) for metric in METRICS] for name in ("GRU", "Transformer")}
    lines += ["", f"The most popular items for everybody: {100 * popular[0]:.2f} / {100 * popular[1]:.2f}."]
    lines += [
        f"{name} without privacy, the same {runs[0][2]['steps']} steps, one seed: "
        + " / ".join(f"{v[0]:.2f}" for v in pairs)
        + "."
        for name, pairs in free.items()
        if all(pairs)
    ]
    return lines


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.2f}"


def _looks(maps: Maps) -> list[str]:
    lines = ["| | attention of the last item to the rarer half of its items, over their share |", "|---|---|"]
    return lines + [f"| {name} | {found['rare']:.3f} |" for name, found in maps.items()]


def _draw_curves(runs: Runs) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), sharex=True, sharey="row")
    for row, metric in enumerate(METRICS):
        for column, epsilon in enumerate(EPSILONS):
            panel = axes[row][column]
            for name in CURVES:
                curves = [run["metrics"][metric] for of, eps, run in runs if (of, eps) == (name, epsilon)]
                steps = [step for step, _ in curves[0]]
                columns = [[100.0 * curve[at][1] for curve in curves] for at in range(len(steps))]
                means = [statistics.mean(each) for each in columns]
                spreads = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in columns]
                colour = COLOURS.get(name, "#dd8452")
                panel.plot(steps, means, label=name, color=colour)
                low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
                panel.fill_between(steps, low, high, color=colour, alpha=0.15)
            panel.set_title(f"ε = {epsilon:g}" if row == 0 else "")
            panel.grid(alpha=0.3)
        axes[row][0].set_ylabel(f"{metric.upper()} (%)")
    axes[1][1].set_xlabel("step")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(REPORTS / "dpformer_curves.png", dpi=110)
    plt.close(figure)


def _draw_maps(maps: Maps) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(maps), figsize=(3 * len(maps), 3.3))
    for panel, (name, found) in zip(axes, maps.items(), strict=True):
        panel.imshow(found["map"], cmap="viridis", vmin=0.0, vmax=0.5)
        panel.set_title(name, fontsize=8)
        panel.set_xticks([])
        panel.set_yticks([])
    figure.tight_layout()
    figure.savefig(REPORTS / "dpformer_attention.png", dpi=110)
    plt.close(figure)
