"""Modules of recommenders. A record is one user's sequence; items count from 1, and 0 is padding."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worker.models.dropout import Dropout, Masks
from worker.models.item_loss import ItemLoss
from worker.models.positions import Positions
from worker.models.re_attention import (
    Errors,
    corrected,
    exponents,
    through_layer_norm,
    through_linear,
    through_relu,
)

Sequences = tuple[Tensor, Tensor]  # inputs and targets, int64 (n, T) each; 0 is padding


class Recommender(nn.Module):
    """Scores all items as the next one: H Eᵀ, where H is computed from the embeddings of the earlier items.

    A subclass creates its layers between the base constructor and `finish`, and computes H in `forward`: (n, T, d), or
    (n, 1, d) for the last position alone.

    Args:
        items: M, including item 0, which means none.
        dim: d.
        tied: input and output embeddings are one matrix.
        positions: "all": a loss at each position; "last": at the last one only.
    """

    def __init__(self, items: int, dim: int, *, tied: bool, positions: str) -> None:
        super().__init__()
        self.last, self._tied, self._sizes = positions == "last", tied, (items, dim)
        # Given, as drawing it on the meta device would load torch's compiler: a second in each attempt's process.
        self.embedding = nn.Embedding(items, dim, padding_idx=0, _weight=torch.empty(items, dim))

    def finish(self) -> None:
        """Creates the output layer. Call it after all other layers: the parameters' order numbers the noise streams."""
        self.output = ItemLoss(*self._sizes)
        self.tie()

    def tie(self) -> None:
        """Shares the embedding matrix if it is tied. Call again after `allocated`, which splits it."""
        if self._tied:
            self.output.weight = cast(nn.Parameter, self.embedding.weight)

    def scores(self, ids: Tensor) -> Tensor:
        """The scores of all items: (n, T, M), or (n, 1, M) for the last position."""
        scores: Tensor = self.output.scores(self(ids))
        return scores

    @staticmethod
    def record_losses(module: Any, batch: Sequences) -> Tensor:
        """Each user's cross-entropy, (n,), averaged over the positions that have a target; 0 if none has."""
        ids, targets = batch
        if module.last:
            targets = targets.gather(1, last_place(ids)[:, None])
        losses: Tensor = module.output(module(ids), targets)
        return losses


class TransformerRec(Recommender):
    """Causal self-attention over item embeddings: pre-norm blocks, learned positions.

    Args:
        heads, blocks: of attention.
        max_length: T, the longest sequence.
        masks: of dropout, after the embedding and after each half of a block; None: no dropout.
        errors: of the noise in the parameters, if attention is corrected for it (worker.models.re_attention).

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
        errors: Errors | None = None,
    ) -> None:
        super().__init__(items, dim, tied=tied, positions=positions)
        self.errors = errors
        self.positions = Positions(max_length, dim)
        self.dropout = dropout_of(masks, 0)
        self.blocks = nn.ModuleList(Block(dim, heads, masks, 2 * at + 1, errors) for at in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.finish()

    def forward(self, ids: Tensor) -> Tensor:
        """H: (n, T, d), or (n, 1, d) for the last position: then the last block computes no other position."""
        x, last = self.dropout(self.positions(self.embedding(ids))), last_place(ids) if self.last else None
        variance = None if self.errors is None else self.errors.of_inputs(ids, x.shape[2], x.dtype)
        for number, block in enumerate(self.blocks, start=1):
            x, variance = block(x, last if number == len(self.blocks) else None, variance)
        hidden: Tensor = self.norm(x)
        return hidden


def last_place(ids: Tensor) -> Tensor:
    """The last item's place in each sequence, (n,); 0 if it is empty."""
    return (ids != 0).sum(dim=1).clamp(min=1) - 1


def at_place(x: Tensor, places: Tensor) -> Tensor:
    """One place of each record's (T, d): (n, 1, d)."""
    return x[torch.arange(len(x), device=x.device), places][:, None]


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input.

    Args:
        errors: of the noise in the parameters, if attention is corrected for it.
    """

    def __init__(self, dim: int, heads: int, masks: Masks | None, layer: int, errors: Errors | None) -> None:
        super().__init__()
        self.heads, self.errors = heads, errors
        self.attention_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.merge = nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.after_attention, self.after_widening = dropout_of(masks, layer), dropout_of(masks, layer + 1)

    def forward(self, x: Tensor, last: Tensor | None, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The output, (n, T, d), and its variance if attention is corrected.

        Sequences are padded on the right, so the causal mask alone hides padding.

        Args:
            last: (n,), the one place of each sequence that is computed. It attends to all places before it. No variance
                is computed.
            variance: of x.
        """
        normal, places = self.attention_norm(x), torch.arange(x.shape[1], device=x.device)
        k, v = self._by_head(self.key(normal)), self._by_head(self.value(normal))
        residual, at = (x, normal) if last is None else (at_place(x, last), at_place(normal, last))
        q = self._by_head(self.query(at))
        seen = (places <= (places[:, None] if last is None else last[:, None, None]))[..., None, :, :]
        attended, variances = self._attend(q, k, v, seen, x, normal, variance, causal=last is None)
        residual = residual + self.after_attention(self.merge(attended.transpose(1, 2).flatten(2)))
        widened = self.after_widening(self.narrow(torch.relu(self.widen(self.norm(residual)))))
        out: Tensor = residual + widened
        return out, None if variances is None or last is not None else self.propagated(residual, variances)["out"]

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seen: Tensor,
        x: Tensor,
        normal: Tensor,
        variance: Tensor | None,
        *,
        causal: bool,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Attention's output, (n, heads, U, d/heads); and the variances up to its addition, if they are kept."""
        if self.errors is None or variance is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=None if causal else seen, is_causal=causal), None
        error = self.errors.blocks
        of_normal = through_layer_norm(self.attention_norm, x, variance, error)
        of_keys = through_linear(self.key, normal.detach(), of_normal, error)
        logits = q @ k.mT / math.sqrt(q.shape[3])
        weights = corrected(logits, seen, exponents(q.detach(), self._by_head(of_keys)), self.errors)
        variances = {"attention_norm": of_normal, "key": of_keys}
        if causal:
            variances |= self._through_attention(weights.detach(), normal.detach(), of_normal, attended := weights @ v)
            variances["attended"] = variance + variances["merge"]
            return attended, variances
        return weights @ v, variances

    @torch.no_grad()
    def _through_attention(
        self, weights: Tensor, normal: Tensor, variance: Tensor, attended: Tensor
    ) -> dict[str, Tensor]:
        """Treats attention weights as known. The value layer's noise is one for all keys: Σ a_i W x_i is W Σ a_i
        x_i."""
        error = self.errors.blocks if self.errors else 0.0
        mean, spread = weights @ normal[:, None], weights.square() @ variance[:, None]  # (n, heads, T, d)
        by_head = self.value.weight.unflatten(0, (self.heads, -1))  # (heads, d/heads, d)
        of_values = spread @ (by_head.square() + error**2).mT
        of_values = of_values + error**2 * (mean.square().sum(dim=-1, keepdim=True) + 1.0)
        flat, of_values = attended.detach().transpose(1, 2).flatten(2), of_values.transpose(1, 2).flatten(2)
        return {"value": of_values, "merge": through_linear(self.merge, flat, of_values, error)}

    @torch.no_grad()
    def propagated(self, attended: Tensor, variances: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adds the variances after attention, by layer, (n, T, d) each."""
        error = self.errors.blocks if self.errors else 0.0
        of_normal = through_layer_norm(self.norm, attended, variances["attended"], error)
        normal = self._normal(attended)
        of_wide = through_linear(self.widen, normal, of_normal, error)
        mean, of_relu = through_relu(F.linear(normal, self.widen.weight, self.widen.bias), of_wide)
        of_narrow = through_linear(self.narrow, mean, of_relu, error)
        variances_after = {"norm": of_normal, "widen": of_wide, "relu": of_relu, "narrow": of_narrow}
        return variances | variances_after | {"out": variances["attended"] + of_narrow}

    def _normal(self, attended: Tensor) -> Tensor:
        """As `norm`, but without calling the module: its recorded terms must stay those of the pass."""
        return F.layer_norm(attended, attended.shape[2:], self.norm.weight, self.norm.bias, self.norm.eps)

    def _by_head(self, x: Tensor) -> Tensor:
        """(n, heads, T, d/heads)."""
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)


def dropout_of(masks: Masks | None, layer: int) -> nn.Module:
    return nn.Identity() if masks is None else Dropout(masks, layer)
