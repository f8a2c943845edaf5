"""Per-record gradients without a rule: of layers that nobody wrote one for, and of parameters beside a module's layers,
such as class tokens and tables of positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from core.errors import PrivacyError
from worker.clipping.rules import Found
from worker.clipping.terms import Dense


@dataclass(frozen=True)
class OwnParameters:
    """The rule of a module with parameters of its own and no other rule: its forward again, for each record alone.

    For a record x_i with gradient g_i at the output, the gradient of the own parameters θ is g_i · ∂f(θ, x_i)/∂θ. vmap
    computes it for all records at once. Layers inside have rules of their own.

    Attributes:
        names: the trained parameters.
    """

    names: Sequence[str]

    def __call__(self, *_: Any) -> Found:
        """Never used: `called` gives the rule of one call."""
        raise PrivacyError("a module's own parameters need the arguments that it was called with")

    def called(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Callable[..., Found]:
        """The rule for one call with these arguments, one of which is a tensor."""
        if any(isinstance(each, Tensor) for each in inputs):
            place: int | str = next(at for at, each in enumerate(inputs) if isinstance(each, Tensor))
        else:
            place = next(name for name, each in keywords.items() if isinstance(each, Tensor))
        inputs, keywords = [None if isinstance(each, Tensor) else each for each in inputs], dict(keywords)

        def again(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
            arguments, keywords_left = list(inputs), dict(keywords)
            if isinstance(place, int):
                arguments[place] = x[None]
            else:
                keywords_left[place] = x[None]
            output: Tensor = functional_call(module, dict(parameters), tuple(arguments), keywords_left)
            return output[0]

        return lambda module, x, g: self._formed(module, again, x, g)

    def _formed(self, module: nn.Module, again: Callable[..., Tensor], x: Tensor, g: Tensor) -> Found:
        parameters = {name: module.get_parameter(name) for name in self.names}
        values = {name: parameter.detach() for name, parameter in parameters.items()}

        def one(record: Tensor, gradient: Tensor) -> Mapping[str, Tensor]:
            pull = vjp(lambda parameters: again(module, parameters, record), values)[1]
            (gradients,) = pull(gradient)
            return dict(gradients)

        try:
            formed = vmap(one)(x, g)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise PrivacyError(f"{type(module).__name__} has no per-record gradients when it is called so") from None
        return [(parameters[name], Dense(each.detach())) for name, each in formed.items()]
