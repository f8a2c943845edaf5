"""`train`: a model, a loss and data in; a model with a price out."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
from torch import nn

from core.contracts.optimizers import DpAdaGrad, DpAdam, DpAdamBc, DpAdamWosm, DpRmsProp, DpSgd
from core.privacy import gdp
from core.privacy.calibration import calibrate
from scrimp.engine import checkpoint
from scrimp.engine.checkpoint import Saved
from scrimp.engine.draws import Draws, Keys, Places
from scrimp.engine.errors import MisusedError
from scrimp.engine.model import LoopSettings, Loss, Sums, Tried, trained, tried
from scrimp.engine.own_loop import require_no_engine
from scrimp.engine.own_records import FieldRecords, records_of
from scrimp.engine.report import Charge, Report, report_of
from worker.data.placed import device_of
from worker.models.base import Parameters
from worker.noise.gaussian import GaussianRelease
from worker.optimizers.build import build_optimizer
from worker.optimizers.pieces import flattened
from worker.training.steps import Means, take

Optimizer = DpSgd | DpAdam | DpAdamBc | DpAdamWosm | DpRmsProp | DpAdaGrad
BLOCKS = 20  # a run saves its state so often
LEAST_STEPS, MOST_STEPS = 100, 10_000
LEAST_BATCH, BATCHES = 256, 50
SHARE = 0.75  # of what more steps could win
BAR = 30


@dataclass(frozen=True)
class Settings(LoopSettings):
    """What a run may name, beyond what a loop may. All of it is public.

    Attributes:
        batch_size: L, the mean number of records in a step; "all": every record in every step.
        optimizer: of the service's catalogue.
        checkpoint: a file for the state. If it exists, the run goes on from there.
        progress: where to draw a bar; None: nowhere.
    """

    batch_size: int | Literal["all", "auto"] = "auto"
    optimizer: Optimizer = field(default_factory=lambda: DpAdam(learning_rate=1e-3))
    checkpoint: str | Path | None = None
    progress: TextIO | None = field(default_factory=lambda: sys.stderr if sys.stderr.isatty() else None)


@dataclass(frozen=True)
class Result:
    """A trained model and what it cost.

    Attributes:
        model: the model that was given, with its new parameters.
    """

    model: nn.Module
    report: Report


def train(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    target_epsilon: float,
    delta: float,
    steps: int | Literal["auto"] = "auto",
    settings: Settings | None = None,
) -> Result:
    """Trains a model so that it is (ε, δ)-DP in each record of the data.

    Args:
        model: any module in training mode. Its parameters are replaced when the run has ended, and not before. Those
            with `requires_grad=False` are frozen.
        loss: of the model's output and the target, one number for each record.
        data: a tuple of tensors with records along dimension 0, the target last; or a map-style data set of such
            tuples. All but the last are the model's inputs.
        target_epsilon, delta: the budget; all steps together cost no more.
        steps: T; "auto": the least T, from 100 to 10,000, whose √T/σ is three quarters of what more steps could reach.
            That is reasoning from public numbers, not calibrated.

    Raises:
        UnfitLayerError: a layer mixes records, or has no exact per-record gradients. It is named.
        MisusedError: what was asked has no sound account.
        InvalidRequest: no noise meets the budget.
    """
    require_no_engine(model)
    run_settings, records = settings or Settings(), records_of(data)
    places = _places(run_settings, len(records))
    total = _steps(steps, target_epsilon, delta, places.sample_rate)
    sigma = calibrate(target_epsilon, delta, places.sample_rate, total).noise_multiplier
    sums = Sums(places.rows, run_settings)
    ready = tried(model, loss, records.template, sums)
    run = _Run(run_settings, places, ready, sigma, total)
    end = run.go({name: value.double() for name, value in trained(model).items()}, records)
    finished = run.optimizer.finish(end.state, end.parameters, end.step)
    with torch.no_grad():
        for name, value in trained(model).items():
            value.copy_(finished[name])
    charge = Charge(sigma, run_settings.max_grad_norm, end.started, lost=end.started - end.step)
    return Result(model, report_of(charge, delta, places, ready, counted=run_settings.records is None))


class _Run:
    """The steps of one call of `train`, from the state where it begins."""

    def __init__(self, settings: Settings, places: Places, ready: Tried, sigma: float, steps: int) -> None:
        keys = Keys()
        self._asked, self._steps = settings, steps
        self._path = None if settings.checkpoint is None else Path(settings.checkpoint)
        self._draws = Draws(keys, places)
        self.optimizer = build_optimizer(settings.optimizer, steps)
        self._release = GaussianRelease(
            keys.of("noise"),
            noise_multiplier=sigma,
            max_grad_norm=settings.max_grad_norm,
            expected_batch_size=places.expected_batch_size,
            sensitivity_slack=ready.slack,
        )
        self._means = Means(ready.engine, self._release, partial(ready.begin, keys.of("dropout")))
        self._plan = {
            "records": places.records,
            "sample_rate": places.sample_rate,
            "noise_multiplier": sigma,
            "max_grad_norm": settings.max_grad_norm,
            "optimizer": settings.optimizer.model_dump(mode="json"),
            "steps": steps,
        }

    def go(self, parameters: Parameters, records: FieldRecords) -> Saved:
        """Takes the steps that are left, from these parameters or from the saved state."""
        plan = json.dumps(self._plan | {"shapes": {name: list(each.shape) for name, each in parameters.items()}})
        saved = None if self._path is None else checkpoint.read(self._path, plan, device_of(parameters))
        now = saved or Saved(0, 0, parameters, {})
        parameters = flattened(now.parameters)
        now = replace(now, parameters=parameters, state=now.state if saved else self.optimizer.init(parameters))
        block = max(1, -(-self._steps // BLOCKS))
        with _bar(self._asked.progress, self._steps) as show:
            while now.started < self._steps:
                last = min(now.started + block, self._steps)
                self._save(plan, replace(now, started=last))  # before: a run that ends there has paid for the block
                now = self._block(now, last - now.started, records, show)
        self._save(plan, now)
        return now

    def _save(self, plan: str, saved: Saved) -> None:
        if self._path is not None:
            checkpoint.write(self._path, plan, saved)

    def _block(self, now: Saved, count: int, records: FieldRecords, show: Callable[[int], None]) -> Saved:
        parameters, state = now.parameters, now.state
        for step in range(now.step + 1, now.step + count + 1):  # keys are this process', so no noise is used twice
            self._release.prepare(parameters, step)
            batch = self._draws.rows(step, records)
            parameters, state, _ = take(
                step, batch, (parameters, state), (self._asked.max_grad_norm,), self.optimizer, self._means
            )
            show(now.started + step - now.step)
        return Saved(now.step + count, now.started + count, parameters, state)


def _places(settings: Settings, counted: int) -> Places:
    records = counted if settings.records is None else settings.records
    if records < 1:
        raise MisusedError("the data have no records")
    batch_sizes = {"all": records, "auto": min(records, max(LEAST_BATCH, records // BATCHES))}
    batch = batch_sizes[settings.batch_size] if isinstance(settings.batch_size, str) else settings.batch_size
    if not 1 <= batch <= records:
        raise MisusedError("batch_size is between 1 and the number of records")
    return Places(records, batch / records)


def steps_of(target_epsilon: float, delta: float, sample_rate: float) -> int:
    """T by a rule from public numbers: the least whose gain is three quarters of what more steps could reach.

    A sum of T updates moves by T and its noise by σ √T, so √T/σ is what T buys. By the central limit theorem
    μ² = q² T (e^{1/σ²} − 1), so T/σ² = T ln(1 + μ²/(q² T)), which rises to μ²/q².

    >>> steps_of(3.0, 1e-5, 0.01), steps_of(3.0, 1e-5, 1.0)
    (2749, 100)
    """
    largest = (gdp.mu_from_epsilon(target_epsilon, delta) / sample_rate) ** 2
    low, high = LEAST_STEPS, MOST_STEPS
    while low < high:
        middle = (low + high) // 2
        if middle * math.log1p(largest / middle) >= SHARE**2 * largest:
            high = middle
        else:
            low = middle + 1
    return low


def _steps(steps: int | str, target_epsilon: float, delta: float, sample_rate: float) -> int:
    if not 0.0 < delta < 1.0 or not target_epsilon > 0.0:
        raise MisusedError("a budget is an ε above 0 and a δ between 0 and 1")
    if isinstance(steps, str):
        return steps_of(target_epsilon, delta, sample_rate)
    if steps < 1:
        raise MisusedError("a run has at least one step")
    return steps


@contextmanager
def _bar(out: TextIO | None, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how many steps are done. Never a loss: that would be a number from private data."""

    def show(step: int) -> None:
        if out is not None:
            full = BAR * step // total
            out.write(f"\r[{'#' * full}{'.' * (BAR - full)}] step {step} of {total}")
            out.flush()

    try:
        yield show
    finally:
        if out is not None:
            out.write("\n")
