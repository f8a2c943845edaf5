"""The DP-AdamBC report: tables and figures."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.reproduce.adambc_moments import Moments
from benchmarks.reproduce.adambc_settings import BATCH, CLIP, EPOCHS, EPSILONS, SIGMAS, Setting, phi
from benchmarks.reproduce.adambc_text import HEAD, PAPER_ACCURACY, PAPER_MOMENTS, PRACTITIONER, TEXTS
from benchmarks.reproduce.adambc_variants import implied_rate
from benchmarks.reproduce.runs import REPORTS, machine, paired

Runs = dict[str, dict[str, Any]]
Table = dict[tuple[str, float], list[dict[str, Any]]]
COLOURS = {"clean": "#55a868", "private": "#4c72b0", "corrected": "#c44e52"}
MIDDLE = EPSILONS[1]


def write(found: dict[str, Any], chosen: dict[tuple[str, float], Setting], seeds: int) -> Path:
    """The report, and its figures."""
    moments: Moments = found["moments"]
    sections = {
        "The moments": [*_moments(moments), "", TEXTS["moments"]],
        "Another Φ": [*_losses(found["fakes"], "Φ that is subtracted"), "", TEXTS["fakes"]],
        "γ′ and γ": [*_guards(found), "", TEXTS["guards"]],
        "DP-Adam is DP-SGD with momentum": [*_momentum(found["momentum"], chosen), "", TEXTS["momentum"]],
        "Accuracy": [
            *_accuracies(found["table"]),
            "",
            *_gaps(found["table"]),
            "",
            *_groups(found["table"]),
            "",
            TEXTS["accuracy"],
        ],
        "Settings that were chosen": _chosen(chosen),
        "What holds, and what does not": [TEXTS["verdict"]],
        "For a practitioner": [PRACTITIONER],
    }
    where = {"machine": machine(), "seeds": seeds, "batch": BATCH, "epochs": EPOCHS, "clip": CLIP}
    text = HEAD.format(**where, sigmas=", ".join(f"{sigma:.3g}" for sigma in SIGMAS.values()))
    for title, lines in sections.items():
        text += f"\n\n## {title}\n\n" + "\n".join(lines)
    _draw(moments, found, chosen)
    path = REPORTS / "adambc_analysis.md"
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _moments(moments: Moments) -> list[str]:
    lines = [
        f"Step {moments.step} of a DP-AdamBC run at ε = {MIDDLE:g}: Φ = {moments.phi:.3g}, γ′ = {moments.floor:.3g}.",
        "",
        "| | min | Q1 | median | Q3 | max | mean | the paper's mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, values in moments.summary().items():
        lines.append(f"| {name} | " + " | ".join(f"{each:.1e}" for each in values) + f" | {PAPER_MOMENTS[name]} |")
    return [*lines, "", "![moments](adambc_moments.png)"]


def _losses(runs: dict[Any, dict[str, Any]], what: str) -> list[str]:
    lines = [f"| {what} | training loss | training accuracy |", "|---|---|---|"]
    for name, result in runs.items():
        loss, score = (result["metrics"][metric][-1][1] for metric in ("loss", "accuracy"))
        lines.append(f"| {name} | {loss:.4f} | {score:.4f} |")
    return lines


def _guards(found: dict[str, Any]) -> list[str]:
    return [
        *_losses(found["floors"], "DP-AdamBC, γ′ / Φ"),
        "",
        *_losses(found["gammas"], "DP-Adam, γ"),
        "",
        "![fake Φ, γ′ and γ](adambc_guards.png)",
    ]


def _momentum(runs: Runs, chosen: dict[tuple[str, float], Setting]) -> list[str]:
    losses = [[value for _, value in runs[name]["metrics"]["loss"]] for name in ("as shipped", "implied momentum")]
    square = statistics.mean((a - b) ** 2 for a, b in zip(*losses, strict=True))
    adam = chosen["DP-Adam", MIDDLE]
    last = implied_rate(adam["learning_rate"], 0.9, phi(adam, MIDDLE), runs["as shipped"]["steps"])
    return [
        f"DP-Adam with η = {adam['learning_rate']:g}, and DP-SGDM (μ = 0.9) with η(1−β₁)/((1−β₁ᵗ)√Φ), which falls to "
        f"{last:.3g}; same noise, same batches, loss on the test part.",
        "",
        "| | loss at the end | accuracy at the end |",
        "|---|---|---|",
        *(
            f"| {name} | {runs[key]['metrics']['loss'][-1][1]:.4f} | {runs[key]['metrics']['accuracy'][-1][1]:.4f} |"
            for name, key in (("DP-Adam", "as shipped"), ("DP-SGDM", "implied momentum"))
        ),
        "",
        f"Mean squared difference of their losses over the run: {square:.2g} (the paper: 0.015).",
        "",
        "![DP-Adam and DP-SGDM](adambc_momentum.png)",
    ]


def _accuracies(table: Table) -> list[str]:
    lines = ["| optimizer | " + " | ".join(f"ε = {each:g}" for each in EPSILONS) + " | the paper, SNLI | QNLI |"]
    lines.append("|---" * (len(EPSILONS) + 3) + "|")
    for name in dict.fromkeys(name for name, _ in table):
        cells = [_mean([run["metrics"]["accuracy"][-1][1] for run in table[name, each]]) for each in EPSILONS]
        lines.append(f"| {name} | " + " | ".join(cells) + " | " + " | ".join(PAPER_ACCURACY.get(name, ("", ""))) + " |")
    return lines


def _gaps(table: Table) -> list[str]:
    """Points ahead of DP-Adam, seed by seed."""
    lines = ["Points ahead of DP-Adam, seed by seed: mean ± standard error.", ""]
    lines += ["| optimizer | " + " | ".join(f"ε = {each:g}" for each in EPSILONS) + " |"]
    lines.append("|---" * (len(EPSILONS) + 1) + "|")
    for name in dict.fromkeys(name for name, _ in table if name != "DP-Adam"):
        cells = [
            paired([_accuracy(run) for run in table[name, each]], [_accuracy(run) for run in table["DP-Adam", each]])
            for each in EPSILONS
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _accuracy(result: dict[str, Any]) -> float:
    """In per cent."""
    return 100.0 * float(result["metrics"]["accuracy"][-1][1])


def _groups(table: Table) -> list[str]:
    """Mean accuracy by label frequency, at the middle ε."""
    of = {name: runs for (name, epsilon), runs in table.items() if epsilon == MIDDLE}
    some = next(iter(of.values()))[0]["metrics"]
    groups = sorted((each for each in some if each.startswith("accuracy:")), key=_least, reverse=True)
    heads = [each.removeprefix("accuracy:") for each in groups]
    lines = [f"By how many training records a topic has, at ε = {MIDDLE:g}:", ""]
    lines += ["| optimizer | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name, runs in of.items():
        means = [statistics.mean(run["metrics"][group][-1][1] for run in runs) for group in groups]
        lines.append(f"| {name} | " + " | ".join(f"{100 * each:.1f} %" for each in means) + " |")
    return lines


def _least(group: str) -> int:
    digits = "".join(letter if letter.isdigit() else " " for letter in group).split()
    return int(digits[0])


def _chosen(chosen: dict[tuple[str, float], Setting]) -> list[str]:
    lines = ["| optimizer | ε | η | C | else |", "|---|---|---|---|---|"]
    for (name, epsilon), setting in chosen.items():
        rest = {"floor": "γ′ = {:g} Φ", "eps_scale": "ε_s = {:g}"}
        other = ", ".join(form.format(setting[each]) for each, form in rest.items() if each in setting)
        lines.append(f"| {name} | {epsilon:g} | {setting['learning_rate']:g} | {setting['clip']:g} | {other} |")
    return lines


def _mean(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread} %"


def _draw(moments: Moments, found: dict[str, Any], chosen: dict[tuple[str, float], Setting]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    def finish(figure: Any, axes: Any, name: str) -> None:
        for axis in axes:
            axis.grid(visible=True, alpha=0.3)
            axis.legend(frameon=False, fontsize=8)
        figure.savefig(REPORTS / name, dpi=110)
        plt.close(figure)

    figure, axes = plt.subplots(1, 3, figsize=(14, 3.6), constrained_layout=True)
    _histograms(axes, moments)
    finish(figure, axes, "adambc_moments.png")

    figure, axes = plt.subplots(1, 3, figsize=(14, 3.6), constrained_layout=True)
    for name, result in found["fakes"].items():
        axes[0].plot(*zip(*result["metrics"]["loss"], strict=True), label="Φ" if name == "as shipped" else name)
    axes[0].set(xlabel="step", ylabel="training loss", title="what is subtracted from v̂")
    for axis, key, what in ((axes[1], "floors", "γ′ / Φ of DP-AdamBC"), (axes[2], "gammas", "γ of DP-Adam")):
        axis.plot(list(found[key]), [r["metrics"]["loss"][-1][1] for r in found[key].values()], marker="o", label=what)
        axis.set(xscale="log", xlabel=what, ylabel="training loss at the end")
    finish(figure, axes, "adambc_guards.png")

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), constrained_layout=True)
    adam = chosen["DP-Adam", MIDDLE]
    steps = range(1, found["momentum"]["as shipped"]["steps"] + 1)
    rates = [implied_rate(adam["learning_rate"], 0.9, phi(adam, MIDDLE), step) for step in steps]
    axes[0].plot(steps, rates, label="implied learning rate of DP-SGDM")
    axes[0].set(xlabel="step", yscale="log", xscale="log")
    for name, key in (("DP-Adam", "as shipped"), ("DP-SGDM", "implied momentum")):
        axes[1].plot(*zip(*found["momentum"][key]["metrics"]["loss"], strict=True), label=name)
    axes[1].set(xlabel="step", ylabel="loss, test part")
    finish(figure, axes, "adambc_momentum.png")


def _histograms(axes: Any, moments: Moments) -> None:
    values = {name: each.numpy() for name, each in moments.derived().items()}
    import numpy as np

    for what in ("clean", "private"):
        m = values[f"m {what}"]
        axes[0].hist(
            m, bins=np.linspace(-4, 4, 100) * moments.phi**0.5, alpha=0.6, label=f"m̂ {what}", color=COLOURS[what]
        )
    axes[0].set(yscale="log", title="first moment")
    for what, colour in COLOURS.items():
        roots = values[f"v {what}"] ** 0.5
        bins = np.linspace(0, 1.6, 120) * moments.phi**0.5
        axes[1].hist(roots, bins=bins, alpha=0.6, label=f"√v̂ {what}", color=colour)
    axes[1].axvline(moments.phi**0.5, color="black", linewidth=0.8, label="√Φ")
    axes[1].set(yscale="log", title="root of the second moment")
    for what in ("private", "corrected"):
        update = values[f"update {what}"]
        scaled = update / np.abs(update).max()
        axes[2].hist(scaled, bins=100, alpha=0.6, label=f"update, {what}", color=COLOURS[what], density=True)
    axes[2].set(yscale="log", title="updates, scaled to [-1, 1]")
