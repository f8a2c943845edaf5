"""How each kind of layer's per-record gradients follow from its input and the gradient at its output.

Dimension 0 of every input and output counts records. For each trainable parameter a rule returns a term
(worker.clipping.terms). Layers without a rule run again for each record (worker.clipping.own).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worker.clipping.accumulators import even_rows
from worker.clipping.methods import SMALL, gram_is_cheaper
from worker.clipping.terms import Dense, Outer, Rows, Term
from worker.data.placed import chunk_bytes
from worker.models.item_loss import ItemLoss
from worker.models.positions import PerRecord, Positions
from worker.models.residual import StandardizedConv2d
from worker.models.rms import ShiftedRMSNorm
from worker.native.layers import LAYERS, Kernel

WIDE_KERNEL = 4  # numbers in a line of the kernel
PATCHES_BYTES = 2**20  # of patches at a time: in a core's own cache, and no memory of all records' patches
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
    return _trainable([(module.weight, Rows(ids, values, module.num_embeddings, module.padding_idx))])


def _learned_positions(module: Positions, x: Tensor, g: Tensor) -> Found:
    unused = len(module.weight) - x.shape[1]
    return _trainable([(module.weight, Dense(F.pad(g, (0, 0, 0, unused)) if unused else g))])


def _per_record(module: PerRecord, x: Tensor, g: Tensor) -> Found:
    return _trainable([(module.weight, Dense(g))])


def _conv2d(module: nn.Conv2d, x: Tensor, g: Tensor) -> Found:
    x, kernel = _seen(module, x)
    return _convolution(module, x, kernel, g.flatten(2).mT)


def _standardized_conv2d(module: StandardizedConv2d, x: Tensor, g: Tensor) -> Found:
    """Through w ↦ ŵ = (w − mean w) / s, s = √(‖w − mean w‖² + ε), for each filter:

    ∂/∂w = (G − mean G − ŵ ⟨ŵ, G⟩) / s, for a record's gradient G at ŵ
    """
    x, kernel = _seen(module, x)
    places = g.flatten(2).mT
    with torch.no_grad():
        flat, scale = module.standardized()
    formed = x.new_empty(len(x), *flat.shape)
    for out, piece, images in _chunks(module, formed, places, x):
        raw = torch.bmm(piece.mT, _patches(images, kernel))
        along = (raw * flat).sum(dim=2, keepdim=True)
        torch.div(raw - raw.mean(dim=2, keepdim=True) - flat * along, scale, out=out)
    return _trainable([(module.weight, Dense(formed)), (module.bias, _bias(places))])


def _conv1d(module: nn.Conv1d, x: Tensor, g: Tensor) -> Found:
    """A convolution over images of height 1."""
    kernel = Kernel((1, *module.kernel_size), (1, *module.dilation), (0, 0), (1, *module.stride))
    return _convolution(module, _padded(module, x)[:, :, None], kernel, g.mT)


def _seen(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, Kernel]:
    """Layers, and the kernel that passes over them. They are padded where the kernel cannot pad with zeros itself."""
    padding: Any = module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        x, padding = _padded(module, x), (0, 0)
    by_places = module.kernel_size[1] >= WIDE_KERNEL
    return x, Kernel(module.kernel_size, module.dilation, padding, module.stride, by_places)


def _padded(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, module._reversed_padding_repeated_twice, mode)


def _patches(images: Tensor, kernel: Kernel) -> Tensor:
    """What the kernel sees at each of its L places: (n, L, C·k) from images (n, C, h, w)."""
    patches = LAYERS.patches(images.contiguous(), kernel) if LAYERS is not None else None
    if kernel.by_places:
        return _copied_patches(images, kernel) if patches is None else patches
    return (
        F.unfold(images, kernel.size, kernel.dilation, kernel.padding, kernel.stride) if patches is None else patches
    ).mT


def _copied_patches(images: Tensor, kernel: Kernel) -> Tensor:
    """Copies lines of the kernel. `unfold` copies lines of the image, which is slower for wide kernels with strides."""
    tall, wide = kernel.padding
    images = F.pad(images, (wide, wide, tall, tall))
    for at, size in enumerate(kernel.size):
        dilation = kernel.dilation[at]
        images = images.unfold(2 + at, (size - 1) * dilation + 1, kernel.stride[at])[..., ::dilation]
    return images.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # from (n, C, L₁, L₂, k₁, k₂)


def _convolution(module: nn.Conv1d | nn.Conv2d, x: Tensor, kernel: Kernel, g: Tensor) -> Found:
    """A linear layer with one position for each of the L patches (n, L, C·k); g is (n, L, p).

    If a gradient is smaller than a record's patches, or has to be formed, it is formed, for some records at a time.
    """
    (places, p), q = g.shape[1:], x.shape[1] // module.groups * math.prod(kernel.size)
    if module.groups == 1 and places <= p and gram_is_cheaper(places, p, q, g.dtype, keeps=p * q <= SMALL):
        return _trainable([(module.weight, Outer(g, _patches(x, kernel))), (module.bias, _bias(g))])
    formed = x.new_empty(len(x), p, q)
    for out, piece, images in _chunks(module, formed, g, x):
        _blockwise(out, piece, _patches(images, kernel), module.groups)
    return _trainable([(module.weight, Dense(formed)), (module.bias, _bias(g))])


def _chunks(module: nn.Conv1d | nn.Conv2d, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some records of each tensor (n, …) at a time, the second one (n, L, p): their patches stay in the cache."""
    first, numbers = tensors[0], tensors[1].shape[1] * module.weight[0].numel() * module.groups
    rows = even_rows(len(first), chunk_bytes(first.device, PATCHES_BYTES) // (first.element_size() * numbers))
    yield from zip(*(each.split(rows) for each in tensors), strict=True)


def _blockwise(out: Tensor, g: Tensor, patches: Tensor, groups: int) -> None:
    """out (n, p, C·k / groups) = gᵀ patches: each group of outputs sees only its own inputs."""
    if groups == 1 and out.shape[2] < out.shape[1]:
        out.copy_(torch.bmm(patches.mT, g).mT)  # a third faster, with the same sums in the same order
        return
    if groups == 1:
        torch.bmm(g.mT, patches, out=out)
        return
    blocks = (g.unflatten(2, (groups, -1)), patches.unflatten(2, (groups, -1)))
    out.copy_(torch.einsum("nlgp,nlgk->ngpk", *blocks).flatten(1, 2))


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
    products, shifts = ((each.reshape(g.shape[0], -1, *shape)) for each in (normal * g, g))
    terms: list[tuple[Any, Term]] = []
    if weight is not None:
        terms.append((weight, Dense(products.sum(dim=1))))
    if bias is not None:
        terms.append((bias, Dense(shifts.sum(dim=1))))
    return _trainable(terms)


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
    PerRecord: _per_record,
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


def _trainable(terms: list[tuple[Any, Term]]) -> Found:
    """Drops parameters that a layer does not have or that are frozen."""
    return [(parameter, term) for parameter, term in terms if parameter is not None]
