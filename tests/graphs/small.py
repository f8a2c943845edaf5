"""A graph of a few numbers, for tests of what is done with its file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from scrimp.graph_export import export_graph


class Small(nn.Module):
    """Two columns to two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def small_graph(seed: int = 0) -> bytes:
    """Its file, with weights of a seed."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        return export_graph(Small(), torch.zeros(2, 2), Path(folder) / "small.pt2").read_bytes()
