"""Dropout whose masks replay: keyed by step, layer and a record's place in the logical batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from app.errors import PrivacyError
from worker.noise.fills import KeyedDropout


class Masks:
    """Where the dropout layers of one model get their masks from.

    Within a step each layer counts the rows that it has seen: passes are consecutive pieces of the logical batch, and
    only the last one is filled up, so that P changes no record's mask.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._step = 0
        self._source: KeyedDropout | None = None
        self._seen: dict[int, int] = {}

    def begin(self, key: bytes, step: int) -> None:
        """A query of a step begins, under a key of purpose "dropout"."""
        self._source, self._step, self._seen = KeyedDropout(key, self.rate), step, {}

    def next(self, layer: int, x: Tensor) -> Tensor:
        """What the layer's next records are multiplied with.

        Raises:
            PrivacyError: no step has begun.
        """
        if self._source is None:
            raise PrivacyError("dropout without a step has no masks")
        first = self._seen.get(layer, 0)
        self._seen[layer] = first + len(x)
        shape, device = tuple(x.shape), x.device
        return self._source.mask(self._step, layer, shape, first_record=first, dtype=x.dtype, device=device)


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Masks go by a record's place: what is asked of a record alone is asked without them."""
    layers = [each for each in module.modules() if isinstance(each, Dropout) and each.training]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


class Dropout(nn.Module):
    """While training, each number is 0 with probability `rate`, else 1/(1 − rate) of itself.

    Args:
        masks: the model's.
        layer: numbers its dropout layers.
    """

    def __init__(self, masks: Masks, layer: int) -> None:
        super().__init__()
        self.masks, self.layer = masks, layer

    def forward(self, x: Tensor) -> Tensor:
        return x * self.masks.next(self.layer, x) if self.training else x
