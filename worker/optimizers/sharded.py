"""Sharded optimizer state: each rank keeps the state of the numbers that it owns, and updates those alone.

Updates are elementwise, so each number gets the bits that it would get on one rank. After an update the ranks exchange
their parameters, so that each has all of them for its passes. A state's digest is that of the whole state: the ranks
exchange it in pieces, and each hashes all of it.

Source: Rajbhandari, Rasley, Ruwase & He 2020, "ZeRO: memory optimizations toward training trillion parameter models",
stage 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.data.flat import spanning
from worker.data.shards import InPieces, Shards
from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import Observing, Optimizer, Preconditioned, State, StepInfo
from worker.optimizers.pieces import flattened

PIECE = 2**20  # numbers of a state that are exchanged together


@dataclass(frozen=True)
class Sharded:
    """An optimizer on this rank's numbers. Parameters are whole; gradients and state are of what this rank owns.

    Each call is collective: every rank makes it.

    Attributes:
        inner: the optimizer; its update and its state are elementwise.
        shards: of the model.
    """

    inner: Optimizer
    shards: Shards

    def init(self, parameters: Parameters) -> State:
        """The inner state of this rank's numbers."""
        return self.inner.init(self.shards.views(parameters))

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of the inner optimizer on this rank's numbers. Then all ranks have all parameters."""
        _, state = self.inner.update(noised, state, self.shards.views(parameters), at)
        self._exchange(parameters)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """See Optimizer.finish: the whole result, in every rank."""
        own_parameters = self.shards.views(parameters)
        finished = self.inner.finish(state, own_parameters, steps)
        return parameters if finished is own_parameters else self._whole(finished)

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor] | None:
        """The inner optimizer's, whole; None if it divides nothing."""
        inner = self.inner
        own_divisors = inner.divisors(state, step, query) if isinstance(inner, Preconditioned) else None
        return None if own_divisors is None else self._whole(own_divisors)

    def whole_state(self, state: State) -> Iterator[InPieces]:
        """The state of all numbers, in the order and shapes that it has on one rank. Take each piece before the next.

        All ranks must go through it, to the end.
        """
        for name, like, slot in self._layout():
            pieces = iter((state[name],)) if slot is None else self._pieces(slot, like.dtype, state.get(name))
            yield InPieces(name, like.dtype, like.shape, pieces)

    def fill(self, state: State, fill: Callable[[Tensor], None]) -> None:
        """Replaces the state by what `fill` writes, in the order of `whole_state`, each rank's by what it owns.

        Args:
            fill: replaces a flat tensor by the next numbers of the whole state, the same in every rank.
        """
        for name, like, slot in self._layout():
            if slot is None:
                fill(state[name].view(-1))
                continue
            for rank in range(self.shards.ranks.size):
                span = self.shards.of_rank(rank).get(slot)
                count = 0 if span is None else span.count
                for first in range(0, count, PIECE):
                    piece = torch.empty(min(PIECE, count - first), dtype=like.dtype)
                    fill(piece)
                    if rank == self.shards.ranks.rank:
                        state[name][first : first + len(piece)] = piece

    def _layout(self) -> Iterator[tuple[str, Tensor, str | None]]:
        """The whole state's names and shapes, and of which parameter's numbers each is; None: every rank has it."""
        shapes = self.shards.shapes.items()
        like = {name: torch.empty(shape, dtype=torch.float64, device="meta") for name, shape in shapes}
        for name, tensor in self.inner.init(like).items():
            slot = name.rpartition("/")[2]
            yield name, tensor, slot if slot in like and tensor.shape == like[slot].shape else None

    def _pieces(self, slot: str, dtype: torch.dtype, own_part: Tensor | None) -> Iterator[Tensor]:
        """The state of one tensor, each piece from the rank that owns it."""
        for rank in range(self.shards.ranks.size):
            span = self.shards.of_rank(rank).get(slot)
            if span is None:
                continue
            mine = own_part if rank == self.shards.ranks.rank else None
            for first in range(0, span.count, PIECE):
                count = min(PIECE, span.count - first)
                piece = torch.empty(count, dtype=dtype) if mine is None else mine[first : first + count]
                self.shards.ranks.from_rank(rank, piece)
                yield piece

    def _whole(self, own_parts: Mapping[str, Tensor]) -> Parameters:
        """All ranks' numbers, in memory of their own."""
        shapes = self.shards.shapes
        parts = torch.empty(self.shards.numbers, dtype=torch.float64).split([each.numel() for each in shapes.values()])
        parameters = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        for name, part in self.shards.views(parameters).items():
            part.copy_(own_parts[name])
        self._exchange(parameters)
        return parameters

    def _exchange(self, tensors: Parameters) -> None:
        """Each rank gives the others what it owns.

        Raises:
            PrivacyError: the tensors are not consecutive views of one.
        """
        flat = spanning(list(tensors.values()))
        if flat is None or len(flat) != self.shards.numbers:
            raise PrivacyError("sharded parameters must lie in one tensor")
        for rank in range(self.shards.ranks.size):
            begin, end = self.shards.bounds(rank)
            if begin < end:
                self.shards.ranks.from_rank(rank, flat[begin:end])


@dataclass(frozen=True)
class ShardedObserving(Sharded):
    """The same for an optimizer with public side information."""

    def observe(self, public_gradient: dict[str, Tensor], state: State) -> State:
        """The state of this rank's numbers after the inner optimizer has seen their public gradient."""
        if not isinstance(self.inner, Observing):
            return state
        return self.inner.observe(self.shards.views(flattened(public_gradient)), state)


def sharded(inner: Optimizer, shards: Shards) -> Sharded:
    """The optimizer with its state sharded."""
    return ShardedObserving(inner, shards) if isinstance(inner, Observing) else Sharded(inner, shards)
