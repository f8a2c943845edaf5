"""What all torch-module models share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from core.contracts.job_spec import Model as Requested
from worker.models.base import Model, Parameters
from worker.models.dropout import Masks
from worker.models.initial import keyed_normals

M = TypeVar("M", bound=nn.Module)


def allocated(module: M, device: torch.device | str) -> M:
    """The module, whose parameters are shapes alone, with uninitialized memory.

    As `to_empty`, which asks torch's decompositions for the strides: in each attempt's process that loads sympy, 430
    modules in half a second. Parameters are contiguous.
    """
    for layer in module.modules():
        for name, shape in list(layer.named_parameters(recurse=False)):
            numbers = torch.empty(shape.shape, dtype=shape.dtype, device=device)
            setattr(layer, name, nn.Parameter(numbers, shape.requires_grad))
    return module


class ModuleModel(Model):
    """A model that is a torch module, for the engines that hook into modules.

    Attributes:
        spec: the job's settings of it.
        dtype: of training passes. Parameters, norms and sums stay in float64.
        gain: the square of the layers' gain, for the initial weights.
        masks: of the dropout layers, if there are any; a step begins them before its passes.
    """

    spec: Requested
    gain: float = 1.0
    masks: Masks | None = None

    @property
    def kind(self) -> str:
        return self.spec.kind

    def requested(self) -> dict[str, Any]:
        """See Model.requested."""
        return {"model": self.spec.model_dump(mode="json")}

    @property
    def constants(self) -> Parameters:
        """Public or noised tensors that the model uses besides its parameters; published with them."""
        return {}

    @abstractmethod
    def module(self) -> nn.Module:
        """A new uninitialized module. Dimension 0 counts records in every layer."""

    @abstractmethod
    def record_losses(self, module: nn.Module, records: Any) -> Tensor:
        """Each record's loss, (n,), with gradients."""

    def init(self, key: bytes | None = None) -> Parameters:
        """Normal weights of variance gain / fan-in, zero biases. Keyed (worker.models.initial)."""
        return keyed_normals(self.module(), key, self.gain)

    @property
    def numbers(self) -> int:
        """See Model.numbers."""
        return sum(each.numel() for each in self.module().parameters() if each.requires_grad)

    def filled(self, parameters: Parameters) -> nn.Module:
        """A module with these parameters, in evaluation mode."""
        module = self.module().eval()
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(parameters[name])
        return module
