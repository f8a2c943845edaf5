"""The report on language models: tables of what was kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reproduce.language_text import COST, HEAD, READ, SMALL, SMOL
from benchmarks.reproduce.runs import REPORTS, machine

Entries = dict[str, dict[str, Any]]
# Counts in the training part: the groups that are shown, made of powers of two.
SHOWN = ((1, 15), (16, 127), (128, 1023), (1024, 2**40))


def write(entries: Entries) -> Path:
    """The report of what there is so far."""
    sections = {
        "SmolLM2-135M by LoRA": (SMOL, _runs(entries, "smol", "SmolLM2-135M-Instruct")),
        "A small GPT: its head, and LoRA": (SMALL, _runs(entries, "small", "small-gpt-brown")),
        "What a private step costs": (COST, _costs(entries)),
    }
    text = HEAD.format(machine=machine())
    for title, (words, lines) in sections.items():
        text += f"\n## {title}\n\n{words}\n" + ("\n".join(lines) or "Not run yet.") + "\n"
    path = REPORTS / "language.md"
    path.write_text(text + READ, encoding="utf-8")
    return path


def _runs(entries: Entries, which: str, path: str) -> Iterator[str]:
    """The loss before and after, of all tokens and by how frequent they are in the training part."""
    counts = next((entry for question, entry in _questions(entries) if question.get("counts") == path), None)
    asked = [(question, entry) for question, entry in _questions(entries) if question.get("run", "").startswith(which)]
    if counts is None or not asked:
        return
    tokens = [_joined(counts, dict.fromkeys(counts, 1.0), low, high)[1] for low, high in SHOWN]
    names = [f"{low} … {high}" if high < SHOWN[-1][1] else f"{low} or more" for low, high in SHOWN]
    yield "| | steps | ε | σ | loss a record | " + " | ".join(f"tokens seen {name}" for name in names) + " |"
    yield "|---" * (5 + len(SHOWN)) + "|"
    yield "| tokens that are scored | | | | " + "".join(f"| {count:,} " for count in tokens) + "|"
    for question, entry in asked:
        yield _row(question, entry, counts)


def _questions(entries: Entries) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(json.loads(name), entry) for name, entry in entries.items()]


def _row(question: dict[str, Any], entry: dict[str, Any], counts: dict[str, int]) -> str:
    metrics = {name: values[-1][1] for name, values in entry["metrics"].items()}
    what = question["run"].partition(", ")[2]
    optimizer = question["job"]["optimizer"]
    what += f", {optimizer['kind']}, η = {optimizer['learning_rate']:g}"
    start = ("as it is", "", "", "") if what.startswith("before") else ()
    head = start or (what, str(entry["steps"]), f"{entry['epsilon']:.3g}", f"{entry['noise_multiplier']:.3f}")
    groups = [_joined(counts, _group_losses(metrics), low, high)[0] for low, high in SHOWN]
    return f"| {' | '.join(head)} | {metrics['loss']:.3f} | {' | '.join(f'{each:.3f}' for each in groups)} |"


def _group_losses(metrics: dict[str, float]) -> dict[str, float]:
    return {name.partition(":")[2]: value for name, value in metrics.items() if ":" in name}


def _joined(counts: dict[str, int], losses: dict[str, float], low: int, high: int) -> tuple[float, int]:
    """The mean loss of the tokens in the groups between two counts, and how many they are."""
    within = [name for name in losses if low <= int(name.partition("-")[0]) <= high and counts.get(name, 0)]
    tokens = sum(counts[name] for name in within)
    return sum(losses[name] * counts[name] for name in within) / max(1, tokens), tokens


def _costs(entries: Entries) -> Iterator[str]:
    found = [(question, entry) for question, entry in _questions(entries) if "cost" in question]
    if not found:
        return
    yield "| rank | records × tokens | trained | not private, s | private, s | noise, s | private / not |"
    yield "|---|---|---|---|---|---|---|"
    for question, entry in found:
        plain, private, noise = (statistics.median(entry["seconds"][name]) for name in ("plain", "private", "noise"))
        sizes = f"{entry['rows']} × {question['length']}"
        times = f"{plain:.2f} | {private:.2f} | {noise:.3f} | {(private + noise) / plain:.2f}"
        yield f"| {question['rank']} | {sizes} | {entry['trained']:,} | {times} |"
