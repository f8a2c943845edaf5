"""Compares a GPU's clipping of public numbers with the processor's, before its totals count a record (decision 89).

The kernels and whoever compiles, loads or launches them are then known to measure, clip and add. Passes find what a
launch leaves out later: a row without a length or a factor adds nothing.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.clipping import factors
from worker.clipping.accumulators import LONGEST, Lengths
from worker.clipping.engine import ClippingKind, in_float32
from worker.data.lengths import squared_lengths
from worker.data.norms import ROUNDING
from worker.data.passes import moved
from worker.native import gpu_pass
from worker.native.gpu_pass import Part

# More than the threads and blocks of a GPU take at once.
MATRICES = ((9601, 33), (7, 9000), (1, 1), (650, 300))
ROWS, NORM = 200_003, 0.7
WIDTH, GRADIENTS, GROUP, INVERSE = 60_001, 23, 4, 2.0**20


@cache
def require_same(device: torch.device) -> None:
    """Raises PrivacyError where lengths, clip factors or sums are not the processor's.

    Lengths may differ by what their slack pays for, factors by a part of 10⁻¹³; sums may not.
    """
    draw = torch.Generator().manual_seed(0)
    same = _lengths_are_same(device, draw) and _sums_are_same(device, draw)
    if not (same and all(_factors_are_same(kind, device, draw) for kind in factors.KINDS)):
        raise PrivacyError("this GPU clips otherwise than the processor")


def _lengths_are_same(device: torch.device, draw: torch.Generator) -> bool:
    matrices = [_numbers(draw, *shape) for shape in MATRICES]
    pairs = zip(matrices, gpu_pass.row_squares([moved(each, device) for each in matrices]), strict=True)
    return all(_within(squared_lengths(each), squares, (each.shape[1] + 8) * ROUNDING) for each, squares in pairs)


def _factors_are_same(kind: ClippingKind, device: torch.device, draw: torch.Generator) -> bool:
    groups = [[_lengths(draw, at, narrow=at % 3 < 2) for at in group] for group in (range(3), range(3, 6))]
    groups = groups if kind == "per_layer" else groups[:1]
    weights = torch.ones(ROWS, dtype=torch.float64)
    weights[::5] = 0.0
    moved_groups = [
        [Lengths(moved(a, device), b if isinstance(b, float) else moved(b, device), c) for a, b, c in group]
        for group in groups
    ]
    expected, halves = factors._by_torch(groups, kind, NORM, weights)
    results, within = factors._on_gpu(moved_groups, kind, NORM, moved(weights, device))
    is_wide = all(_within(one.wide, other.wide, 1e-13) for one, other in zip(expected, results, strict=True))
    is_narrow = all(torch.equal(each.wide.float(), each.narrow) for each in results)
    return is_wide and is_narrow and torch.equal(halves, within.cpu())


def _sums_are_same(device: torch.device, draw: torch.Generator) -> bool:
    gradients, rows = _numbers(draw, GRADIENTS, WIDTH), torch.rand(GRADIENTS, generator=draw)
    gradients[3], gradients[8], rows[3], rows[8] = torch.nan, torch.inf, 0.0, 0.0
    sums, zeros = _numbers(draw, 5, 700).double(), torch.zeros(WIDTH + 700, dtype=torch.int64)
    clipped = [in_float32(*each) for each in zip(gradients.split(GROUP), rows.split(GROUP), strict=True)]
    expected = torch.cat(
        [(torch.stack(each).double() * INVERSE).round().long().sum(dim=0) for each in (clipped, list(sums))]
    )
    broken, totals = moved(torch.zeros(2, 1, dtype=torch.int64), device), moved(zeros, device)
    parts = [
        Part(totals[:WIDTH], moved(gradients, device), moved(rows, device), GROUP),
        Part(totals[WIDTH:], moved(sums, device)),
    ]
    gpu_pass.add_sums(parts, INVERSE, broken[0])
    out_of_range = torch.zeros(3, 700, dtype=torch.float64)
    out_of_range[1, 0], out_of_range[2, 600] = torch.nan, 2.0**51
    gpu_pass.add_sums([Part(totals[WIDTH:].clone(), moved(out_of_range, device))], 1.0, broken[1])
    return torch.equal(expected, totals.cpu()) and broken.cpu().flatten().tolist() == [0, 2]


def _numbers(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw) * 10.0 ** torch.randint(-6, 3, shape, generator=draw)


def _lengths(draw: torch.Generator, at: int, *, narrow: bool) -> Lengths:
    """A row of them is not finite, one too long where float32 adds, and one's squares have cancelled."""
    squares = _numbers(draw, ROWS).double().square()
    squares[6 + at], squares[16 + at], squares[26 + at], squares[36 + at] = torch.nan, torch.inf, 2 * LONGEST**2, -1e-9
    return Lengths(squares, 1e-9 * squares.abs() + 1e-12 if at % 2 else 1e-9, narrow=narrow)


def _within(expected: Tensor, result: Tensor, relative: float) -> bool:
    return bool(((result.cpu() - expected).abs() <= relative * expected).all())
