"""The report on the heavy tail: tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reproduce.four import OPTIMIZERS, Chosen, Setting, Tried, draw, groups, last, table
from benchmarks.reproduce.heavy_tail_problem import DELTA, Problem
from benchmarks.reproduce.heavy_tail_text import HEAD, READING, SIZES_NOTE, VARIANTS_NOTE, WHY
from benchmarks.reproduce.runs import REPORTS, machine, paired
from core.privacy.gdp import epsilon_from_mu

PAPER_LOSS = {"DP-GD": 6.7, "DP-GDM": 4.9, "DP-Adam": 5.1, "DP-AdamBC": 4.8}  # 128 classes of 8
PAPER_ACCURACY = {  # the class of 1024, the 8 classes of 128, the 128 classes of 8
    "DP-GD": ("100.0", "0", "0.5"),
    "DP-GDM": ("92.3", "41", "2.5"),
    "DP-Adam": ("93.0", "36", "1.5"),
    "DP-AdamBC": ("87.5", "47", "9.5"),
}


@dataclass(frozen=True)
class Study:
    """One problem: what was tried by optimizer, what was chosen, and its runs, a seed each."""

    name: str
    problem: Problem
    tried: Tried
    chosen: Chosen
    runs: dict[str, list[dict[str, Any]]]

    @property
    def sizes(self) -> list[str]:
        """What the groups are called, largest classes first."""
        return [f"{2**k} of {size}" for k, size in enumerate(self.problem.class_sizes)]

    @property
    def below_prior(self) -> float:
        """The loss of the smallest classes where only the classes' frequencies are known."""
        return math.log(self.problem.records / self.problem.class_sizes[-1])


def write_report(studies: list[Study], looks: list[tuple[Setting, dict[str, Any]]]) -> Path:
    """Returns the report's path.

    Args:
        studies: the first two are of the base problem, by the paper's grid and by the finer one.
        looks: anatomies of runs of the base problem.
    """
    base, fine = studies[:2]
    larger = [each for each in studies if each.problem.group != base.problem.group]
    variants = [each for each in studies[2:] if each not in larger]
    _draw_all(base)
    _draw_frontier([base, fine], REPORTS / "heavy_tail_frontier.png")
    lines = [HEAD.format(machine=machine(), seeds=len(base.runs["DP-GD"])), *_beside_the_paper(studies)]
    for title, note, these in (
        ("The paper's grid, and a finer one", READING, [base, fine]),
        ("Other sizes", SIZES_NOTE, larger),
        ("C = 10 and σ = 5", VARIANTS_NOTE, variants),
    ):
        if not these:
            continue
        lines += ["", f"## {title}", "", *note.splitlines()]
        for study in these:
            lines += [
                "",
                f"### {study.name}: {_facts(study.problem)}",
                "",
                *table(study.runs, study.chosen, study.sizes),
                *_pairs(study),
            ]
        if these[0] is base:
            lines += ["", "### Every run of both grids, seed 0", "", *_tried(these)]
    why, practice = WHY.split("<table>\n")
    lines += ["", "## Why", "", *why.splitlines(), *_anatomy(base.problem, looks), "", *practice.splitlines()]
    path = REPORTS / "heavy_tail.md"
    path.write_text("\n".join(lines).rstrip() + "\n")
    return path


def _facts(problem: Problem) -> str:
    return (
        f"n = {problem.records}, d = {problem.width}, {problem.classes} classes, C = {problem.clip:g}, "
        f"σ = {problem.noise_multiplier:.2f}, {problem.steps} steps"
    )


def _beside_the_paper(studies: Sequence[Study]) -> list[str]:
    """The largest class and the smallest ones, which have 8 records at every size."""
    rows = ["| | size | rate | largest class | paper | classes of 8 | paper | loss of them below the prior's | paper |"]
    rows.append("|---" * 9 + "|")
    paper_prior = math.log(1024)
    for name in OPTIMIZERS:
        for study in studies:
            if "paper's grid" not in study.name or name not in study.runs:
                continue
            runs = study.runs[name]
            most, *_, least = groups(runs[0])
            largest, smallest = (100 * last(runs, f"accuracy:{each}")[0] for each in (most, least))
            spread = f" ± {100 * last(runs, f'accuracy:{least}')[1]:.1f}" if len(runs) > 1 else ""
            gain = study.below_prior - last(runs, f"loss:{least}")[0]
            paper = PAPER_ACCURACY[name]
            rows.append(
                f"| {name} | {study.problem.records} | {study.chosen[name]} | {largest:.1f} % | {paper[0]} % "
                f"| {smallest:.1f}{spread} % | {paper[2]} % | {gain:.2f} | {paper_prior - PAPER_LOSS[name]:.2f} |"
            )
    return rows


def _pairs(study: Study) -> list[str]:
    """How far DP-AdamBC is ahead on the smallest classes, seed by seed; nothing of a single seed."""
    right = {
        name: [100.0 * last([each], f"accuracy:{groups(each)[-1]}")[0] for each in runs]
        for name, runs in study.runs.items()
    }
    ours = right.get("DP-AdamBC", [])
    if len(ours) < 2:
        return []
    against = ", ".join(f"{paired(ours, theirs)} from {name}" for name, theirs in right.items() if name != "DP-AdamBC")
    return ["", f"DP-AdamBC on the smallest classes, in points, seed by seed (mean ± standard error): {against}."]


def _tried(studies: Sequence[Study]) -> list[str]:
    """One row for an optimizer and its guard: loss of all records and accuracy of the smallest classes by rate."""
    rows = ["| | rate: training loss, accuracy of the classes of 8 |", "|---|---|"]
    for name in OPTIMIZERS:
        runs = {setting: run for study in studies for setting, run in study.tried[name]}
        for guard in sorted({setting.guard for setting in runs}):
            of_guard = sorted((s for s in runs if s.guard == guard), key=lambda s: s.rate)
            cells = []
            for setting in of_guard:
                least = groups(runs[setting])[-1]
                loss, right = (last([runs[setting]], metric)[0] for metric in ("loss", f"accuracy:{least}"))
                cells.append(f"{setting.rate:.2g}: {loss:.2f}, {100 * right:.0f} %")
            label = str(Setting(name, 1.0, guard)).removeprefix("1")
            rows.append(f"| {name}{label} | " + "; ".join(cells) + " |")
    return rows


def _anatomy(problem: Problem, looks: list[tuple[Setting, dict[str, Any]]]) -> list[str]:
    most, more, *_, least = problem.class_sizes
    rows = [
        f"| | step | ḡ²/Φ, class of {most} | ḡ²/Φ, classes of {more} | ḡ²/Φ, classes of {least} | blur of v̂/Φ "
        f"| factor, class of {most} | factor, classes of {least} | their ratio |"
    ]
    rows.append("|---" * 9 + "|")
    for setting, look in looks:
        for step, signal, factor, blur in zip(
            *(look[key] for key in ("steps", "signal", "factor", "blur")), strict=True
        ):
            rows.append(
                f"| {setting.optimizer} {setting} | {step} | {signal[0]:.2g} | {signal[1]:.2g} | {signal[-1]:.2g} "
                f"| {blur:.2g} | {factor[0]:.2f} | {factor[-1]:.2f} | {factor[-1] / factor[0]:.2f} |"
            )
    return rows


def _draw_all(study: Study) -> None:
    def epsilon(step: int) -> float:
        return epsilon_from_mu(math.sqrt(step) / study.problem.noise_multiplier, DELTA)

    for metric in ("loss", "accuracy"):
        draw(study.runs, study.sizes, metric, epsilon, REPORTS / f"heavy_tail_{metric}.png")


def _draw_frontier(studies: Sequence[Study], to: Path) -> None:
    """Every run of the grids as a point: what the smallest classes gain, beside what it costs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for name, marker in zip(OPTIMIZERS, "sovx", strict=True):
        runs = [run for study in studies for _, run in study.tried[name]]
        most, *_, least = groups(runs[0])
        for axis, metric in zip(axes, ("loss", f"accuracy:{most}"), strict=True):
            points = [(last([run], metric)[0], last([run], f"accuracy:{least}")[0]) for run in runs]
            axis.scatter(*zip(*points, strict=True), marker=marker, s=18, label=name, alpha=0.8)
    axes[0].set(xlabel="training loss, all records", ylabel="accuracy, smallest classes", xlim=(1.15, 3.0))
    axes[1].set(xlabel="accuracy, largest class", xlim=(0.6, 1.01))
    for axis in axes:
        axis.grid(visible=True, alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(to, dpi=110)
    plt.close(figure)
