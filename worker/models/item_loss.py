"""A recommender's output layer and loss in one: the scores against all items leave the cache only once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.errors import PrivacyError
from worker.data.placed import chunk_bytes

CHUNK_BYTES = 2**21  # of scores: computed, turned into residuals and multiplied while in the cache


class ItemLoss(nn.Module):
    """Cross-entropy of softmax(h Wᵀ) at each position, averaged over a record's positions that have a target.

    The forward pass already knows the gradient at the scores, softmax − one-hot, and writes it over the scores. The
    clipping engine takes it from `noted`.

    Args:
        items: M, the rows of W; target 0 means none.
        dim: d.
    """

    def __init__(self, items: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(items, dim))
        self._noted: tuple[Tensor, Tensor] | None = None
        self._kept: Tensor | None = None

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(n,) losses for hidden (n, T, d) and targets (n, T)."""
        real = targets != 0
        weights = real / real.sum(dim=1, keepdim=True).clamp(min=1)
        shares = weights.to(hidden.dtype)
        noting = not self.weight.requires_grad
        scores = self._scores(hidden, keep=noting)
        losses: Tensor = _Scored.apply(hidden, self.weight, targets, shares, scores)  # type: ignore[no-untyped-call]
        if noting:
            self._noted = scores.view(*targets.shape, -1), hidden.detach() * shares[..., None]
        return losses

    def scores(self, hidden: Tensor) -> Tensor:
        """h Wᵀ, (…, M)."""
        return F.linear(hidden, self.weight)

    def _scores(self, hidden: Tensor, *, keep: bool) -> Tensor:
        """Memory for the scores (n·T, M).

        For the engine it is kept between passes: it is as large as everything else together, and allocating it anew
        would cost as much as computing the scores.
        """
        rows, items = hidden.shape[0] * hidden.shape[1], len(self.weight)
        cache = self._kept
        if cache is None or not keep or cache.numel() < rows * items or cache.dtype != hidden.dtype:
            cache = hidden.new_empty(rows * items)
        self._kept = cache if keep else None
        return cache[: rows * items].view(rows, items)

    def noted(self) -> tuple[Tensor, Tensor]:
        """The last call's residuals (n, T, M), and its hidden (n, T, d) times each position's share. Call once.

        The residuals are valid until the next call, which overwrites them and increments their version.

        Raises:
            PrivacyError: there was no such call.
        """
        if self._noted is None:
            raise PrivacyError("the loss layer was not called")
        noted, self._noted = self._noted, None
        return noted


def _chunk_rows(rows: int, limit: int) -> int:
    """How many of a pass's rows (record × position) are scored together: about as many in each product."""
    return -(-rows // -(-rows // max(1, limit)))


class _Scored(torch.autograd.Function):
    """The losses; leaves the residuals, softmax − one-hot, in `residuals`, (n·T, M)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, residuals: Tensor
    ) -> Tensor:
        flat, target = hidden.flatten(0, 1), targets.reshape(-1, 1)
        slopes = torch.empty_like(flat)
        losses, minus = torch.empty_like(flat[:, 0]), torch.full_like(flat[:, :1], -1.0)
        rows = _chunk_rows(
            len(flat), chunk_bytes(flat.device, CHUNK_BYTES) // max(1, len(weight) * flat.element_size())
        )
        for at in range(0, len(flat), rows):
            part = slice(at, at + rows)
            chunk = torch.mm(flat[part], weight.mT, out=residuals[part])
            torch.softmax(chunk, dim=1, out=chunk)
            target_scores = chunk.gather(1, target[part])[:, 0]
            losses[part] = -target_scores.clamp(min=torch.finfo(chunk.dtype).tiny).log()
            chunk.scatter_add_(1, target[part], minus[part])
            torch.mm(chunk, weight, out=slopes[part])
        saved = (residuals, hidden, weights) if ctx.needs_input_grad[1] else ()
        ctx.save_for_backward(slopes.view_as(hidden).mul_(weights[..., None]), *saved)
        return (losses.view_as(weights) * weights).sum(dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slopes, *saved = ctx.saved_tensors
        share = gradients[0][:, None, None]
        slope = None
        if saved:
            residuals, hidden, weights = saved
            slope = residuals.mT @ (hidden * weights[..., None] * share).flatten(0, 1)
        return slopes * share, slope, None, None, None
