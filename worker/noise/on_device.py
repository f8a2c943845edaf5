"""The noise step on a GPU: the same released bits as worker.noise.rounding, in one kernel, with one wait for the GPU.

The kernel (core/native/noise_step.h) makes the words of AES-256-CTR where they are used, by worker.noise.generator's
addresses, so nothing is copied but the key. Its arithmetic is the float64 tier of the compiled step on processors, with
the same proven bound (docs/theorems.md). Numbers that are in doubt (2 of 10¹⁰) become NaN, and are listed with their
sums, in a fixed number of places. The list is copied: this is the only wait. The processor settles them exactly.

R is a function of S + sZ alone (worker.noise.rounding), so it is the same on every device. Before the first release on
a GPU, the kernel's bits are compared with the processor's on public numbers.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.native import gpu
from worker.noise.generator import STEPS, TENSORS, WORDS, KeyedStream, checked_address, gaussians
from worker.noise.release import SHIFT, Address, noised_mean
from worker.noise.rounding import grid, settle_at

SPANS, DOUBTS = 64, 256  # as in noise_step.h
# Compared: more numbers than a GPU's threads take at once, and a stream's last ones. The last IN_DOUBT are in doubt.
PUBLIC_KEY, PUBLIC_STD, IN_DOUBT = bytes(range(32)), 3.7, 40
PUBLIC_SIZES, PUBLIC_FIRST = (2**19, 1, 3000, IN_DOUBT), (0, 5, WORDS - 3001, 2**40 + 1)


class Numbers(ctypes.Structure):
    """Span of noise_step.h."""

    _fields_ = [
        ("numbers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "position", "begin", "at", "tensor")),
    ]


class Step(ctypes.Structure):
    """Step of noise_step.h: the kernel's argument."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("scale", "inverse", "grid", "divisor")),
        ("doubts", ctypes.c_void_p),
        ("cipher_blocks", ctypes.c_int64),
        ("key", ctypes.c_uint32 * 8),
        ("step", ctypes.c_uint32),
        ("spans", ctypes.c_uint32),
        ("span", Numbers * SPANS),
    ]


def noised_on_device(
    private_sums: Sequence[Tensor], std: float, divisor: int, addresses: Sequence[Address]
) -> list[Tensor]:
    """R / L of the tensors of one query, over S itself where that is contiguous.

    Args:
        private_sums: S, float64, on one GPU.
        std: s.
        divisor: L.
        addresses: of their words, of one stream and one step.

    Raises:
        PrivacyError: S is not finite, or an address is outside the generator's layout; or this GPU's bits are not the
            processor's.
        TransientError: no kernel can be made or launched here.
    """
    if private_sums:
        _require_same_bits(private_sums[0].device)
    return _noised(private_sums, std, divisor, addresses)


def _noised(private_sums: Sequence[Tensor], std: float, divisor: int, addresses: Sequence[Address]) -> list[Tensor]:
    results = [each.contiguous() for each in private_sums]
    flat = [each.view(-1) for each in results]
    starts = list(accumulate((len(each) for each in flat), initial=0))
    spans = [at for at, each in enumerate(flat) if len(each)]
    if not spans:
        return results
    doubts = torch.zeros(2 + 2 * DOUBTS, dtype=torch.int64, device=flat[0].device)
    for at in range(0, len(spans), SPANS):
        numbers = [(flat[each], starts[each], addresses[each]) for each in spans[at : at + SPANS]]
        step = _argument(numbers, std, divisor, doubts)
        gpu.launch("scrimp_noise_step", step, step.cipher_blocks, doubts.device)
    listed = doubts.cpu()  # the wait
    count, reached = listed[:2].tolist()
    places, sums = listed[2::2].tolist(), listed[3::2].view(torch.float64).tolist()
    if reached != starts[-1]:  # whatever the driver says of its launches
        raise PrivacyError("a GPU's noise has not reached all numbers of a private sum")
    if count > DOUBTS:  # far more than can be expected
        raise PrivacyError("a private sum is not finite, or the noise generator is broken")
    for place, value in zip(places[:count], sums[:count], strict=True):
        which = bisect_right(starts, place) - 1
        address, index = addresses[which], place - starts[which]
        exact = settle_at(value, std, address.stream, address.step, address.tensor, address.first + index)
        flat[which][index].fill_(exact / divisor)
    return results


def _argument(numbers: Sequence[tuple[Tensor, int, Address]], std: float, divisor: int, doubts: Tensor) -> Step:
    cell, address = grid(std), numbers[0][2]
    step = Step(std / cell, 1.0 / cell, cell, divisor, doubts.data_ptr(), step=address.step, spans=len(numbers))
    step.key[:] = struct.unpack(">8I", address.stream.key)
    for span, (flat, start, place) in zip(step.span, numbers, strict=False):
        checked_address(place.step, place.tensor, 0, place.first, len(flat))
        if (place.stream, place.step) != (address.stream, address.step):
            raise PrivacyError("the sums of one call have noise of one stream and one step")
        span.numbers, span.count, span.position = flat.data_ptr(), len(flat), place.first
        span.begin, span.at, span.tensor = step.cipher_blocks, start, place.tensor
        step.cipher_blocks += (place.first + len(flat) + 1) // 2 - place.first // 2
    return step


@cache
def _require_same_bits(device: torch.device) -> None:
    """Compares this GPU's release of public numbers with the processor's, whose words OpenSSL makes.

    Of addresses all bits are set in some. The last sums end at boundaries between cells, as far as float64 reaches: the
    kernel must list each of them, or it would release them as they are.
    """
    stream, step = KeyedStream(PUBLIC_KEY), STEPS - 1
    addresses = [Address(stream, step, TENSORS - 1 - at, first) for at, first in enumerate(PUBLIC_FIRST)]
    items = zip(addresses, PUBLIC_SIZES, strict=True)
    words = [torch.from_numpy(stream.words(step, at.tensor, 0, at.first, size)) for at, size in items]
    sums = [torch.linspace(-99.0, 99.0, len(each), dtype=torch.float64) for each in words]
    boundaries = (torch.arange(IN_DOUBT, dtype=torch.float64) + 0.5) * grid(PUBLIC_STD)
    sums[-1] = boundaries - PUBLIC_STD * gaussians(words[-1] >> SHIFT)
    results = _noised([each.to(device, copy=True) for each in sums], PUBLIC_STD, 7, addresses)
    for value, word, address, result in zip(sums, words, addresses, results, strict=True):
        if not torch.equal(noised_mean(value, word, PUBLIC_STD, 7, address), result.cpu()):
            raise PrivacyError("this GPU's noise has other bits than the processor's")
