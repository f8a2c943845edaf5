"""The parameters' shards: which numbers of a model each rank owns.

A model's numbers lie one after another, tensor by tensor in the model's order. Rank r of W owns the consecutive ones
from ⌊pr/W⌋ up to ⌊p(r + 1)/W⌋, whatever tensor they belong to. It alone adds their noise, keeps their optimizer state
and updates them. A number's noise is addressed by its tensor and its place there, not by its owner. Updates are
elementwise. So the bits depend on no W.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.data.ranks import Ranks


@dataclass(frozen=True)
class Span:
    """Consecutive numbers of one tensor.

    Attributes:
        tensor: the tensor's number in the model's order.
        first: the place of the first one in the tensor.
        count: how many.
    """

    tensor: int
    first: int
    count: int


@dataclass(frozen=True)
class InPieces:
    """A named tensor whose numbers come a piece at a time, in order."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    pieces: Iterator[Tensor]


@dataclass(frozen=True)
class Shards:
    """Which numbers each rank owns.

    Attributes:
        shapes: of the model's tensors, in its order.
        ranks: all ranks.
        own: what this rank owns of each tensor; tensors of which it owns nothing are left out. Empty where the model
            has fewer numbers than there are ranks.
    """

    shapes: Mapping[str, torch.Size]
    ranks: Ranks
    own: Mapping[str, Span] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", self.of_rank(self.ranks.rank))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], ranks: Ranks) -> Shards:
        """The shards of tensors like these."""
        return cls({name: each.shape for name, each in tensors.items()}, ranks)

    @property
    def numbers(self) -> int:
        """p, of all tensors."""
        return sum(math.prod(each) for each in self.shapes.values())

    def bounds(self, rank: int) -> tuple[int, int]:
        """The first number that a rank owns, and the first one after them, among all p.

        >>> class Three:
        ...     rank, size = 0, 3
        >>> shards = Shards({"w": torch.Size([2, 5])}, Three())
        >>> [shards.bounds(rank) for rank in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        """
        return self.numbers * rank // self.ranks.size, self.numbers * (rank + 1) // self.ranks.size

    def of_rank(self, rank: int) -> dict[str, Span]:
        """What a rank owns of each tensor, in the model's order."""
        begin, end = self.bounds(rank)
        spans: dict[str, Span] = {}
        at = 0
        for number, (name, shape) in enumerate(self.shapes.items()):
            size = math.prod(shape)
            first, last = max(begin - at, 0), min(end - at, size)
            if first < last:
                spans[name] = Span(number, first, last - first)
            at += size
        return spans

    def views(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The numbers that this rank owns, (count,) each: views of contiguous tensors in these names and shapes."""
        return {name: tensors[name].view(-1)[span.first : span.first + span.count] for name, span in self.own.items()}
