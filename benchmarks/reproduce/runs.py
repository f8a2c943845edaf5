"""Experiments' runs: a JobSpec in this process (scrimp_server.inline), watched and kept.

Finished runs are kept in a compressed JSON file by what was asked, so that an experiment can be cut off and continued.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scrimp_server import inline
from scrimp_server.inline import Book, Data, Metrics, Result
from worker.data.placed import CPU
from worker.models.base import Parameters
from worker.optimizers.base import Optimizer, State
from worker.training.loop import Training
from worker.training.position import Position

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "benchmarks" / "reports" / "reproduce"
SIDE = "side"  # what a JobSpec calls the public data set of its side information

Watch = Callable[[int, Parameters, State], None]  # step, parameters and optimizer state after it


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
    """One job. The other arguments are those of scrimp_server.inline.run.

    Args:
        watch: called after every step.
        checkpoint: for long runs. Not with adaptive clipping.
    """

    def watched(*arguments: Any, link: Book, **named: Any) -> _Watched:
        made = _Watched(*arguments, link=link, **named)
        made.watch, made.checkpoint, made.metrics = watch, checkpoint, link.metrics
        return made

    found = inline.run(data, job, seed=seed, training=watched, optimizer=optimizer, device=device)
    if checkpoint is not None:
        found = replace(found, seconds=checkpoint.seconds)
        checkpoint.remove()
    return found


def read_archive(path: Path) -> dict[str, Any]:
    """The entries of a compressed JSON file; none if it is not there yet.

    Raises:
        gzip.BadGzipFile, zlib.error, EOFError: it is damaged: its CRC-32 or its length is another.
    """
    entries: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    return entries


def write_archive(path: Path, entries: dict[str, Any]) -> None:
    """Replaces the file; equal entries make equal bytes. gzip ends it with its CRC-32 and length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".part")
    whole.write_bytes(gzip.compress(json.dumps(entries, sort_keys=True).encode(), mtime=0))
    whole.replace(path)


class Kept:
    """Finished runs in a compressed JSON file, one entry for every question that was asked of them.

    Args:
        path: of the file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = read_archive(path)

    def get(self, question: dict[str, Any], answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept answer, or a fresh one, kept. Both are as JSON has them."""
        name = json.dumps(question, sort_keys=True)
        if name not in self.entries:
            self.entries[name] = json.loads(json.dumps(answer()))
            write_archive(self.path, self.entries)
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


def best(runs: Iterable[tuple[Any, dict[str, Any]]], metric: str, *, highest: bool) -> tuple[Any, dict[str, Any]]:
    """The setting and run with the best last value of a metric; runs that are not finite lose."""

    def worth(entry: tuple[Any, dict[str, Any]]) -> float:
        value = float(entry[1]["metrics"][metric][-1][1])
        return (value if highest else -value) if np.isfinite(value) else -np.inf

    return max(runs, key=worth)


def uphill(score: Callable[[float], float], rates: Sequence[float], first: int) -> float:
    """The rate with the highest score, as far as a walk finds it: from `rates[first]` to the side that rises, until the
    first fall. A score that is not finite loses. No rate is asked for twice.

    Example:
        `uphill(lambda rate: -abs(rate - 4.0), (1.0, 2.0, 4.0, 8.0), 1)` is 4.0.
    """
    scores: dict[int, float] = {}

    def of(at: int) -> float:
        if at not in scores:
            found = score(rates[at]) if 0 <= at < len(rates) else -math.inf
            scores[at] = found if math.isfinite(found) else -math.inf
        return scores[at]

    at = first
    step = 1 if of(at + 1) > of(at) else -1
    while of(at + step) > of(at):
        at += step
    return rates[at]


def paired(ones: Sequence[float], others: Sequence[float], digits: int = 2) -> str:
    """How far the first are ahead of the others, pair by pair: mean ± standard error. Pairs share their seed."""
    gaps = [one - other for one, other in zip(ones, others, strict=True)]
    if len(gaps) < 2:
        return f"{gaps[0]:+.{digits}f}"
    return f"{statistics.mean(gaps):+.{digits}f} ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.{digits}f}"


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
