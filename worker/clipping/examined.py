"""Tries an engine on three public records before it sees a private one.

Hooks see only what layers are called with. A weight that a module uses by hand, a layer that takes the sequence for the
batch, or a mean over the batch would make a record's gradient wrong, or another record's. So for some numbers of rows:

    the engine's gradient of each record is compared with autograd's, parameter by parameter
    a record's loss and gradient must stay while the records beside it change
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from core.errors import PrivacyError
from worker.data.passes import Batch
from worker.models.base import Parameters

B = TypeVar("B")
ROWS = 3
LONGEST = 64  # sequences up to this length are tried with as many rows
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.2}  # of the gradient's norm


class UnfitLayerError(PrivacyError):
    """A module of the model has no exact per-record gradients here. Known from public records alone.

    Attributes:
        module: its name and class.
    """

    def __init__(self, module: str, reason: str) -> None:
        super().__init__(f"{module}: {reason}")
        self.module = module


class Examples(Protocol[B]):
    """Three random public records."""

    def select(self, indices: NDArray[np.int64]) -> Batch[B]:
        """The records at these indices, in their order."""
        ...


class Examined(Protocol):
    """What of an engine is tried."""

    def one_pass(self, records: Any, rows: int) -> tuple[Tensor, Parameters]:
        """Each row's loss, and Σ g_i over the records without clipping, from one pass of so many rows."""
        ...

    def by_autograd(self, records: Any, rows: int) -> Parameters:
        """The gradient of the first row's loss."""
        ...

    def lengths(self, records: Any) -> Sequence[int]:
        """The numbers of positions that layers saw."""
        ...


def examine(engine: Examined, examples: Examples[Any], dtype: torch.dtype) -> None:
    """Raises UnfitLayerError if the engine's gradients are wrong for this module.

    Args:
        dtype: of the passes.
    """
    everyone = examples.select(np.arange(ROWS))
    lengths = {each for each in engine.lengths(everyone) if ROWS < each <= LONGEST}
    for rows in (ROWS, *sorted(lengths)):
        singles = [examples.select(np.array([at])) for at in range(ROWS)]
        apart = [engine.one_pass(each, rows)[1] for each in singles]
        _watch(engine, examples, rows, apart, TOLERANCE[dtype])
        for own_parameters, single in zip(apart, singles, strict=True):
            _compare(own_parameters, engine.by_autograd(single, rows), TOLERANCE[dtype])


def _compare(parameters: Parameters, wanted: Parameters, tolerance: float) -> None:
    scale = _norm(wanted)
    wrong = [name for name, each in wanted.items() if float((parameters[name] - each).norm()) > tolerance * scale]
    if wrong:
        raise UnfitLayerError(
            wrong[0].rpartition(".")[0] or "the model",
            f"the gradient of one record with respect to {', '.join(wrong)} is not autograd's: use each parameter only "
            "by calling the layer that holds it, with records along dimension 0",
        )


def _watch(engine: Examined, examples: Examples[Any], rows: int, apart: Sequence[Parameters], tolerance: float) -> None:
    """The middle record stays, and those beside it change. `apart`: each record's gradient in a pass of its own."""
    losses, watched = engine.one_pass(examples.select(np.array([0, 1, 2])), rows)
    moved, _ = engine.one_pass(examples.select(np.array([1, 1, 1])), rows)
    wanted = {name: torch.stack([each[name] for each in apart]).sum(dim=0) for name in watched}
    moves = float((losses[1] - moved[1]).abs()) > tolerance * max(1e-3, float(losses[1].abs()))
    if moves or _distance(watched, wanted) > tolerance * sum(_norm(each) for each in apart):
        raise UnfitLayerError(
            "the model",
            "a record's loss or gradient depends on other records: the module mixes records, such as by a mean over "
            "dimension 0",
        )


def _norm(gradient: Mapping[str, Tensor]) -> float:
    return float(torch.cat([each.double().flatten() for each in gradient.values()]).norm())


def _distance(one: Parameters, two: Parameters) -> float:
    return _norm({name: value - two[name] for name, value in one.items()})


def autograd_of(trainable: Mapping[str, nn.Parameter], losses: Callable[[], Tensor]) -> Parameters:
    """The gradient of the first row's loss, float64. The parameters require gradients only meanwhile."""
    for parameter in trainable.values():
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            gradients = torch.autograd.grad(losses()[0], list(trainable.values()), allow_unused=True)
    finally:
        for parameter in trainable.values():
            parameter.requires_grad_(False)
    pairs = zip(trainable.items(), gradients, strict=True)
    return {name: (torch.zeros_like(p) if g is None else g).double() for (name, p), g in pairs}
