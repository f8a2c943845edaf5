"""How each kind of layer's per-record gradients follow from its input and the gradient at its output.

Dimension 0 of every input and output counts records. For each trainable parameter a rule returns a term
(worker.clipping.terms). Layers without a rule go to Opacus (worker.clipping.opacus_layers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worker.clipping.accumulators import CHUNK_BYTES, even_rows
from worker.clipping.terms import Dense, Outer, Rows, Term
from worker.data.placed import chunk_bytes
from worker.models.item_loss import ItemLoss
from worker.models.positions import Positions
from worker.models.residual import StandardizedConv2d
from worker.models.rms import ShiftedRMSNorm

WIDE_KERNEL = 4  # numbers in a line of the kernel
Found = list[tuple[nn.Parameter, Term]]
# The layer; its input, or what it noted instead; the gradient at its output. `shift` takes no input.
Rule = Callable[..., Found]


def rule_of(module: nn.Module, trained: Sequence[nn.Parameter]) -> Rule | None:
    """The rule for a module's own parameters; None if there is none.

    Args:
        trained: those of its parameters that are not frozen.
    """
    conv1d = type(module).__name__ == "Conv1D" and hasattr(module, "nf")  # transformers.pytorch_utils.Conv1D
    rule = _transposed_linear if conv1d else RULES.get(_kind(module))
    bias_alone = len(trained) == 1 and trained[0] is getattr(module, "bias", None)
    return shift if bias_alone and rule in (_transposed_linear, _linear, _layer_norm) else rule


def _kind(module: nn.Module) -> type[nn.Module]:
    """The class whose forward the module inherits: a subclass that computes the same has the same rule."""
    if isinstance(module, nn.Embedding) and isinstance(getattr(module, "embed_scale", None), Tensor | float):
        return nn.Embedding
    return next((kind for kind in RULES if isinstance(module, kind) and _inherits(module, kind)), type(module))


def _inherits(module: nn.Module, kind: type[nn.Module]) -> bool:
    return type(module).forward is kind.forward


def has_rule(module: nn.Module) -> bool:
    """True if a rule for its kind of layer knows `weight` and `bias`."""
    return _kind(module) in RULES


def shift(module: Any, g: Tensor) -> Found:
    """The rule of a layer that trains only its bias. Bias-only layers do not need the input.

    Source: Bu et al. 2022, "Differentially private bias-term only fine-tuning of foundation models".
    """
    shape = module.bias.shape
    return [(module.bias, Dense(g.reshape(len(g), -1, *shape).sum(dim=1)))]


def _linear(module: nn.Linear, x: Tensor, g: Tensor) -> Found:
    outer = Outer(_positions(g), _positions(x))
    return _with_bias(module, outer, outer.left)


def _transposed_linear(module: Any, x: Tensor, g: Tensor) -> Found:
    """Hugging Face's Conv1D: y = x W + b, with W (inputs, outputs)."""
    outer = Outer(_positions(x), _positions(g))
    return _with_bias(module, outer, outer.right)


def _with_bias(module: Any, outer: Outer, g: Tensor) -> Found:
    return [(module.weight, outer)] if module.bias is None else [(module.weight, outer), (module.bias, _bias(g))]


def _embedding(module: nn.Embedding, ids: Tensor, g: Tensor) -> Found:
    """The row of `padding_idx` gets no gradient, as in torch. Gemma's classes scale the rows by a constant."""
    values, ids = _positions(g), ids.reshape(len(ids), -1)
    scale = getattr(module, "embed_scale", None)
    if scale is not None:
        values = values * (scale.to(values.dtype) if isinstance(scale, Tensor) else scale)
    if module.padding_idx is not None:
        values = values.masked_fill((ids == module.padding_idx)[..., None], 0.0)
    return _trainable([(module.weight, Rows(ids, values, module.num_embeddings))])


def _learned_positions(module: Positions, x: Tensor, g: Tensor) -> Found:
    unused = len(module.weight) - x.shape[1]
    return _trainable([(module.weight, Dense(F.pad(g, (0, 0, 0, unused)) if unused else g))])


def _conv2d(module: nn.Conv2d, x: Tensor, g: Tensor) -> Found:
    padding: Any = module.padding
    wide = module.kernel_size[1] >= WIDE_KERNEL
    if wide or isinstance(padding, str) or module.padding_mode != "zeros":
        x, padding = _padded(module, x), 0

    def patches(images: Tensor) -> Tensor:
        if wide:
            return _copied_patches(images, module)
        return F.unfold(images, module.kernel_size, module.dilation, padding, module.stride).mT

    return _convolution(module, x, patches, g.flatten(2).mT)


def _standardized_conv2d(module: StandardizedConv2d, x: Tensor, g: Tensor) -> Found:
    """Through w ↦ ŵ = (w − mean w) / s, s = √(‖w − mean w‖² + ε), for each filter:

    ∂/∂w = (G − mean G − ŵ ⟨ŵ, G⟩) / s, for a record's gradient G at ŵ
    """
    padding: Any = module.padding
    patches = F.unfold(x, module.kernel_size, module.dilation, padding, module.stride).mT
    places = g.flatten(2).mT
    with torch.no_grad():
        flat, scale = module.standardized()
    numbers = module.weight.numel()
    rows = even_rows(len(x), chunk_bytes(x.device, CHUNK_BYTES) // (x.element_size() * numbers))
    formed = []
    for each, seen in zip(places.split(rows), patches.split(rows), strict=True):
        raw = torch.bmm(each.mT, seen)
        along = (raw * flat).sum(dim=2, keepdim=True)
        formed.append((raw - raw.mean(dim=2, keepdim=True) - flat * along) / scale)
    return _trainable([(module.weight, Dense(torch.cat(formed))), (module.bias, _bias(places))])


def _copied_patches(images: Tensor, module: nn.Conv2d) -> Tensor:
    """What the kernel sees at each of its L places: (n, L, C·k) from padded images (n, C, h, w).

    Copies lines of the kernel. `unfold` copies lines of the image, which is slower for wide kernels with strides.
    """
    for at, size in enumerate(module.kernel_size):
        dilation = module.dilation[at]
        images = images.unfold(2 + at, (size - 1) * dilation + 1, module.stride[at])[..., ::dilation]
    return images.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # from (n, C, L₁, L₂, k₁, k₂)


def _conv1d(module: nn.Conv1d, x: Tensor, g: Tensor) -> Found:
    """A convolution over images of height 1."""
    kernel, dilation, stride = (1, *module.kernel_size), (1, *module.dilation), (1, *module.stride)

    def patches(lines: Tensor) -> Tensor:
        return F.unfold(lines[:, :, None], kernel, dilation, 0, stride).mT

    return _convolution(module, _padded(module, x), patches, g.mT)


def _padded(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, module._reversed_padding_repeated_twice, mode)


def _convolution(module: nn.Conv1d | nn.Conv2d, x: Tensor, patches: Callable[[Tensor], Tensor], g: Tensor) -> Found:
    """A linear layer with one position for each of the L patches (n, L, C·k); g is (n, L, p).

    If a gradient is smaller than a record's patches, it is formed, for some records at a time.
    """
    if module.groups == 1 and g.shape[1] <= g.shape[2]:
        return _trainable([(module.weight, Outer(g, patches(x))), (module.bias, _bias(g))])
    numbers = g.shape[1] * module.weight[0].numel() * module.groups
    rows = even_rows(len(x), chunk_bytes(x.device, CHUNK_BYTES) // (x.element_size() * numbers))
    formed = [
        _blockwise(each, patches(lines), module.groups)
        for lines, each in zip(x.split(rows), g.split(rows), strict=True)
    ]
    return _trainable([(module.weight, Dense(torch.cat(formed))), (module.bias, _bias(g))])


def _blockwise(g: Tensor, patches: Tensor, groups: int) -> Tensor:
    """(n, p, C·k / groups): each group of outputs sees only its own inputs."""
    if groups == 1:
        return torch.bmm(g.mT, patches)
    blocks = (g.unflatten(2, (groups, -1)), patches.unflatten(2, (groups, -1)))
    return torch.einsum("nlgp,nlgk->ngpk", *blocks).flatten(1, 2)


def _layer_norm(module: nn.LayerNorm, x: Tensor, g: Tensor) -> Found:
    shape = module.normalized_shape
    normal = F.layer_norm(x, shape, eps=module.eps)
    return _scale_and_shift(module.weight, module.bias, normal, g, len(shape))


def _rms_norm(module: nn.RMSNorm | ShiftedRMSNorm, x: Tensor, g: Tensor) -> Found:
    shape = module.normalized_shape
    return _scale_and_shift(module.weight, None, F.rms_norm(x, list(shape), eps=module.eps), g, len(shape))


def _scale_and_shift(weight: Any, bias: Any, normal: Tensor, g: Tensor, dims: int) -> Found:
    """y = w ⊙ x̂ + b over the last `dims` dimensions."""
    shape = g.shape[g.dim() - dims :]
    products, shifts = ((each.reshape(len(g), -1, *shape)) for each in (normal * g, g))
    found: list[tuple[Any, Term]] = []
    if weight is not None:
        found.append((weight, Dense(products.sum(dim=1))))
    if bias is not None:
        found.append((bias, Dense(shifts.sum(dim=1))))
    return _trainable(found)


def _group_norm(module: nn.GroupNorm, x: Tensor, g: Tensor) -> Found:
    """y = w_c x̂ + b_c for each channel c, dimension 1."""
    normal = F.group_norm(x, module.num_groups, eps=module.eps)
    weight, bias = (each.flatten(1).unflatten(1, (g.shape[1], -1)) for each in (normal * g, g))
    weight, bias = weight.sum(dim=2), bias.sum(dim=2)
    return _trainable([(module.weight, Dense(weight)), (module.bias, Dense(bias))])


def _item_loss(module: ItemLoss, residuals: Tensor, hidden: Tensor, g: Tensor) -> Found:
    """∂loss/∂W = Σ_t residuals_t ⊗ hidden_t: a linear layer over positions, known from the forward pass."""
    return _trainable([(module.weight, Outer(residuals, hidden * g[:, None, None]))])


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    Positions: _learned_positions,
    nn.Conv1d: _conv1d,
    nn.Conv2d: _conv2d,
    StandardizedConv2d: _standardized_conv2d,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    ShiftedRMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    ItemLoss: _item_loss,
}


def _positions(x: Tensor) -> Tensor:
    """(n, …, d) as (n, T, d); one vector per record is one position."""
    return x if x.dim() == 3 else x.reshape(x.shape[0], -1, x.shape[-1])


def _bias(g: Tensor) -> Dense:
    """Σ_t g_t, for g (n, T, p)."""
    return Dense(g[:, 0] if g.shape[1] == 1 else g.sum(dim=1))


def _trainable(found: list[tuple[Any, Term]]) -> Found:
    """Drops parameters that a layer does not have or that are frozen."""
    return [(parameter, term) for parameter, term in found if parameter is not None]
