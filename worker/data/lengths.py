"""Squared lengths in float64: of float32 numbers compiled, or by torch with the same bits.

A float32's square is exact in float64; one of float64 is rounded once. LANES sums are added side by side, and then one
after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from worker.native.flat_steps import STEPS

LANES = 32  # as in steps.c
WIDENED = 2**15  # columns whose squares are held at once


def squared_lengths(numbers: Tensor) -> Tensor:
    """Each row's sum of squares of (n, m), float64 (n,). Errs by at most (m + 8) · 2⁻⁵³ of itself.

    Each row's numbers are added in one order, whatever the other rows are.

    >>> squared_lengths(torch.tensor([[3.0, 4.0]]))
    tensor([25.], dtype=torch.float64)
    """
    squares = torch.empty(numbers.shape[0], dtype=torch.float64, device=numbers.device)
    if numbers.device.type == "meta" or (STEPS is not None and STEPS.squares(squares, numbers.contiguous())):
        return squares
    widened = (piece.double().square() for piece in numbers.split(WIDENED, dim=1))
    return _by_lanes(squares, (part for piece in widened for part in piece.split(LANES, dim=1)))


def squared_lengths_of_rows(ids: Tensor, values: Tensor) -> Tensor:
    """Σ_{t,u} [id_t = id_u] ⟨v_t, v_u⟩ for each record, float64 (n,): T additions of rows in place of T² products.

    With c_t the sum of the rows before t that have its id, it is Σ_t ⟨v_t, v_t + 2 c_t⟩. Rows are taken in the order of
    ids. Errs by at most (q + T² + 8) · 2⁻⁵³ of (Σ_t ‖v_t‖)².

    Args:
        ids: int64 (n, T).
        values: float32 (n, T, q).

    >>> squared_lengths_of_rows(torch.tensor([[0, 2, 0]]), torch.ones(1, 3, 2))
    tensor([10.], dtype=torch.float64)
    """
    if values.device.type != "cpu":
        wide = values.double()
        return torch.bmm(wide, wide.mT).mul_(ids[:, :, None] == ids[:, None, :]).sum(dim=(1, 2))
    ids, places = torch.sort(ids, dim=1, stable=True)
    squares = torch.empty(ids.shape[0], dtype=torch.float64)
    if STEPS is not None and STEPS.squares_of_rows(squares, places, ids, values):
        return squares
    lengths = torch.zeros(len(ids), values.shape[2], dtype=torch.float64)
    earlier = lengths.clone()
    for t in range(ids.shape[1]):
        v = values[torch.arange(len(ids)), places[:, t]].double()
        c = earlier * (ids[:, t] == ids[:, t - 1] if t else torch.zeros(len(ids)))[:, None]
        lengths += v * (v + (c + c))
        earlier = v + c
    return _by_lanes(squares, lengths.split(LANES, dim=1))


def one_by_one(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors of one shape, in their order."""
    first, *rest_parts = parts
    total = torch.zeros_like(first) + first
    for part in rest_parts:
        total += part
    return total


def _by_lanes(rows: Tensor, parts: Iterable[Tensor]) -> Tensor:
    """Σ over float64 (n, LANES), the last of which may be narrower: lane by lane, and then the lanes. For n rows."""
    lanes = rows.new_zeros(len(rows), LANES)
    for part in parts:
        (lanes if part.shape[1] == LANES else lanes[:, : part.shape[1]]).add_(part)
    return one_by_one(lanes.unbind(dim=1))
