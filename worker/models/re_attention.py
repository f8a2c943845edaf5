"""Re-Attention: how uncertain the noise of private training makes each key, and how attention corrects for it.

Every layer's output is treated as Gaussian with independent coordinates; a mean and a variance pass through the layers.
What is heuristic:

* The effective error is not the error of trained weights; the noisy weights stand for their means.
* Coordinates are independent, and so are a block's input and what is added to it. Layer normalization divides by a
  known number; attention's weights are known; a layer's noise is the same for all positions, which only the value layer
  respects. σ_i² is a mean over a head's coordinates. Dropout is ignored, exponents are capped.
* Equation 8 of the paper is the second moment minus c²; ours is minus the squared mean, as its appendix derives.

Everything here runs without gradients. If weights entered the variances with a gradient, the clipping engine, which
sees only a layer's input and output, would not measure it.

Source: DPFormer, section 4.2 and appendix A.5 and A.6 (equations 7 and 8; equation 8 omits the mean, which is taken
from equation 31).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from core.contracts.job_spec import ReAttention
from core.errors import PrivacyError
from worker.data.passes import moved


class Errors:
    """Effective errors of a model's parameters: the std of the noise that one step adds to them, up to `scale`.

        of each weight of a block, and of a position:   scale · σ / L
        of item i's embedding:                          scale · σ / (L p_i)

    With C = 1 and `scale` = 1 this is the noise on a mean clipped gradient, as in the paper. With `scale` the learning
    rate it is the noise in the parameters after one step of plain descent.

    Args:
        settings: the mode and its numbers.

    Source: DPFormer, definition 4.1, claims 4.3 and 4.4.
    """

    def __init__(self, settings: ReAttention) -> None:
        self.mode: Literal["off", "logits", "paper"] = settings.mode
        self.max_exponent, self._scale = settings.max_exponent, settings.scale
        self._known: tuple[float, Tensor] | None = None
        self._placed: Tensor | None = None  # of items, where passes run

    def instantiate(self, noise_multiplier: float, batch_size: int, frequencies: Tensor, lowest: float) -> None:
        """Sets the errors from public or noised numbers.

        Args:
            noise_multiplier: σ of the gradient.
            batch_size: L.
            frequencies: p_i of the M declared items, without item 0, which means none.
            lowest: a lower bound applied to p_i.
        """
        of_blocks = self._scale * noise_multiplier / batch_size
        of_items = of_blocks / frequencies.double().clamp(min=lowest, max=1.0)
        self._placed = None
        self._known = of_blocks, torch.cat([torch.zeros(1, dtype=torch.float64), of_items])

    def restore(self, blocks: float, items: Tensor) -> None:
        """Sets the errors to those published with a model."""
        self._placed = None
        self._known = blocks, items.double()

    @property
    def blocks(self) -> float:
        """The error of each weight.

        Raises:
            PrivacyError: the noise is not known yet.
        """
        return self._instantiated[0]

    @property
    def items(self) -> Tensor:
        """The error of each item's embedding, float64 (M + 1,); 0 for item 0, which means none."""
        return self._instantiated[1]

    def of_inputs(self, ids: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        """The variance of embedding + position, (…, T, dim)."""
        items = self.items if self._placed is None or self._placed.device != ids.device else self._placed
        self._placed = items = moved(items, ids.device)
        variance = items[ids].square() + self.blocks**2
        return variance.to(dtype)[..., None].expand(*ids.shape, dim)

    @property
    def _instantiated(self) -> tuple[float, Tensor]:
        if self._known is None:
            raise PrivacyError("re-attention must know the noise before the first pass")
        return self._known


@torch.no_grad()
def through_linear(layer: nn.Linear, mean: Tensor, variance: Tensor, error: float) -> Tensor:
    """Σ (σ_x²σ_w² + σ_x²μ_w² + σ_w²μ_x²) over the inputs, plus σ_w² for the bias."""
    spread = torch.nn.functional.linear(variance, layer.weight.square() + error**2)
    return spread + error**2 * (mean.square().sum(dim=-1, keepdim=True) + 1.0)


@torch.no_grad()
def through_layer_norm(layer: nn.LayerNorm, mean: Tensor, variance: Tensor, error: float) -> Tensor:
    """(σ_w² + γ²) σ_x² / s² + σ_w² (x̂² + 1), with s treated as known."""
    center = mean - mean.mean(dim=-1, keepdim=True)
    s2 = center.square().mean(dim=-1, keepdim=True) + layer.eps
    return (variance * (layer.weight.square() + error**2) + error**2 * center.square()) / s2 + error**2


@torch.no_grad()
def through_relu(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(0, N(c, d)).

    m₁ = cΦ(c/√d) + √d φ(c/√d), m₂ = (c² + d)Φ(c/√d) + c√d φ(c/√d); returns m₁ and m₂ − m₁².
    """
    deviation = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
    ratio = mean / deviation
    cumulative = 0.5 * torch.erfc(-ratio / math.sqrt(2.0))
    density = torch.exp(-0.5 * ratio.square()) / math.sqrt(2.0 * math.pi)
    first = mean * cumulative + deviation * density
    second = (mean.square() + variance) * cumulative + mean * deviation * density
    return first, (second - first.square()).clamp(min=0.0)


@torch.no_grad()
def exponents(queries: Tensor, key_variance: Tensor) -> Tensor:
    """C_q σ_i² / 2 with C_q = ‖q‖²/d, for logits ⟨q, k⟩/√d: (n, heads, U, T).

    Args:
        queries: (n, heads, U, d).
        key_variance: (n, heads, T, d); σ_i² is its mean over the d coordinates.
    """
    weight = queries.square().mean(dim=3)
    return 0.5 * weight[..., None] * key_variance.mean(dim=3)[:, :, None]


def corrected(logits: Tensor, seen: Tensor, exponent: Tensor, errors: Errors) -> Tensor:
    """The attention weights, (n, heads, U, T).

    Args:
        logits: ⟨q, k⟩/√d.
        seen: bool, broadcastable: True where a query may attend; at least one key per query.
        exponent: from `exponents`.
    """
    if errors.mode == "logits":
        # An exponent common to a query's keys changes nothing, so the cap applies to their differences.
        exponent = exponent - exponent.masked_fill(~seen, math.inf).amin(dim=3, keepdim=True)
        logits = logits - exponent.clamp(max=errors.max_exponent)
        return torch.softmax(logits.masked_fill(~seen, -math.inf), dim=3)
    weights = torch.softmax(logits.masked_fill(~seen, -math.inf), dim=3)
    return weights * torch.exp(-exponent.clamp(max=errors.max_exponent))
