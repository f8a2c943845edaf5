"""Per-record gradients by Opacus: for single layers without a rule, and for whole models as a reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
from torch import Tensor, nn

from core.errors import PrivacyError
from worker.clipping.rules import Found, Rule
from worker.clipping.terms import Dense

Sampler = Callable[[nn.Module, list[Tensor], Tensor], dict[nn.Parameter, Tensor]]


def opacus_rule(module: nn.Module) -> Rule:
    """The rule by which Opacus forms one layer's per-record gradients from its input and its output's gradient.

    It uses Opacus' own function for this kind of layer, else vmap over the layer's forward.

    Raises:
        PrivacyError: Opacus cannot handle the layer alone, because it has buffers.

    Source: Opacus, opacus.grad_sample.
    """
    sampler: Any = GradSampleModule.GRAD_SAMPLERS.get(type(module))
    if sampler is None:
        try:
            prepare_layer(module)  # copies the layer, so it must run before hooks are attached
        except NotImplementedError as error:
            raise PrivacyError(f"{type(module).__name__} has no per-record gradients: {error}") from None
        sampler = ft_compute_per_sample_gradient
    return partial(_formed, sampler)


def _formed(sampler: Sampler, module: nn.Module, x: Tensor, g: Tensor) -> Found:
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    for parameter in frozen:  # Opacus skips parameters without requires_grad, which the engine has switched off
        parameter.requires_grad_(True)
    try:
        return [(parameter, Dense(each.detach())) for parameter, each in sampler(module, [x], g).items()]
    except (IndexError, TypeError, ValueError):
        raise PrivacyError(f"{type(module).__name__} has no per-record gradients when it is called so") from None
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
