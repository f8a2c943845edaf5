"""Updates in place, a piece at a time: all tensors of a piece stay in the cache, and temporaries are small.

A model's tensors, and those of one state slot, lie one after another in one flat tensor. So the cost of an update grows
with the numbers, not with the tensors. Elementwise arithmetic gives the same bits in any pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from worker.data.flat import spanning

PIECE = 2**15  # numbers for each thread of a processor
GPU_PIECE = 2**24  # of a GPU: temporaries of a large model take no memory of its size
JOINED = 2**20  # gradients of up to this many numbers are joined first: many small tensors cost more than a copy

Group = Mapping[str, Tensor]


def flattened(tensors: Group) -> dict[str, Tensor]:
    """The same numbers, as consecutive views of one new tensor; as they are if their types differ.

    >>> made = flattened({"w": torch.ones(2, 2), "b": torch.zeros(1)})
    >>> made["b"].storage_offset()
    4
    """
    if len({(each.dtype, each.device) for each in tensors.values()}) != 1:
        return {name: each.clone() for name, each in tensors.items()}
    flat = torch.cat([each.reshape(-1) for each in tensors.values()])
    parts = flat.split([each.numel() for each in tensors.values()])
    return {name: part.view(each.shape) for part, (name, each) in zip(parts, tensors.items(), strict=True)}


def zeros(tensors: Group) -> dict[str, Tensor]:
    """Zeros in these names, shapes and types, flattened."""
    return flattened({name: torch.zeros_like(each) for name, each in tensors.items()})


def root_(numbers: Tensor) -> Tensor:
    """√, in place, rounded correctly on every device and machine.

    For float64 on a CPU torch's own asks a vendor's library, whose last bit depends on the kind of processor: a replay
    on another worker would differ.

    >>> root_(torch.tensor([4.0, 2.0], dtype=torch.float64)).tolist()
    [2.0, 1.4142135623730951]
    """
    if numbers.device.type != "cpu":
        return numbers.sqrt_()
    np.sqrt(numbers.numpy(), out=numbers.numpy())
    return numbers


def pieces(inputs: Sequence[Group], changed: Sequence[Group]) -> Iterator[tuple[Tensor, ...]]:
    """Corresponding flat pieces of all groups, first those that are only read. All have the same names and shapes.

    Args:
        inputs: gradients. Their pieces may be copies.
        changed: parameters and state, contiguous; their pieces are views.
    """
    names = list(changed[0])
    if not names:  # a rank that owns no numbers
        return
    only_read, changed_parts = ([[group[name] for name in names] for group in groups] for groups in (inputs, changed))
    for part in _wholes(only_read, changed_parts):
        size = PIECE * torch.get_num_threads() if part[0].device.type == "cpu" else GPU_PIECE
        if part[0].numel() <= size:
            yield part
            continue
        yield from zip(*(each.split(size) for each in part), strict=True)


def _wholes(inputs: list[list[Tensor]], changed: list[list[Tensor]]) -> Iterator[tuple[Tensor, ...]]:
    """The flat tensors of all groups, if they have them; else one tensor of each group at a time."""
    flat = [spanning(group) for group in changed]
    gradients = [spanning(group) for group in inputs]
    if any(each is None for each in flat):
        gradients = [None for _ in inputs]
    elif sum(each.numel() for each in changed[0]) <= JOINED:
        gradients = [_joined(group) if each is None else each for group, each in zip(inputs, gradients, strict=True)]
    group = [*gradients, *flat]
    if all(each is not None for each in group):
        yield tuple(each for each in group if each is not None)
        return
    for tensors in zip(*inputs, *changed, strict=True):
        reading, changing = tensors[: len(inputs)], tensors[len(inputs) :]
        yield (*(each.reshape(-1) for each in reading), *(each.view(-1) for each in changing))


def _joined(group: list[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in group])
