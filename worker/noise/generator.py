"""The keyed, counted generator: uniform words from AES-256-CTR, and standard Gaussians made from them.

The counter block of 128 bits, most significant first:

    step: 32 bits | tensor: 24 bits | lane: 8 bits | block: 64 bits

A block gives two words of 64 bits, so word w of a stream is half of block w // 2. Streams are (step, tensor, lane).
Positions stay below 2⁴⁸, so the cipher's own counter never carries into the lane, and no two streams share a block.
Bounds: step < 2³², tensor < 2²⁴, lane < 2⁸, words of a stream < 2⁴⁸. Unless AES-256 is broken, b blocks under one key
differ from random blocks with an advantage of at most b²/2¹²⁹ (a permutation repeats no block): 2⁻⁴⁹ for 10⁶ steps of
2·10⁶ numbers.

A word is a pure function of (key, step, tensor, lane, position). So every step replays bit for bit, for any chunks and
any number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError
from worker.noise.attempt_keys import checked_key

STEPS = 2**32
TENSORS = 2**24
LANES = 2**8
WORDS = 2**48
WORD_BITS = 64
# Numbers at a time: they fit in a core's cache, and below 2¹⁵ torch stays on the calling thread.
CHUNK = 3 * 2**13
ZEROS = memoryview(bytes(8 * CHUNK))  # what is encrypted: the keystream itself comes out
HALF_STEP = torch.tensor(2.0**-53, dtype=torch.float64)


class KeyedStream:
    """Uniform 64-bit words, addressed by (step, tensor, lane, position).

    Args:
        key: 32 secret bytes.

    Raises:
        PrivacyError: no valid key.

    >>> KeyedStream(bytes(range(32))).words(step=1, tensor=0, lane=0, start=0, count=2).shape
    (2,)
    """

    def __init__(self, key: bytes | None) -> None:
        self._cipher = AES(checked_key(key))

    @property
    def key(self) -> bytes:
        """The 32 secret bytes, for words that a GPU makes."""
        return bytes(self._cipher.key)

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        """Words start … start+count−1 of a stream, as signed integers.

        Raises:
            PrivacyError: an address outside the layout, which would wrap around into another stream.
        """
        if count < 0:
            raise PrivacyError("a noise stream cannot have fewer than 0 words")
        words = np.empty(count, dtype=np.int64)
        self.fill(words, step, tensor, lane, start)
        return words

    def fill(self, out: NDArray[np.int64], step: int, tensor: int, lane: int, start: int) -> None:
        """Writes the words from `start` on into `out`: as `words`, without new memory.

        Raises:
            PrivacyError: an address outside the layout.
        """
        checked_address(step, tensor, lane, start, len(out))
        counter = (step << 96) | (tensor << 72) | (lane << 64) | start // 2
        encryptor = Cipher(self._cipher, CTR(counter.to_bytes(16, "big"))).encryptor()
        encryptor.update(ZEROS[: start % 2 * 8])
        piece = len(ZEROS) // 8
        for at in range(0, len(out), piece):
            part = out[at : at + piece]
            encryptor.update_into(ZEROS[: 8 * len(part)], part.data.cast("B"))


class GaussianGenerator:
    """Standard Gaussians in float64, one word each, by inverting the distribution function.

    A word's upper 53 bits k (signed, −2⁵² ≤ k < 2⁵²) give v = (2k+1)·2⁻⁵³, exactly representable and symmetric around
    0, and z = √2·erf⁻¹(v): |z| ≤ 8.3, never infinite. All bits of the stream define an exact number
    (worker.noise.rounding). z approximates it by float64 and the machine's erf⁻¹, so its last bits may differ between
    machines. Nothing that protects data is released from here without that module's rounding.

    Args:
        key: 32 secret bytes.

    Attributes:
        stream: the source of the words.

    >>> GaussianGenerator(bytes(range(32))).noise(step=1, tensor=0, size=3).shape
    torch.Size([3])
    """

    def __init__(self, key: bytes | None) -> None:
        self.stream = KeyedStream(key)

    def noise(self, step: int, tensor: int, size: int, first: int = 0) -> Tensor:
        """One step's Gaussians for one tensor: the same on every call.

        Args:
            step: the logical step.
            tensor: the tensor's index within the step.
            size: how many, from position `first` on.
            first: the first one's position in the tensor.

        Returns:
            float64 (size,), standard normal.

        Raises:
            PrivacyError: an address outside the counter's layout.
        """
        bits = torch.empty(checked_size(size), dtype=torch.int64)
        for start in range(0, size, CHUNK):
            self.fill_bits(bits[start : start + CHUNK], step, tensor, first + start)
        return gaussians(bits)

    def fill_bits(self, out: Tensor, step: int, tensor: int, start: int) -> None:
        """Writes k of the words from `start` on into an int64 tensor on the CPU."""
        words = out.numpy()
        self.stream.fill(words, step, tensor, 0, start)
        np.right_shift(words, 11, out=words)


def gaussians(bits: Tensor, out: Tensor | None = None) -> Tensor:
    """z = √2·erf⁻¹((2k+1)·2⁻⁵³) for each k, float64. Only erf⁻¹ and √2 are inexact."""
    out = torch.empty_like(bits, dtype=torch.float64) if out is None else out
    out.copy_(bits)  # comes first: an integer times a float would be computed in float32
    return torch.add(HALF_STEP, out, alpha=2.0**-52, out=out).erfinv_().mul_(2.0**0.5)


def checked_address(step: int, tensor: int, lane: int, start: int, count: int) -> None:
    """Raises PrivacyError if words are outside the counter's layout: they would wrap around into another stream."""
    if not (0 <= step < STEPS and 0 <= tensor < TENSORS and 0 <= lane < LANES):
        raise PrivacyError("a noise stream's address is outside the counter's layout")
    if start < 0 or start + count > WORDS:
        raise PrivacyError("a noise stream is longer than the counter's layout allows")


def checked_size(size: int) -> int:
    """Returns the size. Raises PrivacyError if a stream has fewer words."""
    if not 0 <= size <= WORDS:
        raise PrivacyError("a tensor is larger than the counter's layout allows")
    return size
