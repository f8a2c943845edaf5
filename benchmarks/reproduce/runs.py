"""Runs a JobSpec in this process as the service would: planned, priced and trained by its own code.

What is left out is the way to a worker (queue, ledger, storage). The data sets are public, so that losses may be exact
and seeds may be set; the training is private all the same: `privacy` of the JobSpec decides clipping and noise.
Finished runs are kept in a JSON file by what was asked, so that an experiment can be cut off and continued.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.catalogue import model_folders
from app.contracts.dataset_spec import DatasetSpec
from app.contracts.job_spec import JobSpec
from app.jobs.planning import plan
from app.jobs.plans import DatasetFacts
from app.privacy.plans import PlanRequest
from app.privacy.prices import Price
from app.privacy.pricing import price
from worker.data.placed import CPU
from worker.data.records import Records
from worker.messages import Digest, MetricValue, Resalt, Segment, Shape
from worker.models.base import Parameters
from worker.optimizers.base import Optimizer, State
from worker.telemetry import Telemetry
from worker.training.loop import Position, Training
from worker.training.plan import build_plan
from worker.training.replay import Replay

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "benchmarks" / "reports" / "reproduce"
SIDE = "side"  # what a JobSpec calls the public data set of its side information

Watch = Callable[[int, Parameters, State], None]  # step, parameters and optimizer state after it
Metrics = dict[str, list[tuple[int, float]]]  # by name, (step, value)


@dataclass(frozen=True)
class Data:
    """A public data set in memory.

    Attributes:
        task, features: as in a DatasetSpec.
        train: the training records.
        holdout: what `evaluation` scores; the training records themselves where training scores are wanted.
        features_count, outputs: d and the number of classes (1: none), as the registration would find them.
        side: public records for an optimizer's side information; a JobSpec calls them "side".
    """

    task: dict[str, Any]
    features: dict[str, Any]
    train: Records
    holdout: Records
    features_count: int
    outputs: int
    sparse: bool = False
    side: Records | None = None
    models_root: Path | None = None  # where a job's Hugging Face model is

    def spec(self) -> DatasetSpec:
        kind = self.features["kind"]
        form = {"tensor": "npz", "interactions": "interactions"}.get(kind, "csv")
        return DatasetSpec.model_validate(
            {
                "name": "experiment",
                "format": form,
                "task": self.task,
                "features": self.features,
                "privacy": {"sensitivity": "public"},
                "holdout": {"kind": "public"},
            }
        )

    def pinned(self, asked: JobSpec) -> JobSpec:
        """The specification with its model's content filled in."""
        return model_folders.resolved(asked, self.models_root, self.outputs, prompts="prompt" in self.task)

    def shape(self) -> Shape:
        return Shape(
            records_train=len(self.train),
            records_holdout=len(self.holdout),
            features=self.features_count,
            outputs=self.outputs,
            sparse=self.sparse,
        )

    def facts(self, id_: str = "ds_0", records: Records | None = None) -> DatasetFacts:
        train = self.train if records is None else records
        return DatasetFacts(
            id=id_,
            name="experiment",
            spec=self.spec(),
            records_train=len(train),
            records_holdout=len(self.holdout),
            features=self.features_count,
            outputs=self.outputs,
            filter=None,
            order=None,
            cap_delta=None,
        )


@dataclass
class Result:
    """What a run gave.

    Attributes:
        metrics: by name, (step, value), exact.
        epsilon: of the training; None without privacy.
    """

    steps: int
    seconds: float
    epsilon: float | None
    noise_multiplier: float | None
    metrics: Metrics = field(default_factory=dict)
    parameters: Parameters = field(default_factory=dict, repr=False)

    def last(self, name: str) -> float:
        """The metric of the end."""
        return self.metrics[name][-1][1]

    def kept(self) -> dict[str, Any]:
        """As JSON, without the parameters."""
        return {name: value for name, value in vars(self).items() if name != "parameters"}

    def rounded(self) -> dict[str, Any]:
        """The same, to five places: for experiments that keep hundreds of runs."""
        metrics = {name: [(step, round(value, 5)) for step, value in values] for name, values in self.metrics.items()}
        return self.kept() | {"seconds": round(self.seconds, 1), "metrics": metrics}


class _Book:
    """Stands for the supervisor of a run that nothing interrupts."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}

    def begin(self, first_step: int, last_step: int) -> None:
        pass

    def poll(self, step: int) -> None:
        pass

    def mismatch(self, matched_step: int) -> Resalt:
        raise AssertionError("nothing is replayed")

    def record(self, digest: Digest) -> None:
        pass

    def send(self, message: Any) -> None:
        if isinstance(message, MetricValue):
            self.metrics.setdefault(message.name, []).append((message.step, message.value))


class Checkpoint:
    """Where a run can be cut off and continued: its position and what it scored so far, in a file while it lasts.

    A continued run is the run that was not cut off, bit for bit: noise belongs to the step.

    Args:
        path: of the file. It is removed when the run is done.
        every: seconds between two writes.
    """

    def __init__(self, path: Path, every: float = 60.0) -> None:
        self._path, self._every = path, every
        self._earlier = 0.0  # seconds that the pieces before this one took
        self._began = self._written = time.perf_counter()

    @property
    def seconds(self) -> float:
        """That the run took so far, all its pieces together."""
        return self._earlier + time.perf_counter() - self._began

    def write(self, position: Position, metrics: Metrics) -> None:
        if time.perf_counter() - self._written < self._every:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        kept = {"step": position.step, "parameters": position.parameters, "state": position.state}
        torch.save(kept | {"metrics": metrics, "seconds": self.seconds}, part)
        part.replace(self._path)
        self._written = time.perf_counter()

    def read(self, metrics: Metrics) -> Position | None:
        """Where to go on from; fills in what was scored. None: there is no file."""
        if not self._path.exists():
            return None
        kept = torch.load(self._path, weights_only=True)
        metrics.update(kept["metrics"])
        self._earlier = kept["seconds"]
        return Position(kept["step"], kept["parameters"], kept["state"])

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class _Watched(Training):
    watch: Watch | None = None
    checkpoint: Checkpoint | None = None
    metrics: Metrics

    def _initial(self) -> Position:
        kept = self.checkpoint.read(self.metrics) if self.checkpoint else None
        return kept or super()._initial()

    def _step(self, step: int, at: Position) -> Position:
        position = super()._step(step, at)
        if self.watch is not None:
            self.watch(step, position.parameters, position.state)
        if self.checkpoint is not None:
            self.checkpoint.write(position, self.metrics)
        return position


def run(
    data: Data,
    job: dict[str, Any],
    *,
    seed: int = 0,
    watch: Watch | None = None,
    optimizer: Callable[[Optimizer], Optimizer] | None = None,
    checkpoint: Checkpoint | None = None,
    device: torch.device = CPU,
) -> Result:
    """One job.

    Args:
        job: a JobSpec without `dataset` and `seed`. `evaluation` is always free: the data are public.
        watch: called after every step.
        optimizer: makes of the job's optimizer what takes its place: a variant that no JobSpec asks for.
        checkpoint: for long runs. Not with adaptive clipping.
        device: of its steps.

    Raises:
        InvalidRequest: as the service would.
    """
    spec = JobSpec.model_validate(job | {"dataset": "ds_0", "seed": seed})
    side = data.facts("ds_1", data.side) if data.side is not None else None
    planned = plan(data.pinned(spec), data.facts(), side)
    priced = _priced(planned.pricing.model_dump_json()) if planned.pricing is not None else Price.nothing()
    mechanism = priced.mechanism
    what = data.spec()
    built = build_plan(
        planned.spec,
        mechanism,
        data.shape(),
        what.task,
        what.features,
        steps=planned.steps,
        data_public=True,
        holdout_public=True,
        models_root=data.models_root,
        device=device,
    )
    if optimizer is not None:
        built = replace(built, optimizer=optimizer(built.optimizer))
    keys = {f"{name}_key": _key(seed, name) for name in ("noise", "order", "sampler", "release", "init", "dropout")}
    book = _Book()
    training = _Watched(
        built,
        data.train,
        data.holdout,
        holdout_public=True,
        replay=Replay(planned.steps, (Segment(from_step=1, **keys),), planned.steps, built.block_end),
        link=book,
        telemetry=Telemetry(book, mechanism, data_public=True, holdout_public=True),
        side=built.side(data.side) if data.side is not None else None,
    )
    training.watch, training.checkpoint, training.metrics = watch, checkpoint, book.metrics
    began = time.perf_counter()
    outcome = training.run()
    seconds = checkpoint.seconds if checkpoint else time.perf_counter() - began
    if checkpoint is not None:
        checkpoint.remove()
    return Result(
        steps=planned.steps,
        seconds=seconds,
        epsilon=priced.epsilon.value if priced.epsilon else None,
        noise_multiplier=mechanism.training.noise_multiplier if mechanism else None,
        metrics=book.metrics,
        parameters=outcome.parameters,
    )


class Kept:
    """Finished runs in a JSON file, one entry for every question that was asked of them.

    Args:
        path: of the file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, question: dict[str, Any], answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept answer, or a fresh one, kept. Both are as JSON has them."""
        name = json.dumps(question, sort_keys=True)
        if name not in self.entries:
            self.entries[name] = json.loads(json.dumps(answer()))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole = self.path.with_suffix(".part")
            whole.write_text(self._lines())
            whole.replace(self.path)
        kept: dict[str, Any] = self.entries[name]
        return kept

    def accuracy(self, cell: object, of: Callable[[], Data], asked: dict[str, Any], seed: int) -> float:
        """The share of held-out records that one run classifies correctly: kept, or run now.

        Args:
            cell: names the run in the file, beside its rate and seed.
            of: gives the data, if it must run.
        """
        question = {"cell": str(cell), "eta": asked["optimizer"]["learning_rate"], "seed": seed}

        def trained() -> dict[str, float]:
            done = run(of(), asked, seed=seed)
            return {"accuracy": round(done.last("accuracy"), 5), "seconds": round(done.seconds, 2)}

        return float(self.get(question, trained)["accuracy"])

    def _lines(self) -> str:
        """One line an entry, in the entries' order: what a new run changes is its own line."""
        lines = (
            f"{json.dumps(name)}: {json.dumps(self.entries[name], sort_keys=True)}" for name in sorted(self.entries)
        )
        return "{\n" + ",\n".join(lines) + "\n}\n"


def best(runs: Iterable[tuple[Any, dict[str, Any]]], metric: str, *, highest: bool) -> tuple[Any, dict[str, Any]]:
    """The setting and run with the best last value of a metric; runs that are not finite lose."""

    def worth(entry: tuple[Any, dict[str, Any]]) -> float:
        value = float(entry[1]["metrics"][metric][-1][1])
        return (value if highest else -value) if np.isfinite(value) else -np.inf

    return max(runs, key=worth)


def machine() -> str:
    """The machine and the versions, for a report's head."""
    cpu = "unknown processor"
    if Path("/proc/cpuinfo").exists():
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return (
        f"{os.cpu_count()} CPUs ({cpu}), {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, commit {commit.stdout.strip() or 'unknown'}"
    )


@cache
def _priced(request: str) -> Price:
    """The price of a plan, as JSON: the runs of a sweep have one mechanism, and pricing takes seconds."""
    return price(PlanRequest.model_validate_json(request))


def _key(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()
