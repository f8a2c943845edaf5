"""GAP beside DP-GCN: neighbours' sums with noise, released once before the training (Sajadmanesh et al. 2023).

    python -m benchmarks.graph_aggregates FOLDER    # minutes of one core, resumable; after benchmarks.graphs

Three releases, in turn: an encoder of columns alone; of every id, the noisy sum of the encodings of the nodes that are
offered to it; a classifier of a node's encoding beside its sum. Under the unit of decision 56 a row more or less adds
its encoding, of length 1, to the sums of at most K ids, whoever they are: sensitivity √K, as sums have all that is
offered and leave nothing out. Given the sums, each record of the classifier reads its own row alone. So μ² is
μ²(encoder) + K/σ² + μ²(classifier), exactly. Sums of ids that are no rows are never used.

Nodes of other parts are scored with sums of all their neighbours and without noise, as a caller has them. What that
alone is worth is measured too: a linear model of columns, with all of ε, and at a prediction the sum of its encoding of
the node and of the mean of its neighbours'. That reads no edge in training, and is post-processing of any model.
"""

from __future__ import annotations

import statistics
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.graphs import CELLS, CLASSES, COLUMNS, DELTA, EPSILONS, SEEDS, mean, pages, runs_of, trained
from benchmarks.graphs import RATES as DP_GCN_RATES
from benchmarks.reproduce.runs import REPORTS, Kept, machine
from core.parts.nodes import kept as offered
from core.parts.nodes import number_of
from core.privacy import gdp
from scrimp_server.inline import Data
from worker.data.records import DenseRecords

OFFERS = (4, 16, 64)
SHARES = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, 1 / 4, 1 / 4), (1 / 4, 1 / 2, 1 / 4))  # of μ²
ENCODER_RATE, RATES = 0.1, (0.003, 0.01, 0.03, 0.1, 0.3)  # DP-Adam's
SMOOTHED_RATES = (0.1, 0.3, 1.0, 3.0)
LINEAR, SCORED = {"kind": "linear"}, ("validation", "test")
TASK = {"kind": "classification", "label": "page_type", "classes": list(CLASSES)}
Matrix = NDArray[np.float64]
Setting = tuple[int, tuple[float, float, float], float]

runs = Kept(REPORTS / "graph_aggregates.json.gz")


@cache
def edges(folder: Path, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of nodes that are offered to others, and of those others."""
    ids, lists, *_ = pages(folder)
    at = {number_of(each): place for place, each in enumerate(ids)}
    pairs = [
        (place, at[number])
        for place, (own, named) in enumerate(zip(ids, lists, strict=True))
        for number in offered(own, named, most)
        if number in at
    ]
    one, other = np.array(pairs, dtype=np.int64).T
    return one, other


def sums(encoded: Matrix, there: NDArray[np.bool_], folder: Path, most: int) -> Matrix:
    """Of every node, the sum of the encodings that are offered to it, by nodes that are there."""
    one, other = edges(folder, most)
    found: Matrix = np.zeros_like(encoded)
    np.add.at(found, other[there[one]], encoded[one[there[one]]])
    return found


def unit(rows: Matrix) -> Matrix:
    """Rows of length 1; zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Matrix = rows / np.where(length > 0.0, length, 1.0)
    return scaled


def table(x: NDArray[Any], y: NDArray[np.int64], places: NDArray[np.int64]) -> DenseRecords:
    return DenseRecords(torch.from_numpy(x[places].astype(np.float32)), torch.from_numpy(y[places]))


def columns(train: DenseRecords, width: int) -> Data:
    features = {"kind": "columns", "columns": [f"c{at}" for at in range(width)]}
    return Data(TASK, features, train, train, width, len(CLASSES))


def scores(folder: Path, epsilon: float, setting: Setting, seed: int) -> dict[str, float]:
    """The shares of validation and test nodes that are right."""
    most, shares, rate = setting
    question = {"epsilon": epsilon, "offers": most, "shares": [round(each, 3) for each in shares], "eta": rate}

    def answer() -> dict[str, float]:
        _, _, _, y, parts = pages(folder)
        squared = gdp.mu_from_epsilon(epsilon, DELTA) ** 2
        of = [(each * squared) ** 0.5 for each in shares]
        first, last = (gdp.epsilon_from_mu(of[at], DELTA) for at in (0, 2))
        train = parts["train"]
        encoded, seconds = encoder(folder, first, ENCODER_RATE, seed)
        there = np.zeros(len(y), dtype=bool)
        there[train] = True
        sigma = most**0.5 / of[1]
        noise = sigma * np.random.default_rng([seed, 7]).standard_normal(encoded.shape)
        seen = np.concatenate([encoded, unit(sums(encoded, there, folder, most) + noise)], axis=1)
        own = np.concatenate([encoded, unit(sums(encoded, ~np.zeros_like(there), folder, most))], axis=1)
        ended = trained(columns(table(seen, y, train), seen.shape[1]), LINEAR, last, "dp_adam", rate, seed)
        right = {name: ended.right(table(own, y, parts[name])) for name in SCORED}
        return right | {"seconds": round(seconds + ended.seconds, 2), "sigma": round(sigma, 4)}

    return runs.get(question | {"seed": seed}, answer)


def encoder(folder: Path, epsilon: float, rate: float, seed: int) -> tuple[Matrix, float]:
    """Of every node, the outputs of a model of columns alone, of length 1 around their mean; and the run's seconds."""
    _, _, x, y, parts = pages(folder)
    begun = trained(columns(table(x, y, parts["train"]), COLUMNS), LINEAR, epsilon, "dp_adam", rate, seed)
    outputs = begun.outputs(table(x, y, np.arange(len(y)))).double().numpy().T
    return unit(outputs - outputs.mean(axis=1, keepdims=True)), begun.seconds


def smoothed(folder: Path, epsilon: float, rate: float, seed: int) -> dict[str, float]:
    """The shares that a model of columns has right where predictions are those of a node and of its neighbours."""

    def answer() -> dict[str, float]:
        _, _, _, y, parts = pages(folder)
        encoded, seconds = encoder(folder, epsilon, rate, seed)
        seen = encoded + unit(sums(encoded, np.ones(len(y), dtype=bool), folder, OFFERS[-1]))
        right = seen.argmax(axis=1) == y
        return {"seconds": seconds} | {name: round(float(right[parts[name]].mean()), 5) for name in SCORED}

    return runs.get({"epsilon": epsilon, "smoothed": True, "eta": rate, "seed": seed}, answer)


def chosen(folder: Path, epsilon: float) -> Setting:
    """The setting with the best validation score at seed 0."""
    return max(product(OFFERS, SHARES, RATES), key=lambda setting: scores(folder, epsilon, setting, 0)["validation"])


def rate_of(folder: Path, epsilon: float) -> float:
    """The rate of the smoothed model."""
    return max(SMOOTHED_RATES, key=lambda rate: smoothed(folder, epsilon, rate, 0)["validation"])


def percents(folder: Path, epsilon: float) -> tuple[list[float], list[float]]:
    """Of GAP and of the smoothed model, seed by seed."""
    setting, rate = chosen(folder, epsilon), rate_of(folder, epsilon)
    found = [100 * scores(folder, epsilon, setting, seed)["test"] for seed in SEEDS]
    return found, [100 * smoothed(folder, epsilon, rate, seed)["test"] for seed in SEEDS]


def line(folder: Path, epsilon: float) -> str:
    """One line of the report."""
    most, shares, rate = chosen(folder, epsilon)
    gap, plain = percents(folder, epsilon)
    split = " : ".join(f"{each:.2f}" for each in shares)
    return f"| {epsilon:g} | {mean(plain)} | {rate_of(folder, epsilon):g} | {mean(gap)} | {most} | {split} | {rate:g} |"


HEAD = f"""\
# Aggregates beside DP-GCN

`python -m benchmarks.graph_aggregates FOLDER`, on the nodes, parts, steps and δ of [graphs.md](graphs.md). Percent of
test nodes right, the mean of {len(SEEDS)} seeds ± the standard error of the noise; DP-Adam throughout.

* *Smoothed*: a linear model of columns with all of ε, which reads no edge. A prediction is the class of the largest sum
  of two encodings of length 1: the node's, and that of its neighbours' mean. This is post-processing: it costs nothing.
* *GAP* (Sajadmanesh et al. 2023): an encoder, noisy sums of what is offered to each id, released once, a classifier of
  both. A row adds its encoding, of length 1, to the sums of the K ids that it is offered to, so σ = √K/μ; the three
  releases compose exactly, μ² = Σ μ². The price is of the unit of
  [decision 56](../../docs/decisions/0056-a-nodes-unit-is-its-row.md): sums leave out nothing that is offered, so
  nobody's place is taken when a row goes. K of {", ".join(map(str, OFFERS))}, three splits of μ² and
  {len(RATES)} rates by the validation part at seed 0.

Both score other nodes with sums of all their neighbours, without noise, as a caller has them.

| ε | smoothed | its rate | GAP | K | encoder : sums : classifier | rate |
|---|---|---|---|---|---|---|"""

SAYS = """\
GAP is ahead of DP-GCN by far more than any optimizer, {0:+.1f}, {1:+.1f} and {2:+.1f} points against its best row.
And smoothing is ahead of GAP by {3:.1f}, {4:.1f} and {5:.1f} points: on this graph what a model gains of edges, it
gains when it predicts, from neighbours that its caller has. So GAP is not built: three releases in one job would be
slower and worse than the model without edges whose predictions are averaged. Undecided: a graph in which neighbours
differ from a node, where an average misleads; callers who have few neighbours; DP-GCN with an average of its own; more
than K = {6}, which is the grid's end and the most that is stored."""


def main() -> None:
    torch.set_num_threads(1)
    folder, lines, gaps, leads = Path(sys.argv[1]), [], [], []
    for epsilon in EPSILONS:
        lines.append(line(folder, epsilon))
        print(lines[-1], file=sys.stderr, flush=True)
        gap, plain = (statistics.mean(each) for each in percents(folder, epsilon))
        gaps.append(gap - dp_gcn(folder, epsilon))
        leads.append(plain - gap)
    said = SAYS.format(*gaps, *leads, OFFERS[-1])
    text = "\n".join([HEAD, *lines, "", said, "", f"Machine: {machine()}", ""])
    (REPORTS.parent / "graph_aggregates.md").write_text(text)


def dp_gcn(folder: Path, epsilon: float) -> float:
    """The best mean of DP-GCN's rows, from its kept runs."""
    cells = [each for each in CELLS if each[0] != "columns alone" and each[1] == epsilon]
    return max(statistics.mean(runs_of(folder, *each, name)) for each in cells for name in DP_GCN_RATES)


if __name__ == "__main__":
    main()
