"""Keyed fills: initial parameters and dropout masks, from the noise generator under keys of their own.

Neither protects anything, so float64 rounding is acceptable. Uniform numbers and masks are the same on every machine.
Gaussian numbers may differ in their last bits between kinds of machines, which the first state's digest reveals.

One record's part in a step must not depend on other records. Masks are addressed by a record's place in the logical
batch, so no split into physical batches changes them. A neighbouring data set moves records to other places. This does
no harm as long as the key is secret, since their masks have the same distribution there. The noisy sums of two
neighbours are mixtures, over masks, of pairs that differ by one record's clipped gradient. Such mixtures are no further
apart than their worst pair (joint quasi-convexity of the hockey-stick divergence). So on private data the key is
derived from the secret with purpose "dropout", never from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.noise.generator import GaussianGenerator, KeyedStream, checked_size


class KeyedInit:
    """Initial parameters: tensor i of a model is stream (0, i), so no tensor depends on the others' shapes.

    Args:
        key: 32 bytes of purpose "init".

    Raises:
        PrivacyError: no key.

    >>> KeyedInit(bytes(range(32))).kaiming_uniform(0, (4, 3)).shape
    torch.Size([4, 3])
    """

    def __init__(self, key: bytes | None) -> None:
        self._generator = GaussianGenerator(key)

    def normal(self, tensor: int, shape: Sequence[int], std: float) -> Tensor:
        """N(0, std²), float64."""
        return self._generator.noise(0, tensor, math.prod(shape)).mul_(std).view(tuple(shape))

    def uniform(self, tensor: int, shape: Sequence[int], bound: float) -> Tensor:
        """Uniform on (−bound, bound), float64: v·bound with v = (2k+1)·2⁻⁵³ of a word's upper 53 bits k."""
        bits = torch.empty(checked_size(math.prod(shape)), dtype=torch.int64)
        self._generator.fill_bits(bits, 0, tensor, 0)
        return bits.double().mul_(2.0**-52).add_(2.0**-53).mul_(bound).view(tuple(shape))

    def kaiming_uniform(self, tensor: int, shape: Sequence[int], gain: float = 3.0**-0.5) -> Tensor:
        """Uniform with variance gain²/fan-in, with the fan-in of a weight (out, in, kernel…).

        The gain 1/√3 gives ±1/√fan-in, as in torch's Linear and Conv.
        """
        return self.uniform(tensor, shape, gain * math.sqrt(3.0 / _fan_in(shape)))


class KeyedDropout:
    """Masks that replay: each element is kept with probability 1 − rate, and then divided by 1 − rate.

    Args:
        key: 32 bytes of purpose "dropout"; secret if the data are private.
        rate: the probability of dropping an element, in [0, 1), rounded to 2⁻³².

    Raises:
        PrivacyError: no key, or a rate outside its range.

    >>> KeyedDropout(bytes(range(32)), rate=0.5).mask(step=1, call=0, shape=(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, key: bytes | None, rate: float) -> None:
        if not 0.0 <= rate < 1.0:
            raise PrivacyError("a dropout rate must lie in [0, 1)")
        self._stream = KeyedStream(key)
        dropped = min(round(rate * 2**32), 2**32 - 1)
        self._first_kept = dropped - 2**31
        self._scale = 2.0**32 / (2**32 - dropped)

    def mask(
        self,
        step: int,
        call: int,
        shape: Sequence[int],
        *,
        first_record: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """The factors on activations: 0 or 1/(1 − rate).

        Args:
            step: the logical step.
            call: numbers the dropout layers, and each layer's calls, within a forward pass.
            shape: (records, …), of one physical batch.
            first_record: its first record's place in the logical batch.

        Raises:
            PrivacyError: an address outside the counter's layout.
        """
        count = math.prod(shape)
        start = first_record * math.prod(shape[1:])
        first = start // 2  # two elements a word
        words = self._stream.words(step, call, 0, first, (start + count + 1) // 2 - first)
        halves = words.view(np.int32)[start - 2 * first :][:count]
        stays = torch.from_numpy(halves >= self._first_kept).view(tuple(shape))
        if torch.device(device).type == "cuda":  # a byte an element, from pinned memory: nothing waits for the copy
            stays = stays.pin_memory().to(device, non_blocking=True)
        return stays.to(device, dtype).mul_(self._scale)


def _fan_in(shape: Sequence[int]) -> int:
    return max(1, math.prod(shape[1:]))
