"""Modules of recommenders. A record is one user's sequence; items count from 1, and 0 fills sequences up."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worker.models.dropout import Dropout, Masks
from worker.models.item_loss import ItemLoss
from worker.models.positions import Positions

Sequences = tuple[Tensor, Tensor]  # inputs and targets, int64 (n, T) each, 0 where there is nothing


class TransformerRec(nn.Module):
    """The next item from those before: causal self-attention over item embeddings, scored against all items.

    Pre-norm blocks; learned positions; logits H Eᵀ with E the input embedding where tied, else an output matrix.

    Args:
        items: M, with item 0, which stands for nothing.
        dim: d.
        heads, blocks: of attention.
        max_length: T, the longest sequence.
        tied: whether input and output embeddings are one matrix.
        positions: "all": a loss at each position; "last": at the last one only.
        masks: of dropout, after the embedding and after each half of a block; None: there is none.

    Source: Kang & McAuley 2018, "Self-attentive sequential recommendation" (SASRec); DPFormer.
    """

    def __init__(
        self,
        items: int,
        dim: int,
        heads: int,
        blocks: int,
        max_length: int,
        *,
        tied: bool = True,
        positions: str = "all",
        masks: Masks | None = None,
    ) -> None:
        super().__init__()
        self.last = positions == "last"
        self.embedding = nn.Embedding(items, dim, padding_idx=0)
        self.positions = Positions(max_length, dim)
        self.dropout = _dropout(masks, 0)
        self.blocks = nn.ModuleList(_Block(dim, heads, masks, 2 * at + 1) for at in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.output = ItemLoss(items, dim)
        if tied:
            self.tie()

    def tie(self) -> None:
        """Makes one of both embeddings; to be called again once `to_empty` has made them two."""
        self.output.weight = cast(nn.Parameter, self.embedding.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """What the positions are scored by: (n, T, d), or (n, 1, d) for the last: the last block makes no other."""
        x, last = self.dropout(self.positions(self.embedding(ids))), last_place(ids) if self.last else None
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, last if number == len(self.blocks) else None)
        hidden: Tensor = self.norm(x)
        return hidden

    def scores(self, ids: Tensor) -> Tensor:
        """Of all items: (n, T, M), or (n, 1, M) for the last position."""
        scores: Tensor = self.output.scores(self(ids))
        return scores

    @staticmethod
    def record_losses(module: Any, batch: Sequences) -> Tensor:
        """Each user's cross-entropy, averaged over the positions that have a target; 0 where none has. (n,)"""
        ids, targets = batch
        if module.last:
            targets = targets.gather(1, last_place(ids)[:, None])
        losses: Tensor = module.output(module(ids), targets)
        return losses


def last_place(ids: Tensor) -> Tensor:
    """Where the last item of each sequence stands, (n,); 0 where there is none."""
    return (ids != 0).sum(dim=1).clamp(min=1) - 1


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, masks: Masks | None, layer: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.merge = nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.after_attention, self.after_widening = _dropout(masks, layer), _dropout(masks, layer + 1)

    def forward(self, x: Tensor, last: Tensor | None) -> Tensor:
        """Sequences are filled up on the right, so that the causal mask alone keeps fillings out of sight.

        `last`: (n,), the one place of each sequence that is wanted. It sees all before it.
        """
        normal, seen = self.attention_norm(x), None
        k, v = self._by_head(self.key(normal)), self._by_head(self.value(normal))
        if last is not None:
            at, places = torch.arange(len(x), device=x.device), torch.arange(x.shape[1], device=x.device)
            x, normal, seen = x[at, last][:, None], normal[at, last][:, None], (places <= last[:, None])[:, None, None]
        q = self._by_head(self.query(normal))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=last is None)
        x = x + self.after_attention(self.merge(found.transpose(1, 2).flatten(2)))
        widened: Tensor = self.after_widening(self.narrow(torch.relu(self.widen(self.norm(x)))))
        return x + widened

    def _by_head(self, x: Tensor) -> Tensor:
        """(n, heads, T, d/heads)."""
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)


def _dropout(masks: Masks | None, layer: int) -> nn.Module:
    return nn.Identity() if masks is None else Dropout(masks, layer)
