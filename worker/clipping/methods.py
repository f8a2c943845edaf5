"""Which way an accumulator takes: public sizes decide.

Costs are compared in float32 multiplications. A product in float64 costs twice as many, and its factors' float64 copies
WIDENING for each number. Measuring and adding a formed gradient costs MEMORY_COST for each number: of gradients that
fit in a core's cache, of others that are kept, and of others that are formed twice. All were measured.
"""

from __future__ import annotations

import torch

from worker.clipping.terms import Merged

WIDENING = 120
CACHED_COST, READ_COST, AGAIN_COST = 24, 32, 64
CACHED = 2**18  # numbers of a gradient that a core's cache holds
ROOM_BYTES = 2**28  # all that are kept of a pass
FEW_BYTES = 2**24  # so many of a parameter are kept in any case
LARGER = 4  # others are kept if they are at most so many times as large as their factors, which the pass holds anyway
SMALL = 2**15  # up to this many numbers, formed gradients are mostly kept and not formed again


def can_stay_factored(merged: Merged, *, divided: bool) -> bool:
    """Returns True if Gram matrices and one product cost less than formed gradients. Depends on sizes only.

    Uses no number of records but P, which all passes have: one more must not change how the others' norms are bounded.

    Args:
        divided: gradients are divided before they are measured.
    """
    outer = merged.outer
    if merged.dense is not None:
        return False
    if outer is None:
        return True
    positions, (p, q) = outer.positions, (outer.left.shape[2], outer.right.shape[2])
    if positions == 1 and merged.rows is None:
        return True
    if divided:
        return False
    dtype = outer.left.dtype
    keeps = p * q <= SMALL and merged.rows is None
    keeps = keeps or (dtype != torch.float64 and kept_bytes(merged, p * q, ROOM_BYTES) > 0)
    return gram_is_cheaper(positions, p, q, dtype, keeps=keeps)


def gram_is_cheaper(positions: int, p: int, q: int, dtype: torch.dtype, *, keeps: bool = False) -> bool:
    """Returns True if Gram matrices and a float64 product cost less than p × q gradients, formed once or twice.

    Args:
        dtype: of the factors.
        keeps: gradients are formed once.
    """
    wide = dtype == torch.float64
    gram = positions**2 * (p + q) + (1 if wide else 2) * positions * p * q
    gram += 0 if wide else WIDENING * positions * (p + q)
    cost = AGAIN_COST if wide else CACHED_COST if p * q <= CACHED else READ_COST if keeps else AGAIN_COST
    return gram <= ((1 if keeps else 2) * positions + cost) * p * q


def kept_bytes(merged: Merged, numbers: int, room: int) -> int:
    """Returns how much memory the pass's formed gradients are kept in; 0 if they are formed again.

    Args:
        numbers: of one gradient.
        room: bytes that the pass's other parameters leave.
    """
    if merged.dense is not None:
        return 0
    size = len(merged) * numbers * merged.dtype.itemsize
    factors = sum(each[0].numel() for each in merged.outer.tensors) if merged.outer else 0
    return size if size <= room and (size <= FEW_BYTES or numbers <= LARGER * factors) else 0
