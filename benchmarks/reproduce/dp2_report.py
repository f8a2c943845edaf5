"""The DP² report: tables and figures."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.reproduce.dp2_lab import METRIC, PRIVATE, RATED, SIGMA, TUNING_EPOCHS, Setting
from benchmarks.reproduce.dp2_settings import LONG_EPOCHS, PAPER_EPOCHS, RATINGS_EPOCHS, SHORT_EPOCHS, SWEEP_EPOCHS
from benchmarks.reproduce.dp2_text import (
    HEAD,
    JUDGED_NOTE,
    PAPER_ACCURACY,
    PAPER_NOTE,
    PAPER_RATINGS,
    PRACTITIONER,
    VERDICT,
)
from benchmarks.reproduce.runs import REPORTS, machine, paired
from core.privacy.price_requests import FilterChoice, PlanRequest, TrainingPlan
from core.privacy.pricing import price

Entries = list[tuple[str, Setting, dict[str, Any]]]
BASE = "DP-SGD"
COLOURS = {
    "DP-SGD": "#4c72b0",
    "DP-RMSProp": "#dd8452",
    "DP-AdaGrad": "#937860",
    "DP2-RMSProp": "#c44e52",
    "DP2-AdaGrad": "#8c1a1a",
    "DP2-Yogi": "#e377c2",
    "AdaDPS": "#55a868",
    "PDA-DPMD": "#8172b3",
}


def write(found: dict[str, Entries], rdp: dict[str, float]) -> Path:
    """The report, and its figures.

    Args:
        found: runs by part.
        rdp: ε of a short and of a long run by Rényi accounting.
    """
    sections = {
        f"All optimizers, {SHORT_EPOCHS} epochs": _scores(found["short"], rdp["short"]),
        f"Three by five seeds, {SHORT_EPOCHS} epochs": [*_judged(found["judged"], SHORT_EPOCHS), "", JUDGED_NOTE],
        f"{LONG_EPOCHS} epochs, as in the paper's Figure 4 and Table 1": _long(found["long"], rdp["long"]),
        f"The paper's own values, {PAPER_EPOCHS} epochs": [
            *_judged(found["paper-long"], PAPER_EPOCHS),
            "",
            PAPER_NOTE,
        ],
        f"The paper's own values on buckets, {SWEEP_EPOCHS} epochs": _paper(found["paper"]),
        f"Privacy and accuracy, {SWEEP_EPOCHS} epochs (Figure 5)": _privacy(found["privacy"]),
        f"The delay, {SWEEP_EPOCHS} epochs (Figure 6)": _swept(found["delay"], "delay s"),
        f"Ablations, {SWEEP_EPOCHS} epochs (Figure 7, Table 4)": _ablations(found["ablations"]),
        f"MovieLens-100k, {RATINGS_EPOCHS} epochs": _ratings(found["ratings"]),
        f"What was tried, {TUNING_EPOCHS[PRIVATE]} epochs": _tried(found["tuning"]),
        "What holds, and what does not": [VERDICT],
        "For a practitioner": [PRACTITIONER],
    }
    text = HEAD.format(machine=machine(), **_paper_setting(), seeds=len({*_by_name(found["short"])["DP-SGD"]}))
    for title, lines in sections.items():
        text += f"\n\n## {title}\n\n" + "\n".join(lines)
    _draw(found)
    path = REPORTS / "dp2.md"
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _paper_setting() -> dict[str, float]:
    """ε of the paper's run, by both accountants."""
    training = TrainingPlan(
        sampling="poisson",
        sample_rate=64 / 25_000,
        steps=39_062,
        max_grad_norm=1.0,
        clipping="flat",
        expected_batch_size=64,
    )
    asked = PlanRequest(
        training=training,
        target_epsilon=None,
        noise_multiplier=1.0,
        target_delta=1e-5,
        filter=FilterChoice(kind="rdp", order=8.0),
    )
    found = price(asked).comparison
    if found is None:
        raise ValueError("a private job has a price")
    return {"paper_rdp": found.rdp, "paper_pld": found.pld}


def _by_name(entries: Entries) -> dict[str, list[float]]:
    """Last values, a run each."""
    values: dict[str, list[float]] = {}
    for name, _, result in entries:
        (metric,) = result["metrics"].values()
        values.setdefault(name, []).append(metric[-1][1])
    return values


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def _epsilon(entries: Entries, rdp: float) -> str:
    result = entries[0][2]
    return f"{result['steps']:,} steps: ε = {result['epsilon']:.2f} by PLD, {rdp:.2f} by RDP, at δ = 1e-5."


def _scores(entries: Entries, rdp: float) -> list[str]:
    lines = [_epsilon(entries, rdp), "", "| optimizer | accuracy, hold-out | the paper (100 epochs) |", "|---|---|---|"]
    for name, values in _by_name(entries).items():
        lines.append(f"| {name} | {_mean(values)} | {PAPER_ACCURACY.get(name, '')} |")
    return lines


def _judged(entries: Entries, epochs: float) -> list[str]:
    """The optimizers of the paper's claim: accuracies, and differences from DP-SGD's on the way."""
    runs: dict[str, list[list[float]]] = {}
    settings: dict[str, Setting] = {}
    for name, setting, result in entries:
        runs.setdefault(name, []).append([100.0 * score for _, score in result["metrics"]["accuracy"]])
        settings[name] = setting
    points = len(runs[BASE][0])
    shown = [at for at in (points // 10, points // 4, points // 2, points) if at]
    heads = " | ".join(f"ahead after {epochs * at / points:g}" for at in shown)
    head = f"| optimizer | its values | seeds | accuracy, % | the paper, 100 epochs | {heads} |"
    lines = [head, "|---" * (5 + len(shown)) + "|"]
    for name, scores in runs.items():
        ends = [each[-1] for each in scores]
        spread = f"{statistics.mean(ends):.2f} ± {statistics.stdev(ends):.2f}" if len(ends) > 1 else f"{ends[0]:.2f}"
        gaps = [
            "" if name == BASE else paired([each[at - 1] for each in scores], [each[at - 1] for each in runs[BASE]])
            for at in shown
        ]
        cells = [
            name,
            _said(settings[name]),
            str(len(scores)),
            spread,
            f"{100 * float(PAPER_ACCURACY[name]):.1f}",
            *gaps,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _long(entries: Entries, rdp: float) -> list[str]:
    return [*_scores(entries, rdp), "", "![learning curves](dp2_curves.png)"]


def _paper(entries: Entries) -> list[str]:
    lines = ["| optimizer | its values | accuracy, hold-out |", "|---|---|---|"]
    for name, setting, result in entries:
        lines.append(f"| {name} | {_said(setting)} | {result['metrics']['accuracy'][-1][1]:.4f} |")
    return lines


def _privacy(entries: Entries) -> list[str]:
    names = list(dict.fromkeys(name for name, _, _ in entries))
    lines = ["| σ | ε (PLD) | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for sigma in dict.fromkeys(result["sigma"] for _, _, result in entries):
        of = {name: result for name, _, result in entries if result["sigma"] == sigma}
        scores = " | ".join(f"{of[name]['metrics']['accuracy'][-1][1]:.4f}" for name in names)
        lines.append(f"| {sigma:g} | {of[names[0]]['epsilon']:.2f} | {scores} |")
    return [*lines, "", "![privacy and accuracy](dp2_privacy.png)"]


def _swept(entries: Entries, what: str) -> list[str]:
    lines = [f"| {what} | accuracy, hold-out |", "|---|---|"]
    lines += [f"| {name} | {result['metrics']['accuracy'][-1][1]:.4f} |" for name, _, result in entries]
    return [*lines, "", "![delay](dp2_delay.png)"]


def _ablations(entries: Entries) -> list[str]:
    paper = {"DP2-RMSProp": ".815", "extra query": ".799", "noise first": ".643"}
    lines = ["| variant | ε (PLD) | accuracy, hold-out | the paper |", "|---|---|---|---|"]
    for name, _, result in entries:
        score = result["metrics"]["accuracy"][-1][1]
        lines.append(f"| {name} | {result['epsilon']:.2f} | {score:.4f} | {paper[name]} |")
    return [*lines, "", "![ablations](dp2_ablations.png)"]


def _ratings(entries: Entries) -> list[str]:
    steps, epsilon = entries[0][2]["steps"], entries[0][2]["epsilon"]
    lines = [
        f"{steps:,} steps of 64 ratings with σ = {SIGMA[RATED]:g}: ε = {epsilon:.2f} for one rating, by PLD.",
        "",
        "| optimizer | its values | MSE, hold-out | the paper |",
        "|---|---|---|---|",
    ]
    for name, setting, result in entries:
        score = result["metrics"]["loss"][-1][1]
        lines.append(f"| {name} | {_said(setting)} | {score:.4f} | {PAPER_RATINGS[name]} |")
    return lines


def _tried(entries: Entries) -> list[str]:
    lines = ["| optimizer | values | accuracy on training records |", "|---|---|---|"]
    for name, setting, result in entries:
        lines.append(f"| {name} | {_said(setting)} | {result['metrics'][METRIC[PRIVATE]][-1][1]:.4f} |")
    return lines


SAID = {
    "learning_rate": "η",
    "clip": "C",
    "learning_rate_adaptive": "η adaptive",
    "max_grad_norm_adaptive": "C adaptive",
    "eps": "ε",
    "delay": "s",
}


def _said(setting: Setting) -> str:
    return ", ".join(f"{SAID[name]} {setting[name]:g}" for name in SAID if name in setting)


def _draw(found: dict[str, Entries]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    def curves(axis: Any, entries: Entries, epochs: float) -> None:
        runs: dict[str, list[Any]] = {}
        for name, _, result in entries:
            runs.setdefault(name, []).append(result["metrics"]["accuracy"])
        for name, seeds in runs.items():
            steps = [step for step, _ in seeds[0]]
            means = [statistics.mean(score for _, score in point) for point in zip(*seeds, strict=True)]
            axis.plot([epochs * step / steps[-1] for step in steps], means, label=name, color=COLOURS.get(name))
        axis.set(xlabel="epochs", ylabel="accuracy, hold-out")
        axis.grid(visible=True, alpha=0.3)
        axis.legend(frameon=False, fontsize=8)

    def figure(name: str, columns: int = 1) -> Any:
        made, axes = plt.subplots(1, columns, figsize=(5.2 * columns, 3.6), constrained_layout=True)
        figures.append((made, REPORTS / name))
        return axes

    figures: list[tuple[Any, Path]] = []
    left, right = figure("dp2_curves.png", 2)
    curves(left, found["short"], SHORT_EPOCHS)
    curves(right, found["long"], LONG_EPOCHS)
    curves(figure("dp2_ablations.png"), found["ablations"], SWEEP_EPOCHS)
    curves(figure("dp2_delay.png"), [(f"s = {name}", *rest) for name, *rest in found["delay"]], SWEEP_EPOCHS)  # type: ignore[misc]
    axis = figure("dp2_privacy.png")
    for name in dict.fromkeys(name for name, _, _ in found["privacy"]):
        of = sorted(
            (result["epsilon"], result["metrics"]["accuracy"][-1][1])
            for each, _, result in found["privacy"]
            if each == name
        )
        axis.plot(*zip(*of, strict=True), marker="o", label=name, color=COLOURS[name])
    axis.set(xlabel="ε (PLD)", ylabel="accuracy, hold-out")
    axis.grid(visible=True, alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    for made, path in figures:
        made.savefig(path, dpi=110)
        plt.close(made)
