"""The report on Barcode MNIST: tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.reproduce.four import OPTIMIZERS, Tried, cell, draw, groups, lowest_loss, table
from benchmarks.reproduce.runs import REPORTS, machine

SIZES = ("10 classes of 350", "20 of 50", "100 of 20", "200 of 10")
PAPER = {"DP-GD": ("97.6", "3.9", "6.6"), "DP-GDM": ("91.7", "4.8", "4.1")}
PAPER |= {"DP-Adam": ("97.4", "5.9", "6.3"), "DP-AdamBC": ("96.5", "3.6", "11.5")}


def write_report(tried: Tried) -> Path:
    """Returns the report's path."""
    chosen = lowest_loss(tried)
    runs = {name: [run for setting, run in settings if setting == chosen[name]] for name, settings in tried.items()}
    for metric in ("loss", "accuracy"):
        draw(runs, SIZES, metric, float, REPORTS / f"barcode_mnist_{metric}.png", "step")
    first = next(iter(runs.values()))[0]
    lines = [
        *HEAD.format(machine=machine(), steps=first["steps"], epsilon=first["epsilon"]).splitlines(),
        "",
        *_beside_the_paper(runs),
        "",
        "## By class size",
        "",
        *table(runs, chosen, SIZES),
        "",
        "![loss](barcode_mnist_loss.png)",
        "",
        "![accuracy](barcode_mnist_accuracy.png)",
        "",
        "## What was tried",
        "",
        *_tried(tried),
        "",
        *READING.splitlines(),
    ]
    path = REPORTS / "barcode_mnist.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _beside_the_paper(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    most, *_, least = groups(next(iter(runs.values()))[0])
    rows = ["| | digits, accuracy | paper | 200 classes of 10, loss | paper | 200 classes of 10, accuracy | paper |"]
    rows.append("|---|---|---|---|---|---|---|")
    for name in OPTIMIZERS:
        ours = [cell(runs[name], metric) for metric in (f"accuracy:{most}", f"loss:{least}", f"accuracy:{least}")]
        pairs = [f"{mine} | {theirs}" for mine, theirs in zip(ours, PAPER[name], strict=True)]
        rows.append(f"| {name} | " + " | ".join(pairs) + " |")
    return rows


def _tried(tried: Tried) -> list[str]:
    rows = ["| | rate | loss | accuracy | loss, 200 of 10 | accuracy, 200 of 10 |", "|---|---|---|---|---|---|"]
    for name, settings in tried.items():
        for setting, run in settings:
            least = groups(run)[-1]
            cells = [cell([run], metric) for metric in ("loss", "accuracy", f"loss:{least}", f"accuracy:{least}")]
            rows.append(f"| {name} | {setting} | " + " | ".join(cells) + " |")
    return rows


HEAD = """# Barcode MNIST: rare classes in a convolutional network
"""
READING = """## What to take from it
"""
