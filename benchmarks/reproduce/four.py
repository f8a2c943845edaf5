"""The four optimizers that the paper on heavy tails compares, and their runs by groups of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce.runs import best

OPTIMIZERS = ("DP-GD", "DP-GDM", "DP-Adam", "DP-AdamBC")
MOMENTUM = 0.9  # μ, and β₁


@dataclass(frozen=True)
class Setting:
    """What is tuned, in units that one can compare.

    Attributes:
        rate: of plain gradient descent, or what amounts to it where Φ dominates: η is `rate` for DP-GD, times 1 − μ for
            DP-GDM, times √Φ for DP-Adam and DP-AdamBC.
        guard: γ/√Φ of DP-Adam, γ′/Φ of DP-AdamBC.
    """

    optimizer: str
    rate: float
    guard: float = 0.0

    def spec(self, step_of_one: float, noise_deviation: float, beta2: float) -> dict[str, Any]:
        """A JobSpec's optimizer.

        Args:
            step_of_one: η of plain gradient descent for rate 1.
            noise_deviation: √Φ.
        """
        plain = self.rate * step_of_one
        moments = {"learning_rate": plain * noise_deviation, "betas": [MOMENTUM, beta2]}
        return {
            "DP-GD": {"kind": "dp_sgd", "learning_rate": plain},
            "DP-GDM": {"kind": "dp_sgd", "learning_rate": plain * (1.0 - MOMENTUM), "momentum": MOMENTUM},
            "DP-Adam": {"kind": "dp_adam", "eps": max(self.guard * noise_deviation, 1e-12)} | moments,
            "DP-AdamBC": {"kind": "dp_adambc", "eps_root": self.guard * noise_deviation**2} | moments,
        }[self.optimizer]

    def __str__(self) -> str:
        guard = {"DP-Adam": f", γ = {self.guard:.2g} √Φ", "DP-AdamBC": f", γ′ = {self.guard:.2g} Φ"}
        return f"{self.rate:.2g}{guard.get(self.optimizer, '') if self.guard else ''}"


Grid = dict[str, list[Setting]]
Tried = dict[str, list[tuple[Setting, dict[str, Any]]]]
Chosen = dict[str, Setting]


def lowest_loss(tried: Tried) -> Chosen:
    """The paper's rule: of each optimizer the setting with the lowest training loss over all records."""
    return {name: best(runs, "loss", highest=False)[0] for name, runs in tried.items()}


def groups(run: dict[str, Any]) -> list[str]:
    """The groups of classes that a run was scored on, largest classes first."""
    names = [name.removeprefix("loss:") for name in run["metrics"] if name.startswith("loss:")]
    return sorted(names, key=lambda name: -int(name.split("-")[0]))


def last(runs: Sequence[dict[str, Any]], metric: str) -> tuple[float, float]:
    """Mean and deviation over seeds of the metric at the end."""
    values = [run["metrics"][metric][-1][1] for run in runs]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table(runs: dict[str, list[dict[str, Any]]], chosen: Chosen, sizes: Sequence[str]) -> list[str]:
    """Rows of loss and accuracy by group, ± the deviation over seeds.

    Args:
        sizes: how the groups are called, largest classes first.
    """
    names = groups(next(iter(runs.values()))[0])
    head = "| | rate | loss | " + " | ".join(f"loss, {size}" for size in sizes)
    head += " | accuracy | " + " | ".join(f"{size}" for size in sizes) + " |"
    rows = [head, "|" + "---|" * (head.count("|") - 1)]
    for name, of_seeds in runs.items():
        losses = [cell(of_seeds, metric) for metric in ("loss", *(f"loss:{group}" for group in names))]
        accuracies = [cell(of_seeds, metric) for metric in ("accuracy", *(f"accuracy:{group}" for group in names))]
        rows.append(f"| {name} | {chosen[name]} | " + " | ".join([*losses, *accuracies]) + " |")
    return rows


def cell(runs: Sequence[dict[str, Any]], metric: str) -> str:
    mean, deviation = last(runs, metric)
    scale, digits = (100.0, 1) if metric.startswith("accuracy") else (1.0, 2)
    spread = f" ± {scale * deviation:.{digits}f}" if len(runs) > 1 else ""
    return f"{scale * mean:.{digits}f}{spread}"


def draw(
    runs: dict[str, list[dict[str, Any]]],
    sizes: Sequence[str],
    metric: str,
    along: Callable[[int], float],
    to: Path,
    label: str = "ε",
) -> None:
    """A metric of all records and of each group, the mean over seeds, as the paper's figures have it.

    Args:
        along: what is drawn to the right, at a step; `label` names it.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = groups(next(iter(runs.values()))[0])
    figure, axes = plt.subplots(1, len(names) + 1, figsize=(2.6 * (len(names) + 1), 2.8), constrained_layout=True)
    for axis, group, size in zip(axes, ["", *names], ["all", *sizes], strict=True):
        for name, of_seeds in runs.items():
            courses = [run["metrics"][f"{metric}:{group}" if group else metric] for run in of_seeds]
            steps = [step for step, _ in courses[0]]
            mean = np.mean([[value for _, value in course] for course in courses], axis=0)
            axis.plot([along(step) for step in steps], mean, label=name, linewidth=1.2)
        axis.set_title(size, fontsize=9)
        axis.set_xlabel(label, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel(metric)
    axes[0].legend(frameon=False, fontsize=7)
    figure.savefig(to, dpi=110)
    plt.close(figure)
