"""One pass from a private sum to its noised mean: Gaussians are made of words, added, rounded and divided."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.data.flat import spanning
from worker.native.threads import on_threads
from worker.noise import native
from worker.noise.generator import CHUNK, KeyedStream, checked_size, gaussians
from worker.noise.rounding import add_noise, grid, settle_at

AT_ONCE = 2**20  # numbers in one call of the library, which puts them on torch's threads
PIECE = 4 * CHUNK  # numbers whose words are made together where all do not fit in memory
SHIFT = 11  # a word's upper 53 bits give the float64 Gaussian


@dataclass(frozen=True)
class Address:
    """Where the words of one tensor's noise come from: positions first, first + 1, … of (step, tensor) in a stream."""

    stream: KeyedStream
    step: int
    tensor: int
    first: int = 0


def takes_words() -> bool:
    """Returns True if words alone should be made ahead: the compiled step turns them into Gaussians as it adds them."""
    return native.NATIVE is not None


def noised_mean(
    private_sum: Tensor, noise: Tensor, std: float, divisor: int, address: Address, out: Tensor | None = None
) -> Tensor:
    """R / L: R as in worker.noise.rounding, to the bit, whatever computes it.

    Args:
        private_sum: S, float64.
        noise: the address' words (int64) or their float64 Gaussians, in equal number; overwritten.
        std: s.
        divisor: L.
        out: where to write, contiguous float64; it may be `private_sum`. None: the noise's own memory.

    Returns:
        R / L in the shape of `private_sum`, float64.

    Raises:
        PrivacyError: S is not finite or not float64, or the sizes differ.
    """
    flat = private_sum.reshape(-1)
    target = (noise if out is None else out).view(-1).view(torch.float64)
    if flat.dtype != torch.float64 or not len(flat) == noise.numel() == target.numel():
        raise PrivacyError("a private sum is float64 and has one word of noise for each number")
    if noise.dtype == torch.int64 and takes_words():
        _compiled(flat, noise.view(-1), target, std, divisor, [address])
    else:
        z = gaussians(noise >> SHIFT) if noise.dtype == torch.int64 else noise
        at = (address.stream, address.step, address.tensor, address.first)
        torch.div(add_noise(flat, z, std, *at), divisor, out=target)
    return target.view(private_sum.shape)


def noised_means(
    private_sums: Sequence[Tensor], noise: Sequence[Tensor], std: float, divisor: int, addresses: Sequence[Address]
) -> list[Tensor]:
    """`noised_mean` of several tensors, at once where the sums lie one after another, and so do the words."""
    flat, words = spanning(private_sums), spanning(noise)
    at_once = flat is not None and words is not None and words.dtype == torch.int64 and takes_words()
    if flat is None or words is None or not at_once or flat.dtype != torch.float64 or len(flat) != len(words):
        items = zip(private_sums, noise, addresses, strict=True)
        return [noised_mean(value, noise_of, std, divisor, address) for value, noise_of, address in items]
    sizes = [value.numel() for value in private_sums]
    target = words.view(torch.float64)
    _compiled(flat, words, target, std, divisor, addresses, sizes)
    return [part.view(value.shape) for part, value in zip(target.split(sizes), private_sums, strict=True)]


def noised_in_place(private_sum: Tensor, std: float, divisor: int, address: Address) -> Tensor:
    """R / L as in `noised_mean`, over S itself if that is contiguous. The words are made piece by piece, on as many
    threads as torch uses, and take no memory of the tensor's size. Only where `takes_words`.

    Raises:
        PrivacyError: S is not finite or not float64, or the address is outside the generator's layout.
    """
    if private_sum.dtype != torch.float64:
        raise PrivacyError("a private sum is float64")
    flat = private_sum.reshape(-1)
    checked_size(address.first + len(flat))

    def work(start: int) -> None:
        part, at = flat[start : start + PIECE], replace(address, first=address.first + start)
        words = torch.empty(len(part), dtype=torch.int64)
        at.stream.fill(words.numpy(), at.step, at.tensor, 0, at.first)
        _compiled(part, words, part, std, divisor, [at])

    on_threads(work, range(0, len(flat), PIECE))
    return flat.view(private_sum.shape)


def _compiled(
    flat: Tensor,
    words: Tensor,
    out: Tensor,
    std: float,
    divisor: int,
    addresses: Sequence[Address],
    sizes: Sequence[int] | None = None,
) -> None:
    """Writes R / L of tensors that lie one after another.

    Args:
        sizes: theirs; None: there is one.
    """
    library = native.NATIVE
    if library is None:
        raise PrivacyError("there is no compiled noise step")
    ends = list(accumulate(sizes or [len(flat)]))
    for start in range(0, len(flat), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        target = out[part]
        for index in library.release(words[part], flat[part], target, std, grid(std), float(divisor)).tolist():
            which = bisect_right(ends, start + index)
            address, begin = addresses[which], ends[which - 1] if which else 0
            position = address.first + start + index - begin
            exact = settle_at(float(target[index]), std, address.stream, address.step, address.tensor, position)
            target[index] = exact / divisor
