"""Initial parameters from a key: the same in every attempt, on every machine."""

from __future__ import annotations

import math

import torch
from torch import nn

from worker.models.base import Parameters
from worker.noise.fills import KeyedInit

EMBEDDING_STD = 0.02  # as in GPT-2: logits of tied embeddings start small


def keyed_normals(module: nn.Module, key: bytes | None, gain: float = 1.0) -> Parameters:
    """Parameters for a module, in the order of its names.

        weights of linear layers and convolutions   N(0, gain / fan-in)
        embeddings and positions                    N(0, 0.02²)
        scales of normalizing layers                1
        biases                                      0

    Args:
        module: gives names and shapes.
        key: 32 bytes of purpose "init"; the module's tensor i is stream (0, i).
        gain: the square of the layers' gain.

    Returns:
        float64, one tensor for each parameter; a parameter shared by two modules appears once.

    Raises:
        PrivacyError: no key.
    """
    init = KeyedInit(key)
    parameters: Parameters = {}
    owners = {id(value): each for each in module.modules() for value in each.parameters(recurse=False)}
    for index, (name, value) in enumerate(module.named_parameters()):
        if isinstance(owners[id(value)], nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
            fill = 0.0 if name.endswith("bias") else 1.0
            parameters[name] = torch.full(value.shape, fill, dtype=torch.float64)
        elif value.dim() == 1:
            parameters[name] = torch.zeros(value.shape, dtype=torch.float64)
        else:
            matrix = isinstance(owners[id(value)], nn.Linear | nn.Conv1d | nn.Conv2d)
            std = math.sqrt(gain / value[0].numel()) if matrix else EMBEDDING_STD
            parameters[name] = init.normal(index, value.shape, std)
    return parameters
