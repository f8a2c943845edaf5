"""Low-rank adapters, with peft's names and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from core.contracts.architectures import Architecture
from core.contracts.hf import Lora
from core.errors import PermanentError

PEFT = "base_model.model."  # prefix of the names in its files


class LoraLayer(nn.Module):
    """W x + (alpha/rank) B A x, W frozen. A (rank, inputs) and B (outputs, rank) are layers, so clipping rules apply.

    Source: Hu et al. 2021, "LoRA"; privately Yu et al. 2022, "Differentially private fine-tuning of language models".
    """

    def __init__(self, base: nn.Module, inputs: int, outputs: int, lora: Lora) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(inputs, lora.rank, bias=False)
        self.lora_B = nn.Linear(lora.rank, outputs, bias=False)
        self.scale = lora.alpha / lora.rank

    def forward(self, x: Tensor) -> Tensor:
        """The base's output plus the adapter's."""
        adapted: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scale
        return adapted


def adapt(model: nn.Module, layers: Iterable[str], lora: Lora, *, transposed: bool) -> None:
    """Wraps each of these layers in an adapter, with uninitialized weights."""
    for name in layers:
        base = model.get_submodule(name)
        weight = base.get_parameter("weight")
        if weight.dim() != 2:
            raise PermanentError("an adapter needs a linear layer")
        outputs, inputs = weight.shape[:: -1 if transposed else 1]
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LoraLayer(base, inputs, outputs, lora).to(weight.dtype))


def adapter_config(architecture: Architecture, lora: Lora, base: str) -> dict[str, Any]:
    """adapter_config.json, as peft reads it."""
    causal = architecture.task == "language_model"
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if causal else "SEQ_CLS",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(lora.targets or architecture.targets),
        "fan_in_fan_out": architecture.transposed,
        "bias": "none",
        "modules_to_save": None if causal else [architecture.head.rstrip(".")],
        "inference_mode": True,
    }


def adapter_tensors(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """adapter_model.safetensors: the adapters and other trained tensors, under peft's names."""
    return {f"{PEFT}{name}": value for name, value in parameters.items()}
