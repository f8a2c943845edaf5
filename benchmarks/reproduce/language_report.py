"""The report on language models: tables of what was kept, and a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduce.language_text import COST, HEAD, READ, SMALL, SMOL
from benchmarks.reproduce.runs import REPORTS, machine

Entries = dict[str, dict[str, Any]]
Asked = tuple[dict[str, Any], dict[str, Any]]  # what was asked, and what came of it
# Counts in the training part: the groups that are shown, made of powers of two.
SHOWN = ((1, 15), (16, 127), (128, 1023), (1024, 2**40))
NAMES = [f"{low} … {high}" if high < SHOWN[-1][1] else f"{low} or more" for low, high in SHOWN]
OPTIMIZERS = {"dp_sgd": "DP-SGD", "dp_adam": "DP-Adam", "dp_adambc": "DP-AdamBC"}
SMOL_PATH = "SmolLM2-135M-Instruct"
COLOURS = {"dp_sgd": "#55a868", "dp_adam": "#4c72b0", "dp_adambc": "#c44e52"}


def write(entries: Entries) -> Path:
    """The report of what there is so far."""
    asked = [(json.loads(name), entry) for name, entry in entries.items()]
    small, smol = (Runs(asked, which, path) for which, path in (("small", "small-gpt-brown"), ("smol", SMOL_PATH)))
    sections = {
        "SmolLM2-135M by LoRA": (SMOL, smol.rows()),
        "A small GPT: its head, and LoRA": (SMALL, [*small.rows(), "", *small.changes()]),
        "What a private step costs": (COST, _costs(asked)),
    }
    if small.chosen():
        _draw(small)
    text = HEAD.format(machine=machine())
    for title, (words, lines) in sections.items():
        text += f"\n## {title}\n\n{words}\n" + ("\n".join(lines) or "Not run yet.") + "\n"
    path = REPORTS / "language.md"
    path.write_text(text + READ, encoding="utf-8")
    return path


class Runs:
    """The finished runs on one model, and how many tokens of each group are scored."""

    def __init__(self, asked: Sequence[Asked], which: str, path: str) -> None:
        runs = [each for each in asked if each[0].get("run", "").startswith(f"{which}, ")]
        self.before = next((entry for question, entry in runs if question["run"].endswith("before")), None)
        self.runs = sorted(
            (each for each in runs if not each[0]["run"].endswith("before")), key=lambda each: _key(each[0])
        )
        self.counts = next((entry for question, entry in asked if question.get("counts") == path), None)

    def losses(self, entry: dict[str, Any]) -> list[float]:
        """Of all tokens, and of each group that is shown."""
        last = {name: values[-1][1] for name, values in entry["metrics"].items()}
        groups = {name.partition(":")[2]: value for name, value in last.items() if ":" in name}
        return [last["loss"], *(_joined(self.counts or {}, groups, low, high)[0] for low, high in SHOWN)]

    def rows(self) -> Iterator[str]:
        """The loss before and after."""
        if self.counts is None or self.before is None:
            return
        tokens = [_joined(self.counts, dict.fromkeys(self.counts, 1.0), low, high)[1] for low, high in SHOWN]
        columns = " | ".join(f"tokens seen {name}" for name in NAMES)
        yield f"| | batch × steps | seed | ε | σ | loss a record | {columns} |"
        yield "|---" * (6 + len(SHOWN)) + "|"
        yield "| tokens that are scored | | | | | " + "".join(f"| {count:,} " for count in tokens) + "|"
        yield _line("as it is", "", "", "", "", self.losses(self.before))
        for question, entry in self.runs:
            optimizer, batch = question["job"]["optimizer"], question["job"]["sampling"]["expected_batch_size"]
            what = f"{question['run'].partition(', ')[2]}, {OPTIMIZERS[optimizer['kind']]}"
            yield _line(
                f"{what}, η = {optimizer['learning_rate']:g}",
                f"{batch} × {entry['steps']}",
                str(question.get("seed", 0)),
                f"{entry['epsilon']:.3g}",
                f"{entry['noise_multiplier']:.3f}",
                self.losses(entry),
            )

    def chosen(self) -> dict[tuple[str, str], tuple[float, list[list[float]]]]:
        """By what is tuned and optimizer: the best rate, and by how much the losses changed, of each seed."""
        by_rate: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
        for question, entry in self.runs:
            optimizer, tuning = question["job"]["optimizer"], question["run"].partition(", ")[2]
            rates = by_rate.setdefault((tuning, optimizer["kind"]), {})
            rates.setdefault(optimizer["learning_rate"], []).append(entry)
        if self.before is None or self.counts is None:
            return {}
        found, before = {}, self.losses(self.before)
        for name, rates in by_rate.items():
            rate = min(rates, key=lambda each: (-len(rates[each]), rates[each][0]["metrics"]["loss"][-1][1]))
            changes = [[b - a for a, b in zip(before, self.losses(entry), strict=True)] for entry in rates[rate]]
            found[name] = (rate, changes)
        return found

    def changes(self) -> Iterator[str]:
        """What the best rates change, over seeds."""
        if not (chosen := self.chosen()):
            return
        yield "Change of the loss at the best rate, mean ± deviation over the seeds:"
        yield ""
        yield f"| | seeds | a record | {' | '.join(f'tokens seen {name}' for name in NAMES)} |"
        yield "|---" * (3 + len(SHOWN)) + "|"
        for (tuning, kind), (rate, changes) in chosen.items():
            cells = " | ".join(_spread(each) for each in zip(*changes, strict=True))
            yield f"| {tuning}, {OPTIMIZERS[kind]}, η = {rate:g} | {len(changes)} | {cells} |"
        yield ""
        yield "![change of the loss by how frequent tokens are](language_groups.png)"


def _joined(counts: dict[str, int], losses: dict[str, float], low: int, high: int) -> tuple[float, int]:
    """The mean loss of the tokens in the groups between two counts, and how many they are."""
    within = [name for name in losses if low <= int(name.partition("-")[0]) <= high and counts.get(name, 0)]
    tokens = sum(counts[name] for name in within)
    return sum(losses[name] * counts[name] for name in within) / max(1, tokens), tokens


def _key(question: dict[str, Any]) -> tuple[Any, ...]:
    optimizer = question["job"]["optimizer"]
    return question["run"], list(OPTIMIZERS).index(optimizer["kind"]), optimizer["learning_rate"], question.get("seed")


def _line(*cells: Any) -> str:
    *texts, losses = cells
    return f"| {' | '.join(texts)} | {' | '.join(f'{each:.3f}' for each in losses)} |"


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.3f}{deviation}"


def _draw(small: Runs) -> None:
    import matplotlib.pyplot as plt

    chosen = small.chosen()
    tunings = list(dict.fromkeys(tuning for tuning, _ in chosen))
    figure, axes = plt.subplots(1, len(tunings), figsize=(4.5 * len(tunings), 3.4), sharey=True, squeeze=False)
    for axis, tuning in zip(axes[0], tunings, strict=True):
        kinds = [kind for each, kind in chosen if each == tuning]
        for at, kind in enumerate(kinds):
            rate, changes = chosen[tuning, kind]
            groups = list(zip(*changes, strict=True))[1:]
            deviations = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in groups]
            places = [place + 0.25 * (at - (len(kinds) - 1) / 2) for place in range(len(groups))]
            means, label = [statistics.mean(each) for each in groups], f"{OPTIMIZERS[kind]}, η = {rate:g}"
            axis.bar(places, means, 0.25, yerr=deviations, color=COLOURS[kind], label=label, error_kw={"lw": 0.8})
        axis.axhline(0.0, color="black", lw=0.6)
        axis.set_xticks(range(len(NAMES)), NAMES, fontsize=8)
        axis.set_xlabel("times seen in the training part")
        axis.set_title(tuning, fontsize=10)
        axis.legend(fontsize=7, frameon=False)
    axes[0][0].set_ylabel("change of the loss")
    figure.tight_layout()
    figure.savefig(REPORTS / "language_groups.png", dpi=110)
    plt.close(figure)


def _costs(asked: Sequence[Asked]) -> Iterator[str]:
    found = [(question, entry) for question, entry in asked if "cost" in question]
    if not found:
        return
    times = "not private, s | private, s | noise, s | time, private / not"
    yield f"| LoRA | records × tokens | trained | {times} | not private, MiB | private, MiB | memory, private / not |"
    yield "|---" * 10 + "|"
    for question, entry in sorted(found, key=lambda each: (each[1]["trained"], each[0]["length"])):
        lora = f"rank {question['lora']['rank']} at {', '.join(question['lora']['targets'])}"
        plain, private, noise = (statistics.median(entry["seconds"][name]) for name in ("plain", "private", "noise"))
        of = [statistics.median(entry["mib"][name]) for name in ("plain", "private")]
        memory = f"{of[0]:.0f} | {of[1]:.0f} | {of[1] / of[0]:.2f}"
        times = f"{plain:.2f} | {private:.2f} | {noise:.4f} | {(private + noise) / plain:.2f}"
        yield f"| {lora} | {entry['rows']} × {question['length']} | {entry['trained']:,} | {times} | {memory} |"
