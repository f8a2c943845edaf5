"""The noise step on a GPU: the same released bits as worker.noise.rounding, with one wait for the GPU.

All tensors of a query are one flat array. The float64 part of the computation runs on the GPU, without branches. It
also marks the numbers whose rounding it cannot decide (about three in a million), packs up to a fixed number of them,
and copies them to the processor: this is the only wait. The processor settles them exactly and writes them back.

R is a function of S + sZ alone (worker.noise.rounding), so it is the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from worker.data.passes import moved
from worker.noise.generator import KeyedStream
from worker.noise.rounding import TAIL, TOLERANCE, Digits, _settled_sum, grid

ONE_IN = 2**13  # at most one number in this many is packed; the expected share is a thirtieth of that
LEAST = 64
PIECE = 2**24  # numbers that are computed together: temporaries of a large model take no memory of its size


def add_noise_flat(
    values: Tensor, z: Tensor, std: float, stream: KeyedStream, step: int, first: int, sizes: Sequence[int]
) -> Tensor:
    """R of several tensors that lie one after the other.

    Args:
        values: S, float64 (m,), private.
        z: the streams' float64 Gaussians, (m,), on the same device.
        std: s.
        stream: the source of z's words.
        step: the logical step.
        first: the first tensor's stream.
        sizes: the numbers of each tensor.

    Returns:
        R, float64 (m,).

    Raises:
        PrivacyError: S is not finite.
    """
    result, packed = torch.empty_like(values), []
    starts = range(0, len(values), PIECE)
    for start in starts:
        part = slice(start, start + PIECE)
        result[part], marked = _rounded(values[part], z[part], std, start)
        packed.append(marked)
    doubtful_values: list[tuple[float, float, float]] = []
    rows = torch.cat(packed).cpu().tolist() if packed else []  # the wait
    for start in starts:
        limit = room(min(PIECE, len(values) - start))
        (count, *these), rows = rows[: 1 + 3 * limit], rows[1 + 3 * limit :]
        if count > limit:  # far more than can be expected: a sum that is not finite, or a broken generator
            doubtful_values = _all_doubtful(values, z, std)
            break
        doubtful_values += [(these[at], these[at + 1], these[at + 2]) for at in range(0, 3 * int(count), 3)]
    if doubtful_values:
        ends = list(accumulate(sizes))
        settled = [_settle(ends, sizes, each, std, stream, step, first) for each in doubtful_values]
        at = moved(torch.tensor([int(each[0]) for each in doubtful_values]), result.device)
        result.index_put_((at,), moved(torch.tensor(settled, dtype=torch.float64), result.device))
    return result


def room(numbers: int) -> int:
    """How many doubtful numbers are packed; public."""
    return max(LEAST, numbers // ONE_IN)


def _rounded(values: Tensor, z: Tensor, std: float, start: int) -> tuple[Tensor, Tensor]:
    """R as float64 computes it; and [how many are doubtful, (position, S, R) of the first of them], as many as there is
    room for.

    Args:
        start: the first number's position.
    """
    result, certain = _computed(values, z, std)
    doubtful, limit = ~certain, room(len(values))
    at = torch.nonzero_static(doubtful, size=limit, fill_value=0)[:, 0]  # of a fixed size: nothing waits, or is sorted
    rows = torch.stack([at.double() + start, values[at], result[at]], dim=1)
    return result, torch.cat([doubtful.sum()[None].double(), rows.flatten()])


def _computed(values: Tensor, z: Tensor, std: float) -> tuple[Tensor, Tensor]:
    """R as float64 computes it, and where it is certain. See worker.noise.rounding._round_sums."""
    g = grid(std)
    multiples = torch.round(values / g).mul_(g)  # exact, and so is the rest
    remainders = values - multiples
    total = torch.add(remainders, z, alpha=std)
    rounded = torch.add(total, 1.5 * 2.0**52 * g).sub_(1.5 * 2.0**52 * g)
    off = total.sub_(rounded).abs_()
    certain = (off <= (0.5 - TOLERANCE) * g) & ((rounded - remainders).abs_() <= TAIL * std)
    return rounded.add_(multiples), certain


def _all_doubtful(values: Tensor, z: Tensor, std: float) -> list[tuple[float, float, float]]:
    result, certain = _computed(values, z, std)
    at = torch.nonzero(~certain).view(-1)
    rows = torch.stack([at.double(), values[at], result[at]]).cpu()
    return [(float(each[0]), float(each[1]), float(each[2])) for each in rows.T.tolist()]


def _settle(
    ends: Sequence[int],
    sizes: Sequence[int],
    doubtful: tuple[float, float, float],
    std: float,
    stream: KeyedStream,
    step: int,
    first: int,
) -> float:
    """R of one number, exactly."""
    at, value, guess = doubtful
    tensor = next(number for number, end in enumerate(ends) if at < end)
    position = int(at) - (ends[tensor] - sizes[tensor])
    return _settled_sum(value, std, Digits(stream, step, first + tensor, position), guess)
