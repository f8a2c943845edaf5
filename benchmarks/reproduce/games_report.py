"""The report of DPFormer's comparison on Amazon video games: whole rounds alone, one seed of every model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reproduce.runs import REPORTS, machine, paired

TIED = "Transformer"
Scores = tuple[float, float]  # NDCG@10 and HIT@10, in per cent
# NDCG@10 / HIT@10 in %, on Amazon games, by ε: the paper's Table 1.
PAPER = {TIED: {5.0: "1.37 / 2.47", 8.0: "1.54 / 2.77"}, "DPFormer, paper": {5.0: "1.64 / 3.01", 8.0: "1.98 / 3.70"}}

TEXT = """# DPFormer on Amazon video games

`make reproduce-dpformer DATA=FILE`, FILE as SASRec prepared it (`user item` a line, in the order of time; 31,013
users). It is not part of this project. Every run is kept in dpformer_games.json.gz: an interrupted experiment goes on.

**Data.** The most popular items, and users with five or more events among them. The list of items is counted on the
whole file and is public. Each user's last item is held out; HIT@10 and NDCG@10 rank all items, seen ones too, and ties
count against us. Of 1,000 items: 7,325 users; of 4,000: 16,483. *popular* ranks by all training events, *popular, by
last items* by each training sequence's last one.

**Training.** Dimension 32, 2 blocks and 1 head (or one recurrent layer), the last 8 items, dropout 0.2, loss at all
positions; every model but "untied" scores items by the matrix that embeds them, the GRU too. DP-Adam, weight decay
1e-5, warm-up over 20 % of 30 steps and then linearly down, all users in each step, automatic clipping with C = 1, δ =
1e-4. One user is one record.

**Rates** are searched for each model: on a validation split (each user's last item but one held out, the last one left
out), by one seed of its own, uphill in steps of 2 from 0.03 to the first fall. `logits` takes the tied transformer's
rate: at the two rates tried for both, their scores differ by 0.02 at most. The scores below are of other seeds, on the
last items. Below and above ε = 8 `paper` takes the tied transformer's rate too: at ε = 8 they have the same one, each
searched. `paper` has the paper's form and units (scale 1, not renormalized), `logits` ours (renormalized, scale the
learning rate: what one step adds).
{settings}
## What is decided, and what is not

{verdict}

Machine: {machine}; busy with other work.
"""


@dataclass(frozen=True)
class Found:
    """A setting's results.

    Attributes:
        rates: of each model, as searched.
        edges: models whose rate is the grid's lowest or highest.
        rounds: by seed, each model's scores.
        popular: of rankings by popularity, by their names.
        rare: by seed, each model's NDCG of the users whose last item is in the less popular half; None: an older run.
    """

    items: int
    epsilon: float
    rates: Mapping[str, float]
    edges: frozenset[str]
    rounds: Mapping[int, Mapping[str, Scores]]
    popular: Mapping[str, Scores]
    rare: Mapping[int, Mapping[str, float | None]]


def write(found: Sequence[Found], plain: Scores | None, verdict: str) -> Path:
    """The report.

    Args:
        plain: the tied transformer without privacy in the first setting; None: it was not run.
        verdict: what is decided.
    """
    settings = "".join(_setting(each, plain if at == 0 else None) for at, each in enumerate(found))
    path = REPORTS / "dpformer_games.md"
    path.write_text(TEXT.format(settings=settings, verdict=verdict.strip(), machine=machine()), encoding="utf-8")
    return path


def _setting(found: Found, plain: Scores | None) -> str:
    seeds = len(found.rounds)
    lines = [
        f"\n## {found.items:,} items, ε = {found.epsilon:g}",
        "",
        f"Seeds: {seeds}. Mean ± standard deviation, in per cent; difference of NDCG@10 from the tied transformer's, "
        "seed by seed: mean ± standard error.",
        "",
        "| | rate | NDCG@10 | HIT@10 | difference | of each seed | the paper |",
        "|---|---|---|---|---|---|---|",
        *(f"| {name} | | {ndcg:.2f} | {hit:.2f} | | | |" for name, (ndcg, hit) in found.popular.items()),
    ]
    for name, rate in found.rates.items():
        columns = [[scores[name][at] for scores in found.rounds.values()] for at in (0, 1)]
        tied = [scores[TIED][0] for scores in found.rounds.values()]
        gap = "" if name == TIED else paired(columns[0], tied)
        each = "" if name == TIED else ", ".join(f"{a - b:+.2f}" for a, b in zip(columns[0], tied, strict=True))
        paper = PAPER.get(name, {}).get(found.epsilon, "")
        mark = "*" if name in found.edges else ""
        cells = [name, f"{rate:g}{mark}", *(map(_spread, columns)), gap, each, paper]
        lines.append("| " + " | ".join(cells) + " |")
    lines += _rare(found)
    if plain is not None:
        lines.append(f"| {TIED}, without privacy, one seed | | {plain[0]:.2f} | {plain[1]:.2f} | | | |")
    if found.edges:
        lines.append("\n\\*: the grid's end.")
    return "\n".join(lines) + "\n"


def _rare(found: Found) -> list[str]:
    """NDCG of the less popular half, where every run has it."""
    columns = {
        name: [score for scores in found.rare.values() if (score := scores[name]) is not None] for name in found.rates
    }
    if any(len(scores) < len(found.rounds) for scores in columns.values()):
        return []
    texts = [
        f"{name} {_spread(scores)}" + ("" if name == TIED else f" ({paired(scores, columns[TIED])})")
        for name, scores in columns.items()
    ]
    return ["", "NDCG@10 of the users whose last item is in the less popular half: " + ", ".join(texts) + "."]


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
