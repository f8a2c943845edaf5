"""A user's model, tried before it sees a private record, and the engine that clips its gradients.

Passes run through copies. So nothing that a forward pass leaves in a model, such as running statistics, reaches the
user's own: it gets noised gradients alone. Copies keep each module's mode, and a switch to evaluation changes nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from core.privacy.numerics import (
    BYTES,
    GROUP,
    PASS_BYTES,
    PASS_OVERHEAD,
    PassType,
    cheapest_rows,
    grid_slack,
    sensitivity_slack,
)
from scrimp.engine.errors import MisusedError
from scrimp.engine.own_records import FieldRecords, Fields, public_examples, records_of
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import SMALLEST_NORM
from worker.clipping.examined import ROWS, UnfitLayerError
from worker.clipping.totals import Grid
from worker.data.placed import device_of, passes_on, placed
from worker.models.base import Parameters
from worker.models.dropout import Dropout, Masks, masks_of, without_dropout
from worker.training.operations import Recorder
from worker.training.static import META, require_static

Loss = Callable[..., Tensor]  # of the model's output and the target: one number for each record
MOST_ROWS = 256  # of a pass, by default
TYPES: dict[torch.dtype, PassType] = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
LARGEST_NORM = 2.0**40


@dataclass(frozen=True)
class LoopSettings:
    """What a loop of one's own may name. All of it is public.

    Attributes:
        max_grad_norm: C.
        records: how many records the data are declared to have; None: they are counted in the data.
        physical_batch_size: the most rows of a pass. A step's batch has any size: passes are added up within it.
        examples: public records to try the model on.
    """

    max_grad_norm: float = 1.0
    records: int | None = None
    physical_batch_size: int | Literal["auto"] = "auto"
    examples: Any = None


@dataclass(frozen=True)
class Sums:
    """The sums that a model's gradients are added to.

    Attributes:
        rows: R, the most rows of one sum; public.
        asked: C, and the sizes of passes.
    """

    rows: int
    asked: LoopSettings


@dataclass(frozen=True)
class Tried:
    """A model that keeps records apart, and its engine.

    Attributes:
        module: the copy that passes run through.
        engine: clips and adds.
        masks: of its dropout.
        slack: a record changes a computed sum by at most this times C.
        rows_per_pass: P; 1 where records may not share a pass.
        unlisted: the operations that are not known to keep rows apart, or why a pass could not be followed.
        numbers: how many numbers are trained.
        dtype: of passes.
    """

    module: nn.Module
    engine: Bookkeeping[Fields]
    masks: tuple[Masks, ...]
    slack: float
    rows_per_pass: int
    unlisted: tuple[str, ...]
    numbers: int
    dtype: torch.dtype

    def begin(self, key: bytes, step: int) -> None:
        """Begins a step's passes."""
        for layer in self.masks:
            layer.begin(key, step)


def tried(model: nn.Module, loss: Loss, template: Sequence[Tensor], sums: Sums) -> Tried:
    """Tries a model on public records, and builds its engine.

    Raises:
        UnfitLayerError: a layer mixes records, or has no exact per-record gradients; names it.
        MisusedError: the loss is not one number for each record, or the model is in evaluation mode.
    """
    _require_fit(model, loss, sums)
    dtype, losses = _dtype_of(model), _losses_of(loss)
    examples = _examples(template, sums)
    trial = _copy(model)
    parameters = _varied(trained(trial))
    buffers = {name: each.clone() for name, each in trial.named_buffers()}
    engine = Bookkeeping(trial, losses, rows=ROWS, kind="flat", max_grad_norm=sums.asked.max_grad_norm, dtype=dtype)
    _require_losses(trial, losses, examples, dtype)
    engine.examine(examples, parameters)
    for name, buffer in trial.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise UnfitLayerError(name, "this buffer changes with the records that pass through: they are not noised")
    with Recorder() as recorder:
        engine.trace(parameters, examples)
    unlisted = (*recorder.unlisted, *_unfollowed(model, losses, examples, dtype))
    numbers = sum(each.numel() for each in parameters.values())
    rows = 1 if unlisted else _rows_per_pass(sums, numbers, dtype)
    positions = engine.positions_of(examples)
    model_copy = _copy(model)
    group = GROUP if dtype == torch.float32 else None
    ready = Bookkeeping(
        model_copy,
        losses,
        rows=rows,
        kind="flat",
        max_grad_norm=sums.asked.max_grad_norm,
        positions=positions,
        dtype=dtype,
        grid=Grid(sums.rows, rows),
        group=group,
    )
    slack = sensitivity_slack(sums.rows, rows, positions, group) + grid_slack(sums.rows, rows, numbers, 1)
    return Tried(model_copy, ready, masks_of(model_copy), slack, rows, unlisted, numbers, dtype)


def trained(model: nn.Module) -> Parameters:
    """The parameters that are trained, as they are: not copied."""
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


def _require_fit(model: nn.Module, loss: Loss, sums: Sums) -> None:
    if not model.training:
        raise MisusedError("the model is in evaluation mode: call model.train() before")
    if not trained(model):
        raise MisusedError("the model has no parameter that is trained: all have requires_grad=False")
    if isinstance(loss, nn.Module) and any(each.requires_grad for each in loss.parameters()):
        raise MisusedError("the loss has parameters of its own: put them into the model")
    if getattr(loss, "reduction", "none") != "none":
        raise MisusedError("the loss adds records up before they are clipped: give reduction='none'")
    if not SMALLEST_NORM <= sums.asked.max_grad_norm <= LARGEST_NORM:
        raise MisusedError("max_grad_norm must be a positive number")


def _dtype_of(model: nn.Module) -> torch.dtype:
    dtypes = {each.dtype for each in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= TYPES.keys():
        raise MisusedError("all parameters of a model have one type: float32, float64 or bfloat16")
    return dtypes.pop()


def _losses_of(loss: Loss) -> Callable[[nn.Module, Fields], Tensor]:
    def losses(module: nn.Module, fields: Fields) -> Tensor:
        *inputs, target = fields.tensors
        losses = loss(module(*inputs), target)
        if not isinstance(losses, Tensor) or losses.shape != target.shape[:1]:
            raise MisusedError(
                "the loss gives no number for each record: (records,) is its shape, of the model's output and the "
                "target (reduction='none', and a mean over what else there is)"
            )
        return losses

    return losses


def _copy(model: nn.Module) -> nn.Module:
    """A copy whose dropout has keyed masks."""
    try:
        copied = copy.deepcopy(model)
    except Exception as error:  # a module may hold anything
        raise MisusedError(f"the model cannot be copied: {type(error).__name__}: {error}") from None
    layers = [
        (parent, name, layer)
        for parent in copied.modules()
        for name, layer in parent.named_children()
        if type(layer) is nn.Dropout and layer.p > 0.0
    ]
    keyed: dict[int, Dropout] = {}
    for parent, name, layer in layers:
        if layer.p >= 1.0:
            raise UnfitLayerError(name, "it drops everything")
        if id(layer) not in keyed:
            keyed[id(layer)] = Dropout(_MasksOfCalls(layer.p), len(keyed)).train(layer.training)
        setattr(parent, name, keyed[id(layer)])
    return copied


class _MasksOfCalls(Masks):
    """Masks of a layer that a pass may call more than once: each call has its own."""

    CALLS = 2**10

    def begin_pass(self, first: int) -> None:
        """See Masks.begin_pass."""
        super().begin_pass(first)
        self._calls = 0

    def next(self, layer: int, x: Tensor) -> Tensor:
        """The factors of the layer's next call in a pass."""
        call, self._calls = self._calls, self._calls + 1
        if call >= self.CALLS:
            raise MisusedError("a pass calls one dropout layer more than a thousand times")
        return super().next(layer * self.CALLS + call, x)


def _examples(template: Sequence[Tensor], sums: Sums) -> FieldRecords:
    if sums.asked.examples is None:
        return public_examples(template, ROWS)
    records = records_of(sums.asked.examples)
    if len(records) < ROWS:
        raise MisusedError(f"a model is tried on {ROWS} public records")
    return records


def _varied(parameters: Parameters) -> Parameters:
    """Random weights in the same names and shapes: where a model begins with zeros, nothing would show."""
    generator = torch.Generator().manual_seed(1)
    varied = {}
    for name, parameter in parameters.items():
        fan_in = parameter.numel() / parameter.shape[0] if parameter.dim() > 1 else 1.0
        varied[name] = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
    return placed(varied, device_of(parameters))


def _require_losses(
    module: nn.Module, losses: Callable[[nn.Module, Fields], Tensor], examples: FieldRecords, dtype: torch.dtype
) -> None:
    """The loss is one number for each record, and the same when it is asked again."""
    device = next(module.parameters()).device
    records = next(iter(passes_on(device, examples, ROWS, dtype))).records
    with torch.no_grad(), without_dropout(module):
        try:
            first_losses, again = (losses(module, records) for _ in range(2))
        except MisusedError:
            raise
        except Exception as error:  # the user's own code may raise anything
            raise MisusedError(
                f"the model does not run on random records of the data's shapes: {type(error).__name__}: {error} "
                "(if only some values are possible, give `examples`: public records)"
            ) from error
    if not torch.equal(first_losses, again):
        raise UnfitLayerError(
            "the model", "it draws random numbers by itself, so that its passes do not repeat: use nn.Dropout"
        )


def _unfollowed(
    model: nn.Module, losses: Callable[[nn.Module, Fields], Tensor], examples: FieldRecords, dtype: torch.dtype
) -> tuple[str, ...]:
    """Why a pass is not one list of operations whatever the records hold; empty if it is."""
    module = _copy(model)
    records = next(iter(examples.passes(ROWS, dtype))).records
    try:
        with META, without_dropout(module):
            require_static(module.to(META), losses, records.to(META))
    except UnfitLayerError as error:
        return (str(error),)
    return ()


def _rows_per_pass(sums: Sums, numbers: int, dtype: torch.dtype) -> int:
    batch_size = sums.asked.physical_batch_size
    largest = min(MOST_ROWS, PASS_BYTES // (numbers * BYTES[TYPES[dtype]])) if batch_size == "auto" else int(batch_size)
    return cheapest_rows(max(1, largest), sums.rows, PASS_OVERHEAD, linear=False)
