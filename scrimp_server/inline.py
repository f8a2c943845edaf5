"""Runs a JobSpec on public records in this process as the service would: planned, priced and trained by its own code.

What is left out is the way to a worker (queue, ledger, storage). The records are public, so losses may be exact and
seeds may be set; the training is private all the same: `privacy` of the JobSpec decides clipping and noise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import scipy.sparse
import torch
from torch import Tensor

from app.admission.choices import closed, with_rate
from app.admission.facts import DatasetFacts
from app.admission.job_rules import Checked, check
from app.catalogue import model_folders
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.contracts.slots import PartSlots, Slots
from core.privacy.mechanism import MechanismConfig
from core.privacy.price_requests import PlanRequest
from core.privacy.prices import Price
from core.privacy.pricing import price
from core.privacy.slot_numbers import default_slots
from worker.data.placed import CPU
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.messages import Checkpoint, Digest, JobDescription, MetricValue, Resalt, Segment, Shape
from worker.models.base import Parameters
from worker.noise.attempt_keys import Purpose
from worker.optimizers.base import Optimizer
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.loop import Training
from worker.training.plan import Plan, build_plan
from worker.training.write_ahead import Replay

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
        """The declaration that it would be registered with."""
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

    def pinned(self, spec: JobSpec) -> JobSpec:
        """The specification with its model's content filled in."""
        model = model_folders.resolved(spec.model, self.models_root, self.outputs, prompts="prompt" in self.task)
        return spec.model_copy(update={"model": model})

    def shape(self) -> Shape:
        """Its public sizes."""
        return Shape(
            records_train=len(self.train),
            records_holdout=len(self.holdout),
            features=self.features_count,
            outputs=self.outputs,
            sparse=self.sparse,
            slots=slots_for(len(self.train)),
        )

    def facts(self, id_: str = "ds_0", records: Records | None = None) -> DatasetFacts:
        """What admission knows of it."""
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
            stated_slots=slots_for(len(train)),
        )


def slots_for(records: int) -> Slots:
    """Returns the places that a data set with so many declared records has unless its owner says otherwise."""
    places = default_slots(records)
    return Slots(train=PartSlots(units=places, rows=places))


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


class Book:
    """Stands for the supervisor of a run that nothing interrupts."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}

    def begin(self, first_step: int, last_step: int) -> bool:
        """Nothing is claimed, and nothing saved."""
        return False

    def save(self, header: Checkpoint, pieces: Iterator[Tensor]) -> None:
        """Nothing is saved."""

    def fill(self, numbers: Tensor) -> None:
        """Nothing was saved."""

    def poll(self, step: int) -> None:
        """Nobody stops it."""

    def mismatch(self, matched_step: int) -> Resalt:
        """Nothing is replayed."""
        raise AssertionError("nothing is replayed")

    def record(self, digest: Digest) -> None:
        """Nothing will be replayed."""

    def flush(self) -> None:
        """Nothing waits."""

    def send(self, message: Any) -> None:
        """Keeps scores."""
        if isinstance(message, MetricValue):
            self.metrics.setdefault(message.name, []).append((message.step, message.value))


def run(
    data: Data,
    job: dict[str, Any],
    *,
    seed: int = 0,
    training: Callable[..., Training] = Training,
    optimizer: Callable[[Optimizer], Optimizer] | None = None,
    device: torch.device = CPU,
) -> Result:
    """One job.

    Args:
        job: a JobSpec without `dataset` and `seed`. `evaluation` is always free: the data are public.
        training: makes the loop; its argument `link` is a Book.
        optimizer: makes of the job's optimizer what takes its place: a variant that no JobSpec asks for.
        device: of its steps.

    Raises:
        InvalidRequest: as the service would.
    """
    spec = JobSpec.model_validate(job | {"dataset": "ds_0", "seed": seed})
    side = data.facts("ds_1", data.side) if data.side is not None else None
    closed_choices = closed(data.pinned(spec), data.facts())
    planned = check(closed_choices.spec, data.facts(), side)
    priced = _priced(planned.pricing.model_dump_json()) if planned.pricing is not None else Price.nothing()
    planned = with_rate(planned, priced, closed_choices)
    mechanism = priced.mechanism
    built = _built(data, planned, mechanism, device)
    if optimizer is not None:
        built = replace(built, optimizer=optimizer(built.optimizer))
    keys = {f"{name}_key": _key(seed, name) for name in get_args(Purpose)}
    book = Book()
    public = built.side(data.side) if data.side is not None else None
    loop = training(
        built,
        TrainingData(_as_read(data.train, built), _as_read(data.holdout, built), holdout_public=True, side=public),
        replay=Replay(planned.steps, (Segment(from_step=1, **keys),), planned.steps, built.block_end),
        link=book,
        telemetry=Telemetry(book, mechanism, data_public=True, holdout_public=True),
    )
    began = time.perf_counter()
    outcome = loop.run()
    return Result(
        steps=planned.steps,
        seconds=time.perf_counter() - began,
        epsilon=priced.epsilon.value if priced.epsilon else None,
        noise_multiplier=mechanism.training.noise_multiplier if mechanism else None,
        metrics=book.metrics,
        parameters=outcome.parameters,
    )


def _as_read(records: Records, plan: Plan) -> Records:
    """Records as an attempt reads them: a table's may be sparse rows."""
    if not plan.sparse_table or not isinstance(records, DenseRecords):
        return records
    return SparseRecords(scipy.sparse.csr_matrix(records.dense(torch.float32).numpy()), records.labels)


def _built(data: Data, planned: Checked, mechanism: MechanismConfig | None, device: torch.device) -> Plan:
    declared_spec = data.spec()
    job = JobDescription(
        spec=planned.spec,
        mechanism=mechanism,
        shape=data.shape(),
        task=declared_spec.task,
        features=declared_spec.features,
        steps=planned.steps,
        data_public=True,
        holdout_public=True,
        models_root=None if data.models_root is None else str(data.models_root),
    )
    return build_plan(job, device=device)


@cache
def _priced(request: str) -> Price:
    """The price of a plan, as JSON: the runs of a sweep have one mechanism, and pricing takes seconds."""
    return price(PlanRequest.model_validate_json(request))


def _key(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()
