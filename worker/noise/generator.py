"""The keyed, counted generator: uniform words from AES-256-CTR, and standard Gaussians made of them.

The counter block of 128 bits, most significant first:

    step: 32 bits | tensor: 24 bits | lane: 8 bits | block: 64 bits

A block gives two words of 64 bits, so word w of a stream is half of block w // 2. Streams are (step, tensor, lane);
positions stay below 2⁴⁸, so the cipher's own counting never carries into the lane, and no two streams ever share a
block. Bounds: step < 2³², tensor < 2²⁴, lane < 2⁸, words of a stream < 2⁴⁸. Under one key at most 2⁵⁸ blocks may be
drawn (10⁷ steps of 7·10⁹ numbers with four lanes are 2⁵⁷): far from 2⁶⁴, where blocks of a permutation differ
noticeably from random ones.

A word is a pure function of (key, step, tensor, lane, position), so every step replays bit for bit, whatever the chunks
and the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from torch import Tensor

from app.errors import PrivacyError
from worker.noise.keys import checked_key

STEPS = 2**32
TENSORS = 2**24
LANES = 2**8
WORDS = 2**48
CHUNK = 2**15  # numbers at a time: what is worked on stays in a core's cache
SUM_OF_FOUR = 4


class KeyedStream:
    """Uniform 64-bit words, addressed by (step, tensor, lane, position).

    Args:
        key: 32 secret bytes.

    Raises:
        PrivacyError: no proper key.
    """

    def __init__(self, key: bytes | None) -> None:
        self._cipher = AES(checked_key(key))

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        """Words start … start+count−1 of a stream, as signed integers.

        Raises:
            PrivacyError: an address outside the layout: it would wrap around into another stream.
        """
        if not (0 <= step < STEPS and 0 <= tensor < TENSORS and 0 <= lane < LANES):
            raise PrivacyError("a noise stream's address is outside the counter's layout")
        if start < 0 or count < 0 or start + count > WORDS:
            raise PrivacyError("a noise stream is longer than the counter's layout allows")
        first = start // 2
        counter = (step << 96) | (tensor << 72) | (lane << 64) | first
        encryptor = Cipher(self._cipher, CTR(counter.to_bytes(16, "big"))).encryptor()
        blocks = (start + count + 1) // 2 - first
        words = np.frombuffer(encryptor.update(bytes(16 * blocks)), dtype="<i8")
        return words[start - 2 * first :][:count]


class GaussianGenerator:
    """Standard Gaussians in float64, one word each, by the inverse of the distribution function.

    A word's upper 53 bits k (signed, −2⁵² ≤ k < 2⁵²) give v = (2k+1)·2⁻⁵³, exactly representable and symmetric around
    0, and z = √2·erf⁻¹(v): |z| ≤ 8.3, never infinite.

    `sum_of_four` adds four such numbers of four lanes and halves the sum: again standard, and the low bits of a result
    no longer tell which single uniform it came from (attacks on floating-point noise). On by default.

    Args:
        key: 32 secret bytes.
        sum_of_four: off only where nothing private is protected, or to measure its price.

    Source: Mironov 2012 (the attack); Holohan & Braghin 2021, "Secure random sampling in differential privacy" (sums).
    """

    def __init__(self, key: bytes | None, *, sum_of_four: bool = True) -> None:
        self._stream = KeyedStream(key)
        self._lanes = SUM_OF_FOUR if sum_of_four else 1

    def noise(self, step: int, tensor: int, size: int) -> Tensor:
        """The Gaussians of one step for one tensor: the same ones whenever they are asked for.

        Args:
            step: the logical step.
            tensor: the tensor's index within the step.
            size: how many, from position 0.

        Returns:
            float64 (size,), standard normal.

        Raises:
            PrivacyError: an address outside the counter's layout.
        """
        if size > WORDS:
            raise PrivacyError("a tensor is larger than the counter's layout allows")
        result = np.empty(size, dtype=np.float64)

        def fill(start: int) -> None:
            self._fill(result[start : start + CHUNK], step, tensor, start)

        _run_all(fill, range(0, size, CHUNK))
        return torch.from_numpy(result)

    def _fill(self, out: NDArray[np.float64], step: int, tensor: int, start: int) -> None:
        total = torch.from_numpy(out)
        lane_values = torch.empty_like(total) if self._lanes > 1 else total
        for lane in range(self._lanes):
            words = self._stream.words(step, tensor, lane, start, len(out))
            values = total if lane == 0 else lane_values
            _centred_uniforms(words, values.numpy())
            torch.erfinv(values, out=values)
            if lane > 0:
                total += values
        total *= 2.0**0.5 / self._lanes**0.5


def _centred_uniforms(words: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """v = (2k+1)·2⁻⁵³ of each word's upper 53 bits k: every operation is exact, and v is never 0 or ±1."""
    np.multiply(words >> 11, 2.0**-52, out=out)
    out += 2.0**-53


def _run_all(task: Callable[[int], None], starts: range) -> None:
    """Runs the task for each start, on as many threads as torch uses; each writes its own part, so order is nothing."""
    if len(starts) <= 1 or torch.get_num_threads() == 1:
        for start in starts:
            task(start)
    else:
        for _ in _pool(torch.get_num_threads()).map(task, starts):
            pass


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="noise")
