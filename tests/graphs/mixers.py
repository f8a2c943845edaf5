"""Modules whose records see each other, each in another way, with what the refusal says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """A linear layer, and what a function does with its outputs."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(6, 4), then

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.then(self.linear(x))
        return found


class Gcn(nn.Module):
    """A graph network whose edges lie among the records of a pass, by their likeness (Kipf & Welling 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        edges = torch.softmax(x @ x.mT, dim=1)
        found: Tensor = self.second(edges @ torch.relu(self.first(edges @ x)))
        return found


def norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))


def norm_without_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False))


REDUCES, ALONG, MEETS = "reduces the dimension of the records", "along the dimension of the records", "every other"
MIXERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gcn": (Gcn, MEETS),
    "batch norm": (norm, "buffer_mutation"),
    "batch norm without statistics": (norm_without_statistics, "use GroupNorm or LayerNorm"),
    "mean": (lambda: Plain(lambda h: h - h.mean(dim=0)), REDUCES),
    "sum of all": (lambda: Plain(lambda h: h / h.abs().sum()), REDUCES),
    "largest": (lambda: Plain(lambda h: h - h.amax(dim=0, keepdim=True)), REDUCES),
    "softmax": (lambda: Plain(lambda h: h.softmax(dim=0)), ALONG),
    "running sum": (lambda: Plain(lambda h: h.cumsum(dim=0)), ALONG),
    "sort": (lambda: Plain(lambda h: h.sort(dim=0).values), "depends on the records"),
    "flip": (lambda: Plain(lambda h: h + h.flip(0)), ALONG),
    "roll": (lambda: Plain(lambda h: h + h.roll(1, 0)), ALONG),
    "first record": (lambda: Plain(lambda h: h - h[:1]), "some records out of the others"),
    "one record": (lambda: Plain(lambda h: h - h[0]), "one record out of the others"),
    "attention": (lambda: Plain(lambda h: torch.softmax(h @ h.mT, 1) @ h), MEETS),
    "pairs": (lambda: Plain(lambda h: (h[:, None] - h[None]).square().sum(dim=1)), MEETS),
    "second moments": (lambda: Plain(lambda h: h @ (h.mT @ h)), "adds up the records"),
    "folded": (lambda: Plain(lambda h: h.t().reshape(-1, 4)), "cut across the records"),
    "joined": (lambda: Plain(lambda h: torch.cat([h, h]).unflatten(0, (2, -1))[1]), ALONG.replace("along ", "")),
    "how many": (lambda: Plain(lambda h: h * h.shape[0]), "a number"),
    "whitened": (lambda: Plain(lambda h: torch.nn.functional.layer_norm(h.mT, (h.shape[0],)).mT), "records"),
}
