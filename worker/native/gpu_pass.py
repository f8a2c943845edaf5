"""A pass's clipping on a GPU, of all parameters in a few kernels (core/native/clipping_pass.h).

Each reads memory once: lengths of formed gradients, clip factors from all lengths, and clipped sums, added to totals.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.native import gpu
from worker.native.flat_steps import MeasuredNumbers

MATRICES, LENGTHS, PARTS = 64, 96, 32  # of one call, as in clipping_pass.h
LEAST_LANES, NUMBERS = 32, 8  # threads of a row, at least, and numbers of a thread, where that are more threads
T = TypeVar("T")
POINTER, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class Part(NamedTuple):
    """What one parameter adds.

    Attributes:
        totals: int64 (m,). Those of a call's parts do not overlap.
        numbers: (n, m). With factors: gradients, float32. Without: n sums, float32 or float64.
        factors: float32 (n,). A row with factor 0 adds 0, whatever it is.
        group: how many rows float32 adds, one after the other.
    """

    totals: Tensor
    numbers: Tensor
    factors: Tensor | None = None
    group: int = 1


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("squares", POINTER),
        ("numbers", POINTER),
        *((name, COUNT) for name in ("rows", "width", "lanes", "begin")),
    ]


class _Squares(ctypes.Structure):
    _fields_ = [*((name, COUNT) for name in ("tiles", "matrices")), ("matrix", _Matrix * MATRICES)]


class _Length(ctypes.Structure):
    _fields_ = [("numbers", MeasuredNumbers), ("group", COUNT)]


class _Bounds(ctypes.Structure):
    _fields_ = [
        ("bounds", POINTER),
        *((name, COUNT) for name in ("rows", "groups", "lengths")),
        ("length", _Length * LENGTHS),
    ]


class _Factors(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("bounds", "weights", "wide", "narrow", "halves")),
        *((name, NUMBER) for name in ("growth", "kind", "norm", "gamma")),
        *((name, COUNT) for name in ("rows", "groups", "lengths")),
    ]


class _Part(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("totals", "numbers", "factors")),
        *((name, COUNT) for name in ("rows", "width", "group", "begin", "wide")),
    ]


class _Sums(ctypes.Structure):
    _fields_ = [
        ("broken", POINTER),
        ("inverse", NUMBER),
        ("tiles", COUNT),
        ("parts", COUNT),
        ("part", _Part * PARTS),
    ]


def row_squares(matrices: Sequence[Tensor]) -> list[Tensor]:
    """‖g_i‖² of each matrix's rows, float64 (n,), of float32 (n, m): the squares are exact, and float64 adds them.

    Raises:
        PrivacyError: the sizes, types or devices do not fit.
        TransientError: the kernel cannot be compiled or launched here.
    """
    if not matrices:
        return []
    device, rows = matrices[0].device, [each.shape[0] for each in matrices]
    _require(all(each.device == device and each.dtype == torch.float32 and each.dim() == 2 for each in matrices))
    # A row that no thread reaches is not finite: it adds nothing.
    squares = torch.full((sum(rows),), torch.nan, dtype=torch.float64, device=device).split(rows)
    for chunk in _chunks(list(zip(matrices, squares, strict=True)), MATRICES):
        call, contiguous = _Squares(matrices=len(chunk)), [each.contiguous() for each, _ in chunk]
        for matrix, numbers, (_, out) in zip(call.matrix, contiguous, chunk, strict=False):
            matrix.rows, matrix.width = numbers.shape
            matrix.squares, matrix.numbers = out.data_ptr(), numbers.data_ptr()
            matrix.lanes, matrix.begin = _lanes(matrix.width), call.tiles
            call.tiles += -(-matrix.rows // (gpu.THREADS // matrix.lanes))
        if call.tiles:
            gpu.launch("scrimp_row_squares", call, call.tiles * gpu.THREADS, device)
    return list(squares)


def _lanes(width: int) -> int:
    lanes = LEAST_LANES
    while lanes < min(gpu.THREADS, width // NUMBERS):
        lanes *= 2
    return lanes


def clip_factors(
    groups: Sequence[Sequence[MeasuredNumbers]], weights: Tensor, growth: float, query: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted clip factors of groups of parameters: float64 and float32 (groups, n), and the first group's
    Σ_i (1[factor ≥ 1] − ½) over factors that are not 0, float64 (1,).

    Args:
        groups: their squares are float64 (n,), on the GPU of the weights, contiguous.
        weights: likewise; 0 for an empty row.
        growth: of the root of a group's sum, after which it is an upper bound of the length.
        query: see Steps.clip_factors.

    Raises:
        TransientError: the kernels cannot be compiled or launched here.
    """
    (rows,), count, device = weights.shape, len(groups), weights.device
    # A row that no thread reaches has the factor 0.
    bounds, wide = weights.new_zeros(2 * count + 1, rows).split([count + 1, count])
    narrow, halves = torch.zeros_like(wide, dtype=torch.float32), torch.zeros(1, dtype=torch.int64, device=device)
    lengths = [(at, length) for at, group in enumerate(groups) for length in group]
    for chunk in _chunks(lengths, LENGTHS):
        call = _Bounds(bounds.data_ptr(), rows, count, len(chunk))
        for length, (group, numbers) in zip(call.length, chunk, strict=False):
            length.numbers, length.group = numbers, group
        gpu.launch("scrimp_add_lengths", call, rows, device)
    pointers = (each.data_ptr() for each in (bounds, weights, wide, narrow, halves))
    by = _Factors(*pointers, growth, *query, rows, count, len(lengths))
    gpu.launch("scrimp_clip_factors", by, rows, device)
    return wide, narrow, halves.double().mul_(0.5)


def add_sums(parts: Sequence[Part], inverse: float, broken: Tensor) -> None:
    """totals += Σ over groups of nearest(inverse · Σ_i factors_i numbers_i), or Σ_i nearest(inverse · numbers_i).

    Args:
        inverse: a power of two.
        broken: int64 (1,), grows if a sum is not finite, or has 2⁵¹ units or more: the totals are then of no use.

    Raises:
        PrivacyError: the sizes, types or devices do not fit.
        TransientError: the kernel cannot be compiled or launched here.
    """
    for some in _chunks([each for each in parts if each.numbers.numel()], PARTS):
        chunk = [each._replace(numbers=each.numbers.contiguous()) for each in some]
        call = _Sums(broken.data_ptr(), inverse, parts=len(chunk))
        for part, (totals, numbers, factors, group) in zip(call.part, chunk, strict=False):
            (rows, width), wide = numbers.shape, numbers.dtype == torch.float64
            _require(_is_flat(totals, torch.int64, width, broken.device) and numbers.device == broken.device)
            _require(group >= 1 and (numbers.dtype == torch.float32 or (wide and factors is None)))
            if factors is not None:
                _require(_is_flat(factors, torch.float32, rows, broken.device))
                part.factors = factors.data_ptr()
            part.totals, part.numbers, part.wide = totals.data_ptr(), numbers.data_ptr(), wide
            part.rows, part.width, part.begin = rows, width, call.tiles
            part.group = rows if factors is None else group
            call.tiles += -(-width // gpu.THREADS) * -(-rows // part.group)
        gpu.launch("scrimp_add_sums", call, call.tiles * gpu.THREADS, broken.device)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _is_flat(tensor: Tensor, dtype: torch.dtype, numbers: int, device: torch.device) -> bool:
    fits = tensor.dtype == dtype and tensor.shape == (numbers,) and tensor.is_contiguous()
    return fits and tensor.device == device


def _require(fit: bool) -> None:
    if not fit:
        raise PrivacyError("a pass's tensors do not fit what a GPU is to compute of them")
