"""Models over interactions: `transformer_rec` (a record is one user's sequence) and `matrix_factorization` (a rating).

Modules and losses for the clipping engines. Item and user ids count from 1; 0 fills sequences up.
"""

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
            self.output.weight = cast(nn.Parameter, self.embedding.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """What the positions are scored by: (n, T, d), or (n, 1, d) for the last: the last block makes no other."""
        x = self.dropout(self.positions(self.embedding(ids)))
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, last=self.last and number == len(self.blocks))
        hidden: Tensor = self.norm(x)
        return hidden

    def scores(self, ids: Tensor) -> Tensor:
        """Of all items: (n, T, M), or (n, 1, M) for the last position."""
        scores: Tensor = self.output.scores(self(ids))
        return scores

    @staticmethod
    def record_losses(module: Any, batch: Sequences) -> Tensor:
        """Each user's cross-entropy, averaged over the positions that have a target; 0 where none has. (n,)"""
        hidden: Tensor = module(batch[0])
        losses: Tensor = module.output(hidden, batch[1][:, -hidden.shape[1] :])
        return losses


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, masks: Masks | None, layer: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.merge = nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.after_attention, self.after_widening = _dropout(masks, layer), _dropout(masks, layer + 1)

    def forward(self, x: Tensor, *, last: bool) -> Tensor:
        """Sequences are filled up on the right, so that the causal mask alone keeps fillings out of sight.

        `last`: only the last position is wanted. It sees all others.
        """
        normal = self.attention_norm(x)
        k, v = self._by_head(self.key(normal)), self._by_head(self.value(normal))
        x, normal = (x[:, -1:], normal[:, -1:]) if last else (x, normal)
        q = self._by_head(self.query(normal))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=not last)
        x = x + self.after_attention(self.merge(seen.transpose(1, 2).flatten(2)))
        widened: Tensor = self.after_widening(self.narrow(torch.relu(self.widen(self.norm(x)))))
        return x + widened

    def _by_head(self, x: Tensor) -> Tensor:
        """(n, heads, T, d/heads)."""
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)


def _dropout(masks: Masks | None, layer: int) -> nn.Module:
    return nn.Identity() if masks is None else Dropout(masks, layer)


class MatrixFactorization(nn.Module):
    """r̂ = ⟨p_u, q_i⟩ + b_u + b_i + r₀. A record is one rating: unit `example` only.

    Args:
        users, items: how many there are, with 0, which stands for nobody.
        dim: of the factors.
        offset: r₀, a public constant: the middle of the scale.

    Source: Koren, Bell & Volinsky 2009, "Matrix factorization techniques for recommender systems".
    """

    def __init__(self, users: int, items: int, dim: int, offset: float) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.offset = offset

    def forward(self, pairs: Tensor) -> Tensor:
        """Ratings (n,) of user and item ids (n, 2)."""
        users, items = pairs[:, :1], pairs[:, 1:]
        products = (self.user_factors(users) * self.item_factors(items)).sum(dim=(1, 2))
        biases: Tensor = self.user_bias(users)[:, 0, 0] + self.item_bias(items)[:, 0, 0]
        ratings: Tensor = products + biases + self.offset
        return ratings

    @staticmethod
    def record_losses(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """½(r̂ − r)², (n,)."""
        errors: Tensor = module(batch[0]) - batch[1]
        return 0.5 * errors.square()
