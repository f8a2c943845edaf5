"""Public directions in the space of parameters, made again wherever they are needed and never kept.

A direction has an entry of −1 or +1 for each parameter, drawn from a public seed. Such signs are exact, so every
machine makes the same ones to the bit; of Gaussians the last bits would differ, and so would a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from worker.data.passes import moved
from worker.noise.attempt_keys import public_key_of_seed
from worker.noise.generator import WORD_BITS, KeyedStream

ALONG = "along"  # the name of the one number that a step sums
PIECE, GPU_PIECE = 2**16, 2**22  # numbers at a time, a multiple of a word's bits


class Directions:
    """z_t ∈ {−1, +1}ᵈ of each step t: independent fair signs. E[z zᵀ] = I, and ‖z‖ = √d.

    Anybody can compute them: they depend on the seed, the step and the parameters' places, and on no record and no
    secret.

    Args:
        seed: public, of the job's specification.
    """

    def __init__(self, seed: int) -> None:
        self._stream = KeyedStream(public_key_of_seed(seed, "directions"))

    def signs(self, step: int, tensor: int, count: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """One step's signs for one tensor, a piece at a time: where it lies in the flat tensor, and float64 ±1."""
        size = PIECE if device.type == "cpu" else GPU_PIECE
        for first in range(0, count, size):
            at = slice(first, min(first + size, count))
            words = self._stream.words(step, tensor, 0, first // WORD_BITS, -(-(at.stop - first) // WORD_BITS))
            bits = np.unpackbits(words.astype("<i8").view(np.uint8), count=at.stop - first, bitorder="little")
            yield at, moved(torch.from_numpy(bits), device).double().mul_(2.0).sub_(1.0)

    def beside(self, parameters: Mapping[str, Tensor], step: int, by: float) -> Iterator[tuple[str, Tensor]]:
        """θ + by · z_t, one tensor after another, each in new memory."""
        for number, (name, value) in enumerate(parameters.items()):
            copy = value.clone(memory_format=torch.contiguous_format)
            flat = copy.view(-1)
            for at, z in self.signs(step, number, flat.numel(), flat.device):
                flat[at].add_(z, alpha=by)
            yield name, copy
