"""The DP² report: tables and figures."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from app.privacy.plans import FilterChoice, PlanRequest, TrainingPlan
from app.privacy.pricing import price
from benchmarks.reproduce.dp2_lab import METRIC, PRIVATE, RATED, SIGMA, TUNING_EPOCHS, Setting
from benchmarks.reproduce.dp2_settings import LONG_EPOCHS, MAIN, RATINGS_EPOCHS, SHORT_EPOCHS, SWEEP_EPOCHS
from benchmarks.reproduce.dp2_text import HEAD, PAPER_ACCURACY, PAPER_RATINGS, PRACTITIONER, VERDICT
from benchmarks.reproduce.runs import REPORTS, machine, paired

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
        f"All optimizers, {SHORT_EPOCHS} epochs": _short(found["short"], rdp["short"]),
        f"{LONG_EPOCHS} epochs, as in the paper's Figure 4 and Table 1": _long(found["long"], rdp["long"]),
        "The paper's own values": _paper(found["paper"]),
        f"Privacy and accuracy, {SWEEP_EPOCHS} epochs (Figure 5)": _privacy(found["privacy"]),
        f"The delay, {SWEEP_EPOCHS} epochs (Figure 6)": _swept(found["delay"], "delay s"),
        f"Ablations, {SWEEP_EPOCHS} epochs (Figure 7, Table 4)": _ablations(found["ablations"]),
        f"MovieLens-100k, {RATINGS_EPOCHS} epochs": _ratings(found["ratings"]),
        f"What was tried, {TUNING_EPOCHS[PRIVATE]} epochs": _tried(found["tuning"]),
        "What holds, and what does not": [VERDICT],
        "For a practitioner": [PRACTITIONER],
    }
    text = HEAD.format(machine=machine(), **_paper_setting())
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


def _gaps(entries: Entries, of: str, name: str, at: int = -1) -> str:
    """Points of accuracy of a name ahead of another, over the seeds that both have. Seeds stand in order."""
    mine, others = (
        [100.0 * result["metrics"]["accuracy"][at][1] for each, _, result in entries if each == wanted]
        for wanted in (name, of)
    )
    return paired(mine, others[: len(mine)])


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def _epsilon(entries: Entries, rdp: float) -> str:
    result = entries[0][2]
    return f"{result['steps']:,} steps: ε = {result['epsilon']:.2f} by PLD, {rdp:.2f} by RDP, at δ = 1e-5."


def _scores(entries: Entries, rdp: float) -> list[str]:
    lines = [
        _epsilon(entries, rdp),
        "",
        "| optimizer | its values | seeds | accuracy, hold-out | points ahead of DP-SGD | the paper (100 epochs) |",
        "|---|---|---|---|---|---|",
    ]
    settings = {name: setting for name, setting, _ in entries}
    for name, values in _by_name(entries).items():
        gap = "" if name == BASE else _gaps(entries, BASE, name)
        cells = [name, _said(settings[name]), str(len(values)), _mean(values), gap, PAPER_ACCURACY.get(name, "")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _short(entries: Entries, rdp: float) -> list[str]:
    """And how the accuracies come about."""
    names = [name for name in MAIN if name != BASE]
    points = len(entries[0][2]["metrics"]["accuracy"])
    lines = [
        *_scores(entries, rdp),
        "",
        "Mean ± standard deviation; differences seed by seed, mean ± standard error. Rates are the tuned ones, and ran",
        f"divided by {math.sqrt(SHORT_EPOCHS / TUNING_EPOCHS[PRIVATE]):.2f}. On the way, in points ahead of DP-SGD:",
        "",
        f"| after epochs | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    for at in (points // 10, points // 4, points // 2, points):
        gaps = " | ".join(_gaps(entries, BASE, name, at - 1) for name in names)
        lines.append(f"| {SHORT_EPOCHS * at / points:g} | {gaps} |")
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
    lines = [
        "| variant | its values | ε (PLD) | seeds | accuracy, hold-out | points ahead of DP2-RMSProp | the paper |",
        "|---|---|---|---|---|---|---|",
    ]
    of = {name: (setting, result["epsilon"]) for name, setting, result in entries}
    for name, values in _by_name(entries).items():
        setting, epsilon = of[name]
        gap = "" if name == "DP2-RMSProp" else _gaps(entries, "DP2-RMSProp", name)
        cells = [name, _said(setting), f"{epsilon:.2f}", str(len(values)), _mean(values), gap, paper[name]]
        lines.append(f"| {' | '.join(cells)} |")
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
    lines = ["| optimizer | values | accuracy, validation |", "|---|---|---|"]
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


def _first(entries: Entries) -> Entries:
    """Each name's first run."""
    return list({name: (name, setting, result) for name, setting, result in reversed(entries)}.values())[::-1]


def _draw(found: dict[str, Entries]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    def curves(axis: Any, entries: Entries, epochs: float) -> None:
        for name, _, result in entries:
            steps, scores = zip(*result["metrics"]["accuracy"], strict=True)
            axis.plot([epochs * step / steps[-1] for step in steps], scores, label=name, color=COLOURS.get(name))
        axis.set(xlabel="epochs", ylabel="accuracy, hold-out")
        axis.grid(visible=True, alpha=0.3)
        axis.legend(frameon=False, fontsize=8)

    def figure(name: str, columns: int = 1) -> Any:
        made, axes = plt.subplots(1, columns, figsize=(5.2 * columns, 3.6), constrained_layout=True)
        figures.append((made, REPORTS / name))
        return axes

    figures: list[tuple[Any, Path]] = []
    left, right = figure("dp2_curves.png", 2)
    curves(left, _first(found["short"]), SHORT_EPOCHS)
    curves(right, found["long"], LONG_EPOCHS)
    curves(figure("dp2_ablations.png"), _first(found["ablations"]), SWEEP_EPOCHS)
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
