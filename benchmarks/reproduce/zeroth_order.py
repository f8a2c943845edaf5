"""DP-ZO beside LoRA by DP-SGD on one encoder and one small GPT: score, processor time and memory, at equal ε.

    python -m benchmarks.reproduce.zeroth_order [--minutes M]

Rates by a validation split and a seed of its own; other seeds are scored on the test part. Runs are kept in
zeroth_order.json.gz: an interrupted experiment goes on. Writes zeroth_order.md of what is there.

Source: Tang, Panda, Nasr, Mahloujifar & Mittal 2024, "Private fine-tuning of large language models with zeroth-order
optimization", compared in Table 9 of the paper on linear scaling.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from benchmarks.memory import forget_peak, resident_mib
from benchmarks.reproduce import adambc_encoder, language_data
from benchmarks.reproduce.dp2_data import validating
from benchmarks.reproduce.runs import REPORTS, Data, Kept, best, machine, paired, run
from core.contracts.hf import HfModel
from core.parts import model_folder
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.models.hf.hf_model import HfTuning
from worker.noise.directions import Directions

MODELS = language_data.MODELS
EPSILONS, DELTA = (3.0, 1.0, 8.0), 1e-5  # in the order in which they are run
SEARCHED, JUDGED = 0, (1, 2, 3)
ENCODER_TOKENS, GPT_TOKENS = 12, 16
VALIDATED, SCORED = 300, 800
METHODS = {"DP-SGD": "dp_sgd", "DP-ZO": "dp_zo"}


@dataclass(frozen=True)
class Plan:
    """Of one method: the Poisson batches, the steps, and the rates that are tried."""

    batch: int
    steps: int
    rates: tuple[float, ...]


@dataclass(frozen=True)
class Tuned:
    """One model and its set.

    Attributes:
        model: of the JobSpec.
        data: the records, read where a run needs them; with True those of a validation split.
        metric: what runs are compared by, and if more of it is better.
    """

    name: str
    model: dict[str, Any]
    data: Callable[[bool], Data]
    metric: str
    plans: dict[str, Plan]

    @property
    def is_larger_better(self) -> bool:
        return self.metric == "accuracy"

    def job(self, method: str, epsilon: float, rate: float) -> dict[str, Any]:
        """A JobSpec, less its data set and seed."""
        plan = self.plans[method]
        return {
            "model": {"kind": "hf"} | self.model,
            "optimizer": {"kind": METHODS[method], "learning_rate": rate},
            "privacy": {"target_epsilon": epsilon, "target_delta": DELTA},
            "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
            "sampling": {"kind": "poisson", "expected_batch_size": plan.batch},
            "length": {"steps": plan.steps},
            "evaluation": {"points": 1},
        }


@cache
def topics(validation: bool) -> Data:
    """Reuters news of the two most frequent topics, as the encoder's first tokens."""
    return adambc_encoder.topics(adambc_encoder.last_block(), ENCODER_TOKENS, VALIDATED if validation else None, SCORED)


@cache
def brown(validation: bool) -> Data:
    """Brown text, as the small GPT's tokens."""
    language_data.small()
    whole = language_data.data(language_data.SMALL, GPT_TOKENS, SCORED)
    return validating(whole, VALIDATED / len(whole.train)) if validation else whole


ENCODER = Tuned(
    "encoder",
    {"path": "minilm-last-block", "tuning": "lora", "max_length": ENCODER_TOKENS, "lora": {"rank": 1}},
    topics,
    "accuracy",
    {"DP-SGD": Plan(128, 20, (0.5, 2.0, 8.0, 32.0)), "DP-ZO": Plan(16, 200, (0.003, 0.01, 0.03, 0.1, 0.3))},
)
GPT = Tuned(
    "small GPT",
    {"path": language_data.SMALL, "tuning": "lora", "max_length": GPT_TOKENS, "lora": {"rank": 1}},
    brown,
    "loss",
    {"DP-SGD": Plan(128, 20, (0.1, 0.5, 2.0)), "DP-ZO": Plan(16, 200, (0.001, 0.003, 0.01))},
)
Answer = Callable[[], dict[str, Any]]


class OutOfTime(Exception):
    """What is left is for the next call."""


class Lab:
    """Runs, made or remembered. No run begins after `until` (time.monotonic())."""

    def __init__(self, until: float) -> None:
        self._until, self._kept = until, Kept(REPORTS / "zeroth_order.json.gz")

    def _get(self, question: dict[str, Any], answer: Answer) -> dict[str, Any]:
        def in_time() -> dict[str, Any]:
            if time.monotonic() > self._until:
                raise OutOfTime
            return answer()

        return self._kept.get(question, in_time)

    def trained(self, tuned: Tuned, method: str, epsilon: float, rate: float, seed: int) -> dict[str, Any]:
        """One run, and the processor time that it took: scored on the validation split for the seed of the search."""
        job = tuned.job(method, epsilon, rate)

        def answer() -> dict[str, Any]:
            data, began = tuned.data(seed == SEARCHED), time.process_time()
            done = run(data, job, seed=seed).rounded()
            print(f"{tuned.name}, {method}, ε = {epsilon:g}, {rate:g}, {seed}: {_score(done, tuned)}", flush=True)
            return done | {"processor_s": round(time.process_time() - began, 1)}

        return self._get({"model": tuned.name, "job": job, "seed": seed}, answer)

    def rate(self, tuned: Tuned, method: str, epsilon: float) -> float:
        """The one that is best on the validation split."""
        rates = tuned.plans[method].rates
        runs = [(rate, self.trained(tuned, method, epsilon, rate, SEARCHED)) for rate in rates]
        return float(best(runs, tuned.metric, highest=tuned.is_larger_better)[0])

    def cost(self, tuned: Tuned) -> dict[str, Any]:
        """Of a pass over 16 records by each engine: processor seconds of each round, and MiB beyond what is there."""
        return self._get({"cost": tuned.name, "model": tuned.model}, lambda: _cost(tuned))


def _score(done: dict[str, Any], tuned: Tuned) -> float:
    return float(done["metrics"][tuned.metric][-1][1])


def _cost(tuned: Tuned, rows: int = 16, rounds: int = 7) -> dict[str, Any]:
    data, spec = tuned.data(True), HfModel.model_validate({"kind": "hf"} | tuned.model)
    classes = tuple(data.task.get("classes", ()))
    model = HfTuning(model_folder.read(MODELS, spec.path), spec, classes, rows_per_pass=rows)
    parameters, batch = model.init(bytes(range(32))), data.train.select(np.arange(rows))
    backward = Bookkeeping(model.module(), model.record_losses, rows=rows, kind="automatic", max_grad_norm=1.0)
    forward = ZerothOrder(model, Slope(1e-3, "automatic", 1.0), Directions(0))
    sums: dict[str, Callable[[], Any]] = {
        "DP-SGD": partial(backward.private_sum, parameters, batch),
        "DP-ZO": partial(forward.private_sum, parameters, batch),
    }
    times: dict[str, list[float]] = {name: [] for name in sums}
    peaks: dict[str, list[float]] = {name: [] for name in sums}
    for round_ in range(rounds + 1):
        for name, summed in sums.items():
            ctypes.CDLL(None).malloc_trim(0)
            forget_peak()
            resident, began = resident_mib("VmRSS"), time.process_time()
            summed()
            if round_:  # the first one touches its memory for the first time
                times[name].append(time.process_time() - began)
                peaks[name].append(resident_mib("VmHWM") - resident)
    trained = sum(value.numel() for value in parameters.values())
    return {"rows": rows, "trained": trained, "seconds": times, "mib": peaks}


HEAD = f"""\
# Tuning without gradients: DP-ZO beside LoRA by DP-SGD

`python -m benchmarks.reproduce.zeroth_order`. Table 9 of the paper on linear scaling has DP-ZO (Tang et al. 2024). In
small: both methods tune the same LoRA parameters, δ = 1e-5, automatic clipping, C = 1. Rates: the best of a grid on a
validation split of {VALIDATED} training records, by a seed of its own; steps and batches were not searched. Scores:
{SCORED} test records, mean ± deviation of the seeds; differences seed by seed ± standard error. Time is a processor's
for a whole run, scores included. Memory: of a pass over 16 records, beyond the parameters. Runs are kept in
zeroth_order.json.gz. Missing rows were not run.

* **encoder**: MiniLM's last block, LoRA of rank 1 and the classifier, {ENCODER_TOKENS} tokens; two topics of Reuters,
  accuracy in percent; one topic is 61.5 % of the test part. The first blocks alone tell nothing: they leave the
  classifier's token nearly constant.
* **small GPT**: three blocks of 96, pretrained on public Brown text, LoRA of rank 1; loss of a held-out token.

| model, trained | ε | method | steps × batch | rate | seeds | score | ahead of DP-SGD | s a run | MiB |
|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Judged:
    """One method's runs at one ε, in the order of the seeds."""

    method: str
    rate: float
    runs: tuple[dict[str, Any], ...]


def judged(lab: Lab, tuned: Tuned, epsilon: float) -> tuple[list[Judged], bool]:
    """Both methods, as many seeds as both have; and if that is all of them."""
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    rates: dict[str, float] = {}
    is_whole = True
    try:
        rates = {method: lab.rate(tuned, method, epsilon) for method in METHODS}
        for seed in JUDGED:
            for method, rate in rates.items():
                runs[method].append(lab.trained(tuned, method, epsilon, rate, seed))
    except OutOfTime:
        is_whole = False
    seeds = min(map(len, runs.values()))
    return [Judged(method, rates[method], tuple(runs[method][:seeds])) for method in METHODS if seeds], is_whole


def rows_of(tuned: Tuned, epsilon: float, methods: Iterable[Judged], cost: dict[str, Any]) -> list[str]:
    rows, first = [], list[float]()
    scale, digits = (100.0, 1) if tuned.is_larger_better else (1.0, 4)
    for each in methods:
        scores, plan = [scale * _score(done, tuned) for done in each.runs], tuned.plans[each.method]
        first = first or scores
        spread = f" ± {statistics.stdev(scores):.{digits}f}" if len(scores) > 1 else ""
        cells = (
            f"{tuned.name}, {cost['trained']:,}",
            f"{epsilon:g}",
            each.method,
            f"{plan.steps} × {plan.batch}",
            f"{each.rate:g}",
            f"{len(scores)}",
            f"{statistics.mean(scores):.{digits}f}{spread}",
            "–" if each.method == "DP-SGD" else paired(scores, first, digits + 1),
            f"{statistics.mean(done['processor_s'] for done in each.runs):.0f}",
            f"{statistics.median(cost['mib'][each.method]):.0f}",
        )
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
            cost = lab.cost(tuned)
            for epsilon in EPSILONS:
                methods, is_whole = judged(lab, tuned, epsilon)
                rows += rows_of(tuned, epsilon, methods, cost)
                if not is_whole:
                    raise OutOfTime
    except OutOfTime:
        print("Out of time: the same command goes on from here")
    if rows:
        (REPORTS / "zeroth_order.md").write_text("\n".join([HEAD, *rows, "", f"Machine: {machine()}.", ""]))


if __name__ == "__main__":
    main()
