"""DP-GCN on a graph of public pages, beside a linear model that sees no edges.

    python -m benchmarks.graphs FOLDER    # two hours of one core, resumable; writes benchmarks/reports/graphs.md

FOLDER holds edges.csv.gz, features.json.gz and labels.csv.gz of Rozemberczki, Allen & Sarkar 2021, "Multi-scale
attributed node embedding". Every run is kept in graphs.json.gz.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.reproduce.runs import REPORTS, Kept, machine, paired, run, uphill
from core.contracts.dataset_spec import ClassificationTask, DatasetSpec, NodeColumns
from core.contracts.extractor import Words
from core.contracts.job_spec import JobSpec, seen_by
from core.parts.hashing import hashed
from core.parts.nodes import kept as offered
from core.parts.nodes import number_of, read, stored_ids
from scrimp_server.inline import Data
from worker.data.records import DenseRecords
from worker.messages import Shape
from worker.models.build import build_model

COLUMNS, KEEP, DELTA = 256, 8, 1e-5
CLASSES = ("company", "government", "politician", "tvshow")
STEPS, SEEDS, EPSILONS = 50, range(1, 6), (3.0, 6.0, 12.0)
MODELS: dict[str, dict[str, Any]] = {
    "columns alone": {"kind": "linear"},
    "gcn, K = 1": {"kind": "gcn", "neighbours": 1},
    "gcn, K = 4": {"kind": "gcn", "neighbours": 4},
    "gcn, two hops, K = 2, hidden 32": {"kind": "gcn", "hops": 2, "neighbours": 2, "hidden": [32]},
    "gcn, K = 4, hidden 32": {"kind": "gcn", "neighbours": 4, "hidden": [32]},
}
TWO, HIDDEN = "gcn, two hops, K = 2, hidden 32", "gcn, K = 4, hidden 32"
# With all optimizers; and with DP-SGD alone, since those runs took too long.
CELLS = [*product([*MODELS][:3], EPSILONS), (TWO, 3.0)]
SHORT = [(TWO, 6.0), (HIDDEN, 12.0), (TWO, 12.0)]
# η for gradients clipped to 1 a record, as wide as no walk should reach; each begins at `FIRST`.
RATES: dict[str, tuple[float, ...]] = {
    "dp_sgd": (0.03, 0.125, 0.5, 2.0, 8.0, 32.0, 128.0, 512.0),
    "dp_adam": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "dp_adambc": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
}
FIRST = {"dp_sgd": 4, "dp_adam": 4, "dp_adambc": 4}
FREE = ("dp_adam", 0.1)
NAMES = {"dp_sgd": "DP-SGD", "dp_adam": "DP-Adam", "dp_adambc": "DP-AdamBC"}
PARTS = {"train": 0.6, "validation": 0.2, "test": 0.2}

HEAD = f"""\
# DP-GCN on a graph of pages

`python -m benchmarks.graphs FOLDER`. 22,470 public pages, 171,002 mutual links, {len(CLASSES)} classes; a page's words
hashed into {COLUMNS} columns. 60 % of the nodes train, 20 % validate, 20 % test, one draw. {STEPS} full batches,
δ = {DELTA:g}; a record's gradient is clipped to 1, so C = 2N − 1. Trees of the training part hold its nodes alone, as
in the service; the others are scored with all their neighbours, as a caller's predictions are. In every cell each
optimizer has its rate by the validation part at seed 0: a walk uphill on a grid of {len(RATES["dp_sgd"])} rates, a
factor of 4 (DP-SGD) or 3 apart. Percent of test nodes right, the mean of {len(SEEDS)} seeds ± the standard error of the
noise.

| model | ε | {" | ".join(NAMES.values())} | DP-AdamBC − DP-Adam | DP-Adam − DP-SGD |
|---|---|---|---|---|---|---|"""

SAYS = """\
DP-AdamBC is ahead of DP-Adam in one cell of ten, two hops at ε = 3, where all are eight points behind columns alone;
it is level or behind elsewhere. Rates are no longer at the grid's end, and that changed an order: DP-SGD and DP-Adam
are level, within half a point, but for two hops. Edges pay in training where the noise of their reach is small: at
ε = 12 four neighbours are two points ahead of columns alone, at 6 one neighbour is level, and at 3 columns alone are
ahead. Two hops (13 c = C) are behind columns alone at every ε, and a hidden layer costs four neighbours 0.9 points at
12. At the bottom of the table DP-SGD ran alone: the other optimizers there are undecided, as is K above 4.

Edges pay far more where no ε is spent on them: a model of columns alone, averaged over a caller's neighbours when it
predicts, is ahead of every row here by more than six points ([aggregates](graph_aggregates.md)). Times: not measured
quietly."""

kept = Kept(REPORTS / "graphs.json.gz")


@dataclass(frozen=True)
class Graph(Data):
    """The training part as a model reads it."""

    seen: NodeColumns | None = None

    def spec(self) -> DatasetSpec:
        """See Data.spec: as the model reads it."""
        return super().spec().model_copy(update={"features": self.seen})


@cache
def pages(folder: Path) -> tuple[list[str], list[list[str]], NDArray[np.float32], NDArray[np.int64], dict[str, Any]]:
    """Ids, lists, columns, labels, and the places of the parts."""

    def rows(name: str) -> list[list[str]]:
        text = gzip.decompress((folder / name).read_bytes()).decode()
        return list(csv.reader(io.StringIO(text)))[1:]

    labels = {row[0]: row[1] for row in rows("labels.csv.gz")}
    words = json.loads(gzip.decompress((folder / "features.json.gz").read_bytes()))
    lists = defaultdict[str, list[str]](list)
    for one, other in rows("edges.csv.gz"):
        lists[one].append(other)
        lists[other].append(one)
    ids = sorted(labels, key=int)
    csr = hashed([" ".join(f"w{word}" for word in words.get(each, ())) for each in ids], Words(buckets=COLUMNS))
    columns = np.zeros(csr.shape, dtype=np.float32)
    columns[np.repeat(np.arange(len(ids)), np.diff(csr.indptr)), csr.indices] = csr.data
    y = np.array([CLASSES.index(labels[each]) for each in ids])
    order, ends = np.random.default_rng(0).permutation(len(ids)), np.cumsum([*PARTS.values()]) * len(ids)
    parts = dict(zip(PARTS, np.split(order, ends[:-1].astype(int)), strict=True))
    return ids, [lists[each] for each in ids], columns, y, parts


@cache
def stored(folder: Path) -> NDArray[np.float32]:
    """All nodes, as a part stores them."""
    ids, lists, columns, _, _ = pages(folder)
    numbers = [[number_of(each), *offered(each, named, KEEP)] for each, named in zip(ids, lists, strict=True)]
    return np.concatenate([columns, stored_ids(numbers, KEEP).astype(np.float32)], axis=1)


@cache
def data(folder: Path, model: str) -> tuple[Graph, dict[str, DenseRecords]]:
    """The training part, and the others with all their neighbours."""
    features = {"kind": "nodes", "columns": [f"w{at}" for at in range(COLUMNS)], "keep": KEEP}
    asked = JobSpec.model_validate({"dataset": "ds_0", "model": MODELS[model], "privacy": None}).model
    seen = seen_by(asked, NodeColumns.model_validate(features))
    if not isinstance(seen, NodeColumns):
        raise TypeError("nodes are read as nodes")
    part, (_, _, _, y, parts) = stored(folder), pages(folder)

    def records(x: NDArray[np.float32], places: NDArray[np.int64]) -> DenseRecords:
        return DenseRecords(torch.from_numpy(x), torch.from_numpy(y[places]))

    everything = read(part, COLUMNS, KEEP, seen.tree)
    train = records(read(part[parts["train"]], COLUMNS, KEEP, seen.tree), parts["train"])
    others = {name: records(everything[parts[name]], parts[name]) for name in ("validation", "test")}
    task = {"kind": "classification", "label": "page_type", "classes": list(CLASSES)}
    width = seen.numbers(COLUMNS)
    return Graph(task, features, train, others["validation"], width, len(CLASSES), seen=seen), others


Outputs = Callable[[DenseRecords], Tensor]


@dataclass(frozen=True)
class Trained:
    """A model, and what its run said."""

    outputs: Outputs
    seconds: float
    sigma: float

    def right(self, records: DenseRecords) -> float:
        """The share of the records whose class is the largest output."""
        return round(float((self.outputs(records).argmax(dim=0) == records.labels).double().mean()), 5)


def trained(of: Data, model: dict[str, Any], epsilon: float | None, optimizer: str, rate: float, seed: int) -> Trained:
    """One run of so many full batches; a record's gradient is clipped to 1. No ε: without clipping and noise."""
    spec = JobSpec.model_validate({"dataset": "ds_0", "model": model, "privacy": None})
    job = {
        "model": model,
        "optimizer": {"kind": optimizer, "learning_rate": rate} | ({"momentum": 0.9} if optimizer == "dp_sgd" else {}),
        "sampling": {"kind": "full_batch"},
        "length": {"steps": STEPS},
        "privacy": None,
        "evaluation": None,
    }
    if epsilon is not None:
        job["clipping"] = {"kind": "flat", "max_grad_norm": float(spec.model.reach)}
        job["privacy"] = {"target_epsilon": epsilon, "target_delta": DELTA}
    done = run(of, job, seed=seed)
    shape = Shape(records_train=1, records_holdout=0, features=of.features_count, outputs=of.outputs, sparse=False)
    task = ClassificationTask.model_validate(of.task)
    built = build_model(spec.model, shape, task, of.spec().features, "float32", 96)
    return Trained(
        lambda records: built.forward(done.parameters, records), round(done.seconds, 2), done.noise_multiplier or 0.0
    )


def scores(folder: Path, model: str, epsilon: float | None, optimizer: str, rate: float, seed: int) -> dict[str, float]:
    """The shares of validation and test nodes that one run has right."""
    question = {"model": model, "epsilon": epsilon, "optimizer": optimizer, "eta": rate, "seed": seed}

    def answer() -> dict[str, float]:
        graph, others = data(folder, model)
        done = trained(graph, MODELS[model], epsilon, optimizer, rate, seed)
        right = {name: done.right(records) for name, records in others.items()}
        return {"seconds": done.seconds, "sigma": round(done.sigma, 4)} | right

    return kept.get(question, answer)


def rate_of(folder: Path, model: str, epsilon: float, optimizer: str) -> float:
    """The rate with the best validation score at one ε, as far as a walk finds it."""
    return uphill(
        lambda rate: scores(folder, model, epsilon, optimizer, rate, 0)["validation"],
        RATES[optimizer],
        FIRST[optimizer],
    )


def optimizers(model: str, epsilon: float) -> list[str]:
    """Those that a cell has."""
    return ["dp_sgd"] if (model, epsilon) in SHORT else [*RATES]


def runs_of(folder: Path, model: str, epsilon: float, optimizer: str) -> list[float]:
    """The percents of test nodes that a cell has right, seed by seed."""
    rate = rate_of(folder, model, epsilon, optimizer)
    return [100 * scores(folder, model, epsilon, optimizer, rate, seed)["test"] for seed in SEEDS]


def row(folder: Path, model: str, epsilon: float) -> str:
    """One line of the table."""
    found = {name: runs_of(folder, model, epsilon, name) for name in optimizers(model, epsilon)}
    if len(found) == 1:
        return f"| {model} | {epsilon:g} | {mean(found['dp_sgd'])} | – | – | – | – |"
    gaps = [paired(found["dp_adambc"], found["dp_adam"]), paired(found["dp_adam"], found["dp_sgd"])]
    return f"| {model} | {epsilon:g} | {' | '.join((*map(mean, found.values()), *gaps))} |"


def mean(percents: Sequence[float]) -> str:
    """Of some seeds, with its standard error."""
    return f"{statistics.mean(percents):.1f} ± {statistics.stdev(percents) / len(percents) ** 0.5:.1f}"


def main() -> None:
    torch.set_num_threads(1)
    folder, lines, rates = Path(sys.argv[1]), [], []
    for model, epsilon in (*CELLS, *SHORT):
        lines.append(row(folder, model, epsilon))
        print(lines[-1], file=sys.stderr, flush=True)
        chosen = ", ".join(f"{rate_of(folder, model, epsilon, name):g}" for name in optimizers(model, epsilon))
        rates.append(f"{model} at {epsilon:g}: {chosen}")
    free = ", ".join(f"{model} {100 * scores(folder, model, None, *FREE, 0)['test']:.1f}" for model in MODELS)
    lines += ["", f"Without privacy, {NAMES[FREE[0]]} at {FREE[1]:g}, one run each: {free} %.", "", SAYS]
    told = f"Rates ({', '.join(NAMES.values())}): {'; '.join(rates)}."
    text = "\n".join([HEAD, *lines, "", told, "", f"Machine: {machine()}", ""])
    (REPORTS.parent / "graphs.md").write_text(text)


if __name__ == "__main__":
    main()
