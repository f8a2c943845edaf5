"""DP-ZO beside LoRA by DP-SGD on one encoder and one small GPT: score, processor time and memory, at equal ε.

    python -m benchmarks.reproduce.zeroth_order [--minutes M]

Rates by the first seed, on the held-out records that all seeds are scored on. Runs are kept in zeroth_order.json.gz: an
interrupted experiment goes on. Writes zeroth_order.md of the models whose runs are all there.

Source: Tang, Panda, Nasr, Mahloujifar & Mittal 2024, "Private fine-tuning of large language models with zeroth-order
optimization", compared in Table 9 of the paper on linear scaling.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.memory import forget_peak, resident_mib
from benchmarks.reproduce import adambc_encoder, language_data
from benchmarks.reproduce.runs import REPORTS, ROOT, Data, Kept, best, machine, paired, run
from core.contracts.hf import HfModel
from core.parts import model_folder
from core.parts.stored_records import StoredPart, Texts
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.data.loaded_parts import records_of
from worker.data.sequence_records import SequenceRecords
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tokens import Tokens
from worker.noise.directions import Directions

sys.path.append(str(ROOT / "scripts"))
from fetch_data import fetch_news

MODELS = language_data.MODELS
EPSILON, DELTA, SEEDS = 3.0, 1e-5, (0, 1, 2)
TOPICS, SCORED = ("acq", "earn"), 400
METHODS = {"DP-SGD": "dp_sgd", "DP-ZO": "dp_zo"}


@dataclass(frozen=True)
class Tuned:
    """One model and its set.

    Attributes:
        model: of the JobSpec.
        data: the records, read where a run needs them.
        metric: what runs are compared by, and if more of it is better.
        batch, steps: of Poisson sampling.
        rates: tried for each method.
    """

    name: str
    model: dict[str, Any]
    data: Callable[[], Data]
    metric: str
    batch: int
    steps: int
    rates: dict[str, tuple[float, ...]]

    @property
    def is_larger_better(self) -> bool:
        return self.metric == "accuracy"

    def job(self, method: str, rate: float) -> dict[str, Any]:
        """A JobSpec, less its data set and seed."""
        return {
            "model": {"kind": "hf"} | self.model,
            "optimizer": {"kind": METHODS[method], "learning_rate": rate},
            "privacy": {"target_epsilon": EPSILON, "target_delta": DELTA},
            "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
            "sampling": {"kind": "poisson", "expected_batch_size": self.batch},
            "length": {"steps": self.steps},
            "evaluation": {"points": 1},
        }


@cache
def topics() -> Data:
    """Reuters news of the two most frequent topics, as the encoder's first tokens."""
    with fetch_news().open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["label"] in TOPICS]
    tokens = Tokens(model_folder.read(MODELS, adambc_encoder.folder(2)), adambc_encoder.LENGTH)

    def part(of: list[dict[str, str]]) -> SequenceRecords:
        labels = np.array([TOPICS.index(row["label"]) for row in of])
        records = records_of(tokens.of_part(StoredPart(Texts.of([row["text"] for row in of]), labels), lambda: None))
        assert isinstance(records, SequenceRecords)
        return records

    train = part([row for row in rows if row["part"] == "train"])
    test = part([row for row in rows if row["part"] == "test"])
    places = np.linspace(0, len(test) - 1, SCORED).astype(np.int64)
    task = {"kind": "classification", "label": "label", "classes": list(TOPICS)}
    features = {"kind": "text", "column": "text"}
    return Data(task, features, train, test.select(places), 1, len(TOPICS), models_root=MODELS)


@cache
def brown() -> Data:
    """Brown text, as the small GPT's tokens."""
    language_data.small()
    return language_data.data(language_data.SMALL, language_data.LENGTH, SCORED)


ENCODER = Tuned(
    "encoder",
    {"path": "minilm-2-blocks", "tuning": "lora", "max_length": adambc_encoder.LENGTH, "lora": {"rank": 4}},
    topics,
    "accuracy",
    batch=192,
    steps=24,
    rates={"DP-SGD": (0.3, 1.0, 3.0), "DP-ZO": (0.001, 0.003, 0.01)},
)
GPT = Tuned(
    "small GPT",
    {"path": language_data.SMALL, "tuning": "lora", "max_length": language_data.LENGTH, "lora": {"rank": 1}},
    brown,
    "loss",
    batch=256,
    steps=40,
    rates={"DP-SGD": (0.1, 1.0), "DP-ZO": (0.001, 0.003, 0.01)},
)


class OutOfTime(Exception):
    """What is left is for the next call."""


class Lab:
    """Runs, made or remembered. No run begins after `until` (time.monotonic())."""

    def __init__(self, until: float) -> None:
        self._until, self._kept = until, Kept(REPORTS / "zeroth_order.json.gz")

    def _get(self, question: dict[str, Any], answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        def in_time() -> dict[str, Any]:
            if time.monotonic() > self._until:
                raise OutOfTime
            return answer()

        return self._kept.get(question, in_time)

    def trained(self, tuned: Tuned, method: str, rate: float, seed: int) -> dict[str, Any]:
        """One run, and the processor time that it took."""
        job = tuned.job(method, rate)

        def answer() -> dict[str, Any]:
            began = time.process_time()
            done = run(tuned.data(), job, seed=seed).rounded()
            print(f"{tuned.name}, {method}, {rate:g}, {seed}: {done['metrics'][tuned.metric][-1][1]}", flush=True)
            return done | {"processor_s": round(time.process_time() - began, 1)}

        tuned.data()
        return self._get({"model": tuned.name, "job": job, "seed": seed}, answer)

    def scores(self, tuned: Tuned, method: str) -> tuple[float, list[float]]:
        """The rate that is the best for the first seed, and each seed's score with it."""
        runs = [(rate, self.trained(tuned, method, rate, SEEDS[0])) for rate in tuned.rates[method]]
        rate, _ = best(runs, tuned.metric, highest=tuned.is_larger_better)
        of_seeds = [self.trained(tuned, method, rate, seed) for seed in SEEDS]
        return rate, [float(done["metrics"][tuned.metric][-1][1]) for done in of_seeds]

    def cost(self, tuned: Tuned) -> dict[str, Any]:
        """Of a pass over 16 records by each engine: processor seconds of each round, and MiB beyond what is there."""
        return self._get({"cost": tuned.name, "model": tuned.model}, lambda: _cost(tuned))


def _cost(tuned: Tuned, rows: int = 16, rounds: int = 7) -> dict[str, Any]:
    data, spec = tuned.data(), HfModel.model_validate({"kind": "hf"} | tuned.model)
    classes = tuple(data.task.get("classes", ()))
    model = HfTuning(model_folder.read(MODELS, spec.path), spec, classes, rows_per_pass=rows)
    parameters, batch = model.init(bytes(range(32))), data.train.select(np.arange(rows))
    backward = Bookkeeping(model.module(), model.record_losses, rows=rows, kind="automatic", max_grad_norm=1.0)
    forward = ZerothOrder(model, Slope(1e-3, "automatic", 1.0), Directions(0))
    engines = {"DP-SGD": backward, "DP-ZO": forward}
    times: dict[str, list[float]] = {name: [] for name in engines}
    peaks: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(rounds + 1):
        for name, engine in engines.items():
            ctypes.CDLL(None).malloc_trim(0)
            forget_peak()
            resident, began = resident_mib("VmRSS"), time.process_time()
            engine.private_sum(parameters, batch)
            if round_:  # the first one touches its memory for the first time
                times[name].append(time.process_time() - began)
                peaks[name].append(resident_mib("VmHWM") - resident)
    trained = sum(value.numel() for value in parameters.values())
    return {"rows": rows, "trained": trained, "seconds": times, "mib": peaks}


HEAD = f"""\
# Tuning without gradients: DP-ZO beside LoRA by DP-SGD

`python -m benchmarks.reproduce.zeroth_order`. Table 9 of the paper on linear scaling compares with DP-ZO (Tang et al.
2024), in small: both methods tune the same LoRA parameters, with equal noise and batches, ε = {EPSILON:g} at δ = 1e-5.
Clipping is automatic, C = 1. Rates by the first seed, on the records that all are scored on, which favours both.
{len(SEEDS)} seeds: mean ± deviation. Cost: a pass over 16 records by each method's engine, least of seven rounds:
processor time, and memory beyond the parameters. Runs are kept in zeroth_order.json.gz.

* **encoder**: MiniLM's first two blocks, LoRA of rank 4, 16 tokens; two topics of Reuters, accuracy in percent.
* **small GPT**: three blocks of 96, pretrained on public Brown text, LoRA of rank 1; loss of a held-out token.

| model | method | rate | score | ahead of DP-SGD, seed by seed | ms a record | MiB |
|---|---|---|---|---|---|---|"""


def rows_of(lab: Lab, tuned: Tuned) -> list[str]:
    cost, first, rows = lab.cost(tuned), list[float](), []
    for method in METHODS:
        rate, values = lab.scores(tuned, method)
        first = first or values
        scale, digits = (100.0, 1) if tuned.is_larger_better else (1.0, 4)
        shown = [scale * value for value in values]
        score = f"{statistics.mean(shown):.{digits}f} ± {statistics.stdev(shown):.{digits}f}"
        ahead = "–" if method == "DP-SGD" else paired(shown, [scale * value for value in first], digits + 1)
        ms = 1000.0 * min(cost["seconds"][method]) / cost["rows"]
        mib = statistics.median(cost["mib"][method])
        cells = (f"{tuned.name}, {cost['trained']:,}", method, f"{rate:g}", score, ahead, f"{ms:.2f}", f"{mib:.0f}")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6, help="no run is begun after so many")
    lab = Lab(time.monotonic() + 60.0 * parser.parse_args().minutes)
    torch.set_num_threads(1)
    rows: list[str] = []
    try:
        for tuned in (ENCODER, GPT):
            rows += rows_of(lab, tuned)
    except OutOfTime:
        print("Out of time: the same command goes on from here")
    if rows:
        (REPORTS / "zeroth_order.md").write_text("\n".join([HEAD, *rows, "", f"Machine: {machine()}.", ""]))


if __name__ == "__main__":
    main()
