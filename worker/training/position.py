"""The state of training after a step: what a digest covers, and what a checkpoint holds (decision 38).

All of it is post-processing of noised gradients. Sampler, noise, masks and rows of a step are functions of keys and the
step's number, so nothing else has to be kept to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worker.data.shards import InPieces
from worker.models.base import Parameters
from worker.optimizers.base import Optimizer, State
from worker.optimizers.pieces import flattened
from worker.optimizers.sharded import PIECE, Sharded
from worker.telemetry import in_one_piece, state_digest

NORM = "max_grad_norm"
Fill = Callable[[Tensor], None]  # replaces a flat tensor of the processor by the next numbers


@dataclass(frozen=True)
class Position:
    """The state after `step`; the next step changes its tensors in place. `norm`: C of the next step, if it adapts.

    Where the optimizer's state is sharded, it is of the numbers that this rank owns.
    """

    step: int
    parameters: Parameters
    state: State
    norm: float | None = None

    def digest(self, optimizer: Optimizer) -> str:
        """See state_digest: of the whole state, whoever keeps it."""
        return state_digest(self.step, *self._parts(optimizer))

    def pieces(self, optimizer: Optimizer) -> Iterator[Tensor]:
        """All numbers in the digest's order, flat and on the processor. Take each piece before the next.

        Where the state is sharded, all ranks go through it, to the end.
        """
        for part in self._parts(optimizer):
            for tensor in part:
                for piece in tensor.pieces:
                    for some in piece.detach().reshape(-1).split(PIECE):
                        yield some.cpu().contiguous()

    def filled(self, step: int, optimizer: Optimizer, fill: Fill) -> Position:
        """The state after another step, in this one's memory: `fill` writes each piece, in the order of `pieces`.

        Where the state is sharded, `fill` writes the same in every rank.
        """
        for value in self.parameters.values():
            _fill(value, fill)
        if isinstance(optimizer, Sharded):
            optimizer.fill(self.state, fill)
        else:
            for value in self.state.values():
                _fill(value, fill)
        norm = self._norm
        for value in norm.values():
            _fill(value, fill)
        return replace(self, step=step, norm=float(norm[NORM]) if norm else None)

    def copy(self) -> Position:
        """The same state in memory of its own."""
        return replace(self, parameters=flattened(self.parameters), state=_copied(self.state))

    @property
    def _norm(self) -> dict[str, Tensor]:
        return {} if self.norm is None else {NORM: torch.tensor([self.norm], dtype=torch.float64)}

    def _parts(self, optimizer: Optimizer) -> tuple[Iterator[InPieces], ...]:
        state = optimizer.whole_state(self.state) if isinstance(optimizer, Sharded) else in_one_piece(self.state)
        return in_one_piece(self.parameters), state, in_one_piece(self._norm)


def _fill(value: Tensor, fill: Fill) -> None:
    """Fills a contiguous tensor of any device, a piece at a time."""
    for some in value.detach().view(-1).split(PIECE):
        on_host = some.cpu()  # the same memory on a processor
        fill(on_host)
        if on_host is not some:
            some.copy_(on_host)


def _copied(state: State) -> State:
    """The state in memory of its own; each slot stays one flat tensor."""
    slots: dict[str, State] = {}
    for name, value in state.items():
        slots.setdefault(name.rpartition("/")[0], {})[name] = value
    return {name: value for slot in slots.values() for name, value in flattened(slot).items()}
