"""A loop of one's own: `step(data)` draws, clips, adds noise and lets the optimizer move."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from scrimp.engine.draws import Draws, Keys, OneOwner, Places
from scrimp.engine.errors import MisusedError
from scrimp.engine.model import LoopSettings, Loss, Sums, Tried, tried
from scrimp.engine.own_records import FieldRecords, records_of
from scrimp.engine.report import Charge, Report, report_of
from worker.noise.gaussian import GaussianRelease
from worker.training.steps import Means, Query, noised

_ENGINES: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # a parameter, and the step that moves it


class Private(NamedTuple):
    """The optimizer, for its schedules and groups; and what takes a step."""

    optimizer: torch.optim.Optimizer
    step: Step


@dataclass
class _Gate:
    """Open while a step of the engine lets the optimizer move."""

    is_open: bool = False

    def check(self, *_: Any) -> None:
        if not self.is_open:
            raise MisusedError("the optimizer moves within step(data) alone: its gradients would not be noised")


@dataclass(frozen=True)
class _Ready:
    """What the first step makes: data are known then."""

    places: Places
    tried: Tried
    draws: Draws
    means: Means
    counted: bool


def make_private(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    *,
    sample_rate: float,
    noise_multiplier: float,
    settings: LoopSettings | None = None,
) -> Private:
    """Makes a loop of one's own private: `optimizer, step = make_private(…)`, and `step(data)` in the loop.

    Args:
        model: any module, in training mode.
        loss: of the model's output and the target, one number for each record.
        optimizer: of torch, over exactly the parameters that are trained. It moves within `step` alone.
        sample_rate: q. Each step draws each record with this chance, by itself.
        noise_multiplier: σ.

    Raises:
        MisusedError: the parameters have an engine already, whose account would not know of this one's steps; or they
            are not the optimizer's; or the optimizer asks for the loss again (LBFGS).
    """
    loop_settings, parameters = settings or LoopSettings(), _parameters(model)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise MisusedError(f"{type(optimizer).__name__} asks for gradients several times a step, which nothing prices")
    require_no_engine(model)
    Places(1, sample_rate)
    step = Step(model, loss, optimizer, sample_rate, noise_multiplier, loop_settings)
    for parameter in parameters.values():
        _ENGINES[parameter] = weakref.ref(step)
    return Private(optimizer, step)


def require_no_engine(model: nn.Module) -> None:
    """Raises MisusedError if a step of an own loop moves parameters of the model."""
    for name, parameter in _parameters(model).items():
        if parameter in _ENGINES and _ENGINES[parameter]() is not None:
            raise MisusedError(f"{name} has an engine already: its account would not know of other steps. Use its step")


class Step(OneOwner):
    """Takes private steps, one at a time, in the process that made it. Made by `make_private`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        sample_rate: float,
        noise_multiplier: float,
        settings: LoopSettings,
    ) -> None:
        self._model, self._loss, self._optimizer = model, loss, optimizer
        self._sample_rate, self._sigma, self._settings = sample_rate, noise_multiplier, settings
        self._shape = _shape(model)
        self._ready: _Ready | None = None
        self._size = self._steps = 0
        self._gate = _Gate()
        self._keys = Keys()
        self._process, self._turn = os.getpid(), threading.Lock()
        _require_own(model, optimizer)
        optimizer.register_step_pre_hook(self._gate.check)

    @property
    def steps(self) -> int:
        """How many steps are charged."""
        return self._steps

    def __call__(self, data: Any) -> None:
        """Draws from the data, and moves the parameters by the noised mean gradient. Returns nothing: a loss would be a
        number from private data.

        Args:
            data: all of the records, the same in every step. The step draws.

        Raises:
            MisusedError: model, optimizer or data are others than before; or the model has gradients of another loss;
                or the process is a fork.
        """
        if os.getpid() != self._process:
            raise MisusedError("this process is a fork of the one that made the step: both would draw the same noise")
        with self._turn:
            self._take(records_of(data))

    def _take(self, records: FieldRecords) -> None:
        self._require_same(records)
        ready = self._ready or self._prepared(records)
        self._ready, self._size = ready, len(records)
        self._steps += 1  # charged before anything is drawn
        batch = ready.draws.rows(self._steps, records)
        parameters = _parameters(self._model)
        values = {name: each.detach() for name, each in parameters.items()}
        query = Query(self._steps, 0, self._settings.max_grad_norm, batch)
        gradient = noised(query, values, ready.means).gradient
        try:
            for name, parameter in parameters.items():
                parameter.grad = gradient[name].to(parameter.dtype)
            self._gate.is_open = True
            self._optimizer.step()
        finally:
            self._gate.is_open = False
            for parameter in parameters.values():
                parameter.grad = None

    def report(self, delta: float) -> Report:
        """What the steps so far cost, and how they ran."""
        if self._ready is None:
            raise MisusedError("no step was taken")
        ready, charge = self._ready, Charge(self._sigma, self._settings.max_grad_norm, self._steps)
        return report_of(charge, delta, ready.places, ready.tried, counted=ready.counted)

    def epsilon(self, delta: float) -> float:
        """ε of the steps so far."""
        return self.report(delta).epsilon.value

    def _prepared(self, records: FieldRecords) -> _Ready:
        settings = self._settings
        places = Places(len(records) if settings.records is None else settings.records, self._sample_rate)
        sums = Sums(places.rows, settings)
        ready = tried(self._model, self._loss, records.template, sums)
        release = GaussianRelease(
            self._keys.of("noise"),
            noise_multiplier=self._sigma,
            max_grad_norm=settings.max_grad_norm,
            expected_batch_size=places.expected_batch_size,
            sensitivity_slack=ready.slack,
        )
        means = Means(ready.engine, release, partial(ready.begin, self._keys.of("dropout")))
        return _Ready(places, ready, Draws(self._keys, places), means, settings.records is None)

    def _require_same(self, records: FieldRecords) -> None:
        if self._ready is not None and len(records) != self._size:
            raise MisusedError(
                "step(data) takes all of the data, the same in every step, and draws by itself: a batch that is drawn "
                "elsewhere would not be the one that is priced"
            )
        if _shape(self._model) != self._shape:
            raise MisusedError("the model was changed after make_private: its modules, or what is trained of them")
        _require_own(self._model, self._optimizer)
        strange = [name for name, each in _parameters(self._model).items() if each.grad is not None]
        if strange:
            raise MisusedError(
                f"{strange[0]} has a gradient of another loss, which is neither clipped nor noised: call "
                "optimizer.zero_grad(), or make it part of the loss"
            )


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _shape(model: nn.Module) -> tuple[object, ...]:
    """What a model is made of, but for numbers and modes."""
    modules = tuple((name, type(each), _forward(each)) for name, each in model.named_modules())
    every = ((name, each.shape, each.dtype, each.device, each.requires_grad) for name, each in model.named_parameters())
    return (*modules, *every)


def _forward(module: nn.Module) -> Callable[..., Tensor] | None:
    """A forward that was set on the module itself."""
    forward: Callable[..., Tensor] | None = vars(module).get("forward")
    return forward


def _require_own(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    moved = [each for group in optimizer.param_groups for each in group["params"]]
    own_names = {id(each): name for name, each in _parameters(model).items()}
    if any(id(each) not in own_names for each in moved if each.requires_grad):
        raise MisusedError("the optimizer moves parameters that are not the model's, or not trained")
    optimizer_ids = {id(each) for each in moved}
    name = next((name for each, name in own_names.items() if each not in optimizer_ids), None)
    if name is not None:
        raise MisusedError(f"the optimizer does not move {name}: set requires_grad=False, or add it")
