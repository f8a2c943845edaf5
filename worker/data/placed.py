"""Passes and parameters on an attempt's device.

On the processor nothing is copied. On a GPU the next pass is made and copied while the GPU computes the current one:
from pinned memory, on a stream of its own, without waiting. Records that fit in a share of the GPU's memory stay there
(`resident`). The device, and sizes that follow from it, depend on public facts only, and never on the memory that is
free: a replay computes the same numbers on another GPU of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from worker.data.passes import Batch, Pass, moved

CPU = torch.device("cpu")
GPU_CHUNK_BYTES = 2**28  # of temporaries that are computed together: large enough that a GPU is busy
RESIDENT_SHARE = 0.25  # of the GPU's memory, for records
Self = TypeVar("Self")


@runtime_checkable
class Movable(Protocol):
    """Records whose tensors can be moved."""

    def to(self: Self, device: torch.device) -> Self:
        """The same records on a device."""
        ...

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that passes read."""
        ...


def placed(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Named tensors on a device."""
    return {name: moved(value, device) for name, value in tensors.items()}


def device_of(tensors: Mapping[str, Tensor]) -> torch.device:
    """The device of named tensors; the processor if there are none."""
    return next((value.device for value in tensors.values()), CPU)


def passes_on(device: torch.device, records: Batch[Any], rows: int, dtype: torch.dtype) -> Iterable[Pass[Any]]:
    """The batch's passes (see Batch.passes), with their tensors on a device."""
    passes = records.passes(rows, dtype)
    if device.type == "cpu":
        return passes
    return _copied(passes, device) if device.type == "cuda" else (_moved_pass(each, device) for each in passes)


def resident(records: Any, size_bytes: int, device: torch.device) -> Any:
    """The records on a GPU if they fit in a share of its memory, else unchanged: their passes are then copied.

    Args:
        size_bytes: a public bound on their size.
    """
    if device.type != "cuda" or not isinstance(records, Movable):
        return records
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    if size_bytes > RESIDENT_SHARE * total_bytes:
        return records
    return records.to(device)


def chunk_bytes(device: torch.device, in_cache: int) -> int:
    """The size of temporaries that are computed together: `in_cache` on a processor, so that they stay there."""
    return in_cache if device.type == "cpu" else GPU_CHUNK_BYTES


def _moved_pass(batch: Pass[Any], device: torch.device) -> Pass[Any]:
    records = batch.records.to(device) if isinstance(batch.records, Movable) else batch.records
    return replace(batch, records=records, present=moved(batch.present, device))


def _copied(passes: Iterable[Pass[Any]], device: torch.device) -> Iterator[Pass[Any]]:
    """Kernels of one pass run while the next one's records are made, pinned and copied: the copies wait for none of
    them. Memory that a pass gives back is not written before its kernels are done (`record_stream`)."""
    side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(current)  # what was queued before the first pass
    for batch in passes:
        with torch.cuda.stream(side):
            copy = _moved_pass(batch, device)
        current.wait_stream(side)
        if isinstance(copy.records, Movable):
            for tensor in copy.records.tensors:
                if tensor.is_cuda:
                    tensor.record_stream(current)
        copy.present.record_stream(current)
        yield copy
