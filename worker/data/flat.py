"""Tensors that lie one after another in memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def spanning(group: Sequence[Tensor]) -> Tensor | None:
    """The flat tensor of consecutive contiguous views; None if they are not, or there are none."""
    if not group:
        return None
    first = group[0]
    address, numbers = first.data_ptr(), 0
    for tensor in group:
        if not tensor.is_contiguous() or tensor.dtype != first.dtype or tensor.device != first.device:
            return None
        if tensor.data_ptr() != address + numbers * first.element_size():
            return None
        numbers += tensor.numel()
    storage = first.untyped_storage().nbytes() // first.element_size()
    if first.storage_offset() + numbers > storage:
        return None  # neighbours by chance, each with memory of its own
    return first.as_strided((numbers,), (1,))
