"""Dropout whose masks replay: keyed by step, layer and the record's place in the logical batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from core.errors import PrivacyError
from worker.noise.fills import KeyedDropout


class Masks:
    """The source of masks for one model's dropout layers.

    From `begin` or `begin_pass` on each layer counts the rows that it has seen. Passes are consecutive pieces of the
    logical batch, and only the last one has padding, so neither P nor the number of ranks changes a record's mask.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._step = 0
        self._source: KeyedDropout | None = None
        self._first = 0
        self._seen: dict[int, int] = {}

    def begin(self, key: bytes, step: int) -> None:
        """Begins a step's query, under a key of purpose "dropout"."""
        self._source, self._step = KeyedDropout(key, self.rate), step
        self.begin_pass(0)

    def begin_pass(self, first: int) -> None:
        """The next rows are the batch's records from place `first` on: a rank skips the passes of the others."""
        self._first, self._seen = first, {}

    def next(self, layer: int, x: Tensor) -> Tensor:
        """The factors for the layer's next records.

        Raises:
            PrivacyError: no step has begun.
        """
        if self._source is None:
            raise PrivacyError("dropout has no masks before a step begins")
        first = self._seen.get(layer, self._first)
        self._seen[layer] = first + len(x)
        shape, device = tuple(x.shape), x.device
        return self._source.mask(self._step, layer, shape, first_record=first, dtype=x.dtype, device=device)


def masks_of(module: nn.Module) -> tuple[Masks, ...]:
    """The sources of masks of a module's dropout layers."""
    by_id = {id(each.masks): each.masks for each in module.modules() if isinstance(each, Dropout)}
    return tuple(by_id.values())


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Switches dropout off. Masks depend on a record's place, so results for a single record need this."""
    layers = [each for each in module.modules() if isinstance(each, Dropout) and each.training]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


class Dropout(nn.Module):
    """In training, sets each number to 0 with probability `rate`, and otherwise multiplies it by 1/(1 − rate).

    Args:
        masks: the model's.
        layer: the number of this dropout layer.
    """

    def __init__(self, masks: Masks, layer: int) -> None:
        super().__init__()
        self.masks, self.layer = masks, layer

    def forward(self, x: Tensor) -> Tensor:
        """Applies the next mask in training; otherwise returns x."""
        return x * self.masks.next(self.layer, x) if self.training else x
