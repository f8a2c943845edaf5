"""transformers' root-mean-square norms as layers with a clipping rule.

Each family has a class of its own for one of two functions, always computed in float32:

    w ⊙ x / rms(x)          Llama, Mistral, Qwen, Phi-3
    (1 + w) ⊙ x / rms(x)    Gemma

Which one a class computes is found by calling it, not by its name.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from worker.models.rms import ShiftedRMSNorm

CLOSE = 1e-4  # of outputs of size 1, for classes that compute in float32


def plain_norms(model: nn.Module) -> None:
    """Replaces each of these norms by a layer with the same function in the passes' type; others stay."""
    for name, layer in list(model.named_modules()):
        weight = getattr(layer, "weight", None)
        parameters = [*layer.named_parameters(recurse=False)]
        if "RMSNorm" not in type(layer).__name__ or weight is None or weight.dim() != 1 or len(parameters) != 1:
            continue
        eps = float(getattr(layer, "variance_epsilon", getattr(layer, "eps", 1e-6)))
        plain = _same_function(layer, weight, eps)
        if plain is not None:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, plain)


def _same_function(layer: nn.Module, weight: nn.Parameter, eps: float) -> nn.Module | None:
    """The replacement that computes what `layer` does on random numbers, with its weights and others; None if none."""
    generator = torch.Generator().manual_seed(0)
    width = weight.shape[0]
    x = torch.randn(4, width, generator=generator)
    other = nn.Parameter(torch.randn(width, generator=generator), requires_grad=False)
    with torch.no_grad():
        layer.weight = other
        try:
            output = layer(x)
        except Exception:  # it takes more than numbers: no norm that is known here
            return None
        finally:
            layer.weight = weight
        for kind in (nn.RMSNorm, ShiftedRMSNorm):
            plain = kind(width, eps=eps, device="meta")
            plain.weight = other
            wanted: Tensor = plain(x)
            if output.shape == wanted.shape and torch.allclose(output.float(), wanted, rtol=CLOSE, atol=CLOSE):
                plain.weight = weight
                return plain
    return None
