"""How much memory a pass takes, from public sizes: the layers' and the machine's, never the data's or what is free."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn

SHARE = 8  # of the machine's memory, one part in so many is for a physical batch
MOST = 2**28  # larger batches leave the caches, and are slower
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes() -> int:
    """What this process may use: the machine's memory, or its container's limit."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, LIMITS):
        if path.exists() and (text := path.read_text().strip()).isdigit():
            sizes.append(int(text))
    return min(sizes)


def pass_bytes() -> int:
    """For one physical batch."""
    return min(MOST, machine_bytes() // SHARE)


def record_bytes(module: nn.Module, one: Tensor) -> int:
    """What a record needs in a pass and its books, about: each layer's output and the gradient there, twice the input,
    and, of a convolution, its patches and its formed gradient.

    Args:
        module: on the meta device; nothing is computed.
        one: a meta tensor of one record.
    """
    numbers = 2 * one.numel()

    def add(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal numbers
        numbers += 2 * output.numel()
        if isinstance(layer, nn.Conv2d):
            numbers += layer.weight[0].numel() * math.prod(output.shape[2:]) + layer.weight.numel()

    hooks = [layer.register_forward_hook(add) for layer in module.modules() if not any(True for _ in layer.children())]
    with torch.no_grad():
        module(one)
    for hook in hooks:
        hook.remove()
    return max(1, numbers * one.element_size())
