"""Measures the cost of privacy and of the noise in a step, and the accuracy at an ε. Writes reports/training.md.

Private steps as jobs run them and steps of plain torch in float32 take turns in one process, so that both see the same
machine. Data: the real
IMDB reviews (sparse), if they can be downloaded; otherwise a substitute of the same shape, and the report says so. The
dense data are synthetic.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import platform
import statistics
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
import torch  # noqa: E402

from core.contracts.dataset_spec import HashedText, Tensor  # noqa: E402
from core.contracts.job_spec import JobSpec  # noqa: E402
from core.parts.hashing import hashed  # noqa: E402
from core.privacy.gdp import mu_from_epsilon  # noqa: E402
from core.privacy.numerics import Numerics, PublicSizes, numerics_of  # noqa: E402
from scrimp_server.inline import slots_for  # noqa: E402
from worker.clipping.linear_clipping import LinearClipping, LinearGradient  # noqa: E402
from worker.clipping.totals import Grid  # noqa: E402
from worker.data.passes import Prepared  # noqa: E402
from worker.data.records import DenseRecords, Records, SparseRecords  # noqa: E402
from worker.data.secret_slots import Slotted  # noqa: E402
from worker.models.linear import Linear  # noqa: E402
from worker.noise.gaussian import GaussianRelease, NoisedGradient, PublicRelease  # noqa: E402
from worker.noise.secret_places import WHOLE_DATA, RandomOrder  # noqa: E402
from worker.optimizers.base import StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_sgd import DpSgd  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "training.md"
BUCKETS, RECORDS, DELTA = 32768, 20_000, 1e-5
# (ε, T, η, C): found by a sweep on these very data, which are public; full batch, momentum 0.9, free step, no bias.
SETTINGS = [(1.0, 50, 20.0, 0.5), (2.5, 50, 40.0, 0.5), (3.0, 50, 40.0, 0.5)]
WITHOUT_PRIVACY = [(50, 100.0), (50, 300.0), (200, 30.0), (200, 100.0), (200, 300.0)]  # steps, rate
SPLITS = 10


PARTS = ("step", "gradient", "release", "update", "processor")


def key(name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


class Reviews:
    """Hashed reviews, with a new split for each key: a fifth is held out, by a keyed hash of each review's content."""

    def __init__(self, matrix: Any, labels: np.ndarray, contents: list[bytes], what: str) -> None:
        self.matrix, self.labels, self.contents, self.what = matrix, labels, contents, what

    def split(self, number: int) -> tuple[Records, Records]:
        hashes = [hashlib.blake2b(each, key=key(number)).digest() for each in self.contents]
        held = np.array([int.from_bytes(each[:8], "big") < 2**64 / 5 for each in hashes])
        train, holdout = (
            SparseRecords(self.matrix[mask], torch.from_numpy(self.labels[mask])) for mask in (~held, held)
        )
        return train, holdout


def reviews() -> Reviews:
    try:
        from fetch_data import fetch_reviews

        with fetch_reviews().open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except Exception as error:
        what = f"a synthetic STAND-IN for the IMDB reviews, which could not be fetched ({type(error).__name__})"
        return stand_in(what)
    x = hashed([row["text"] for row in rows], HashedText(column="text", buckets=BUCKETS))
    matrix = scipy.sparse.csr_matrix((x.data, x.indices, x.indptr), shape=x.shape)
    labels = np.array([int(row["label"]) for row in rows])
    return Reviews(matrix, labels, [(row["text"] + row["label"]).encode() for row in rows], "25,000 IMDB reviews")


def stand_in(what: str) -> Reviews:
    rng = np.random.default_rng(0)
    matrix = scipy.sparse.random(25_000, BUCKETS, density=138 / BUCKETS, format="csr", dtype=np.float32, rng=rng)
    matrix.data[:] = 1.0  # words that are present or not
    labels = (matrix @ rng.normal(size=BUCKETS) > 0).astype(np.int64)
    return Reviews(matrix, labels, [str(number).encode() for number in range(25_000)], what)


def dense(records: int, features: int) -> Records:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(records, features, generator=generator)
    return DenseRecords(x, torch.randint(0, 10, (records,), generator=generator))


def numerics(model: Linear, records: Records) -> Numerics:
    """Returns the numerics that a job on these records gets at admission."""
    job = {
        "dataset": "ds_1",
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 1},
    }
    slots, sparse = slots_for(len(records)).train, isinstance(records, SparseRecords)
    sizes = PublicSizes(len(records), 1, model.features, model.outputs, sparse, slots)
    return numerics_of(JobSpec.model_validate(job), sizes, Tensor(kind="tensor", array="x"))


def as_admitted(model: Linear, records: Records) -> tuple[Linear, Prepared[Any], Numerics]:
    """Returns the model in its job's type, the passes as an attempt keeps them, and the job's numerics."""
    found = numerics(model, records)
    made = replace(model, rows_per_pass=found.rows_per_pass, dtype=getattr(torch, found.passes))
    if isinstance(records, SparseRecords):
        records = records.even()  # of words that are present or not, as the data set declares
    slots = slots_for(len(records)).train.rows
    rows = Slotted.injected(records, RandomOrder(key("order")).of(WHOLE_DATA, slots), slots)
    return made, rows.prepared(made.rows_per_pass, made.dtype, torch.device("cpu")), found


class Plain:
    """Full-batch steps in plain torch, float32: softmax regression by SGD with momentum, without privacy.

    Dense features go through `torch.nn.Linear` and autograd: on some processors a product with a transposed view takes
    eight times as long. Sparse features and their transpose are CSR matrices, which are made once.
    """

    def __init__(self, records: Records, model: Linear) -> None:
        self.y, self.layer = records.labels, torch.nn.Linear(model.features, model.outputs, bias=False)
        torch.nn.init.zeros_(self.layer.weight)
        if isinstance(records, SparseRecords):
            matrix = records._matrix.astype(np.float32)
            self.x, self.transposed = csr(matrix), csr(matrix.T.tocsr())
            self.weight = torch.zeros(model.features, model.outputs)
            self.gradient, of = self.sparse, self.weight
        else:
            self.x = records.dense(torch.float32)
            self.gradient, of = self.dense, self.layer.weight
        self.optimizer = torch.optim.SGD([of], lr=1.0, momentum=0.9)
        self.times: dict[str, list[float]] = {part: [] for part in PARTS}

    def sparse(self) -> None:
        outputs = (self.x @ self.weight).requires_grad_()
        torch.nn.functional.cross_entropy(outputs, self.y).backward()
        self.weight.grad = self.transposed @ outputs.grad

    def dense(self) -> None:
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.layer(self.x), self.y).backward()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            began, processor = time.perf_counter(), time.process_time()
            self.gradient()
            summed = time.perf_counter()
            self.optimizer.step()
            ended = time.perf_counter()
            self.times["gradient"].append(summed - began)
            self.times["release"].append(0.0)
            self.times["update"].append(ended - summed)
            self.times["step"].append(ended - began)
            self.times["processor"].append(time.process_time() - processor)

    def median_ms(self, name: str) -> float:
        return 1000 * statistics.median(self.times[name])


def csr(matrix: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "sparse CSR is in beta state"
        index = [torch.from_numpy(each.astype(np.int32)) for each in (matrix.indptr, matrix.indices)]
        return torch.sparse_csr_tensor(*index, torch.from_numpy(matrix.data), size=matrix.shape)


class Steps:
    """Full-batch steps of one configuration; `private` selects clipping and noise, all else is the same."""

    def __init__(self, records: Records, model: Linear, *, private: bool, ahead: bool = True) -> None:
        self.model, self.batch, found = as_admitted(model, records)
        grid = Grid(slots_for(len(records)).train.rows, found.rows_per_pass)
        self.engine = (
            LinearClipping(self.model, "flat", 1.0, sums=found.sums, grid=grid)
            if private
            else LinearGradient(self.model, found.sums)
        )
        n = len(records)
        noise = {"noise_multiplier": 10.0, "max_grad_norm": 1.0, "expected_batch_size": n}
        self.release = GaussianRelease(key("bench"), **noise) if private else PublicRelease(n)
        self.ahead = ahead
        self.optimizer = DpSgd(Descent(1.0), momentum=0.9)
        self.parameters = model.init()
        self.state = self.optimizer.init(self.parameters)
        self.step = 0
        self.times: dict[str, list[float]] = {part: [] for part in PARTS}

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            began, processor = time.perf_counter(), time.process_time()
            if self.ahead:
                self.release.prepare(self.parameters, self.step)
            total = self.engine.private_sum(self.parameters, self.batch)
            summed = time.perf_counter()
            noised = self.release.release(total, self.step)
            released = time.perf_counter()
            info = StepInfo(self.step, self.release.noise_variance(1.0))
            self.parameters, self.state = self.optimizer.update(noised, self.state, self.parameters, info)
            ended = time.perf_counter()
            for name, taken in [
                ("gradient", summed - began),
                ("release", released - summed),
                ("update", ended - released),
                ("step", ended - began),
                ("processor", time.process_time() - processor),
            ]:
                self.times[name].append(taken)

    def median_ms(self, name: str) -> float:
        return 1000 * statistics.median(self.times[name])


def throughput(records: Records, model: Linear, rounds: int, steps: int) -> list[str]:
    kinds: dict[str, Plain | Steps] = {
        "plain torch, float32": Plain(records, model),
        "the service's step without privacy": Steps(records, model, private=False),
        "private, noise made when it is needed": Steps(records, model, private=True, ahead=False),
        "private (as shipped: noise made ahead)": Steps(records, model, private=True),
    }
    for each in kinds.values():
        each.run(2)
        each.times = {name: [] for name in each.times}
    for _ in range(rounds):
        for each in kinds.values():
            each.run(steps)
    base = kinds["plain torch, float32"]
    lines = [
        "| step | ms | gradient | noise and division | update | processor ms | of plain torch | by processor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in kinds.items():
        parts = " | ".join(f"{each.median_ms(part):.2f}" for part in PARTS)
        wall, processor = (base.median_ms(part) / each.median_ms(part) for part in ("step", "processor"))
        lines.append(f"| {name} | {parts} | {wall:.2f} | {processor:.2f} |")
    return lines


def accuracy(
    train: Records, holdout: Records, setting: tuple[float, int, float, float], name: object
) -> tuple[float, float]:
    """Returns the exact hold-out accuracy (the data are public) of one private run, and its seconds."""
    epsilon, steps, rate, clip = setting
    model, batch, _ = as_admitted(Linear(BUCKETS, 2), train)
    engine, optimizer = LinearClipping(model, "flat", clip), DpSgd(Descent(rate), momentum=0.9, free_step=True)
    sigma = math.sqrt(steps) / mu_from_epsilon(epsilon, DELTA)
    release = GaussianRelease(key(name), noise_multiplier=sigma, max_grad_norm=clip, expected_batch_size=RECORDS)
    parameters = model.init()
    state = optimizer.init(parameters)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        noised: NoisedGradient = release.release(engine.private_sum(parameters, batch), step)
        parameters, state = optimizer.update(noised, state, parameters, StepInfo(step, release.noise_variance(clip)))
    parameters = optimizer.finish(state, parameters, steps)
    taken = time.perf_counter() - began
    return float(model.correct(model.forward(parameters, holdout), holdout.labels).double().mean()), taken


def accuracy_without_privacy(train: Records, holdout: Records, setting: tuple[int, float]) -> tuple[float, float]:
    """Returns the same of a run without clipping and noise."""
    steps, rate = setting
    model, batch, found = as_admitted(Linear(BUCKETS, 2), train)
    engine, optimizer = LinearGradient(model, found.sums), DpSgd(Descent(rate), momentum=0.9)
    release = PublicRelease(len(train))
    parameters = model.init()
    state = optimizer.init(parameters)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        gradient = release.release(engine.private_sum(parameters, batch), step)
        info = StepInfo(step, release.noise_variance(1.0))
        parameters, state = optimizer.update(gradient, state, parameters, info)
    parameters = optimizer.finish(state, parameters, steps)
    taken = time.perf_counter() - began
    return float(model.correct(model.forward(parameters, holdout), holdout.labels).double().mean()), taken


def without_privacy_lines(data: Reviews) -> list[str]:
    """Builds the rows of runs without privacy: one for each rate, so that the best of them is no hidden choice."""
    splits = [data.split(number) for number in range(SPLITS)]
    lines = []
    for steps, rate in WITHOUT_PRIVACY:
        results = [accuracy_without_privacy(*split, (steps, rate)) for split in splits]
        lines.append(f"| none | {steps} | {rate:g} | none | {_spread(results)} |")
    return lines


def _spread(results: list[tuple[float, float]]) -> str:
    values = [value for value, _ in results]
    seconds = statistics.median(taken for _, taken in results)
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f} | {min(values):.4f} | {seconds:.2f}"


def quality_lines(data: Reviews) -> list[str]:
    """Builds the report's lines. Every run has its own split and noise key: a service's split is keyed too."""
    runs: dict[tuple[float, int, float, float], list[tuple[float, float]]] = {each: [] for each in SETTINGS}
    for number in range(SPLITS):
        train, holdout = data.split(number)
        for setting, results in runs.items():
            results.append(accuracy(train, holdout, setting, (setting, number)))
    lines = [
        f"| ε (δ = 1e-5) | T | η | C | accuracy, {SPLITS} splits and noise keys | least | training, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, results in runs.items():
        lines.append("| " + " | ".join(f"{each:g}" for each in setting) + f" | {_spread(results)} |")
    return lines + without_privacy_lines(data)


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    cpu = f"{len(names)} × {names[0]}" if names else platform.processor()
    load = Path("/proc/loadavg").read_text().split()[0]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    return f"{cpu}, {torch.get_num_threads()} torch threads, {versions}; load average at the start {load}"


HEAD = """\
# Training: the cost of privacy

Made by `python benchmarks/bench_training.py`.

Machine: {machine}.

Sparse data: {what}, hashed to {buckets:,} buckets, two classes, a fifth held out. Dense data: synthetic, ten classes.
Steps of the service have the types of a job as submitted: float64 for sparse features; for dense ones float32 passes;
totals are integers. Plain steps of dense features are
autograd's of `torch.nn.Linear`; of sparse ones, products of CSR matrices. Medians over steps; the kinds of steps take
turns. Processor time is the total of all threads; it says more than the clock if the machine is busy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often the kinds of steps take turns")
    rounds = parser.parse_args().rounds
    where, data = machine(), reviews()
    sections = {
        "A sparse full-batch step": throughput(data.split(0)[0], Linear(BUCKETS, 2), rounds, 10),
        "A dense full-batch step, 60,000 × 784": throughput(dense(60_000, 784), Linear(784, 10), rounds, 2),
        "A probe's full-batch step, 20,000 × 768": throughput(dense(20_000, 768), Linear(768, 10), rounds, 4),
        "Accuracy on the hold-out": quality_lines(data),
    }
    text = HEAD.format(machine=where, what=data.what, buckets=BUCKETS)
    for title, lines in sections.items():
        text += f"\n\n## {title}\n\n" + "\n".join(lines)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
