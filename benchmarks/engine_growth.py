"""Measures the growth of the tied transformer's step with B, T, M and d, private and non-private, and where its
time goes. For bench_engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

BASE = {"n": 64, "length": 50, "items": 1000, "dim": 64}
SWEEPS: dict[str, tuple[str, tuple[int, ...]]] = {
    "n": ("records B", (32, 64, 128, 256)),
    "length": ("positions T", (25, 50, 100, 200)),
    "items": ("items M", (500, 1000, 2000, 4000, 8000)),
    "dim": ("dimension d", (32, 64, 128, 256)),
}
Steps = Callable[..., dict[str, Callable[[], None]]]


def median_seconds(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Measures processor time of each kind of step; they take turns."""
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, step in steps.items():
            began = time.process_time()
            step()
            taken[kind].append(time.process_time() - began)
    return {kind: statistics.median(times) for kind, times in taken.items()}


def sweep(steps: Steps, positions: str, rounds: int) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Returns (size, seconds) for each size that grows and each kind of step."""
    grown: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, (_, values) in SWEEPS.items():
        of_name = grown.setdefault(name, {})
        for value in values:
            times = median_seconds(steps(positions=positions, **(BASE | {name: value})), rounds)
            for kind, seconds in times.items():
                of_name.setdefault(kind, []).append((value, seconds))
    return grown


def draw(grown: dict[str, Any], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(grown), figsize=(14, 3.4), constrained_layout=True)
    for axis, (name, of_kind) in zip(axes, grown.items(), strict=True):
        for kind, points in of_kind.items():
            sizes, seconds = zip(*points, strict=True)
            axis.plot(sizes, [1000 * each for each in seconds], marker="o", label=kind)
        axis.set(xscale="log", yscale="log", xlabel=SWEEPS[name][0], xticks=SWEEPS[name][1])
        axis.set_xticks(SWEEPS[name][1], labels=[str(each) for each in SWEEPS[name][1]])
        axis.minorticks_off()
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel("ms a step, processor")
    axes[0].legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def exponents(grown: dict[str, Any]) -> Iterable[str]:
    """Builds the rows of a table: each kind's growth between the two largest sizes, as a power of the size."""
    import math

    for name, of_kind in grown.items():
        powers = []
        for points in of_kind.values():
            (a, before), (b, after) = points[-2:]
            powers.append(f"{math.log(after / before) / math.log(b / a):.2f}")
        yield f"| {SWEEPS[name][0]} | " + " | ".join(powers) + " |"


def shares(steps: Mapping[str, Callable[[], None]]) -> list[str]:
    """Splits each step's time by torch's operations, by their own processor time; returns the report's lines."""
    lines = [
        "## Where the time goes",
        "",
        "Shares of a private step's processor time, by operation; smaller ones are left out.",
        "",
    ]
    for name, step in steps.items():
        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3):
                step()
        found = sorted(profile.key_averages(), key=lambda each: -each.self_cpu_time_total)
        whole = sum(each.self_cpu_time_total for each in found)
        parts = [
            f"{each.key.removeprefix('aten::')} {100 * each.self_cpu_time_total / whole:.0f} %" for each in found[:9]
        ]
        lines += [f"* {name}: {', '.join(parts)}", ""]
    return lines
