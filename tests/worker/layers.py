"""What tests of clipping engines share: small models of every kind of layer, and the reference, record by record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from worker.data.passes import Cuttable, gathered
from worker.models.positions import Positions

Batch = tuple[Tensor, Tensor]
TOKENS, LENGTH, WIDTH, CLASSES = 11, 6, 8, 4


class Tensors(Cuttable[Batch]):
    """A batch of tensors as records: dimension 0 counts them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> Any:
        return tuple(gathered(each, places) for each in self._tensors)


def memory_cost(cost: int) -> dict[str, int]:
    """Settings of worker.clipping.methods that have gradients formed (low) or never (high)."""
    return dict.fromkeys(("CACHED_COST", "READ_COST", "AGAIN_COST"), cost)


def losses(module: nn.Module, batch: Batch) -> Tensor:
    """Each record's cross-entropy, averaged over its positions where it has several."""
    outputs = module(batch[0])
    outputs = outputs.reshape(len(outputs), -1, outputs.shape[-1])
    targets = batch[1].reshape(len(outputs), -1)[:, : outputs.shape[1]]
    return F.cross_entropy(outputs.mT, targets, reduction="none").mean(dim=1)


def take(batch: Batch, at: Any) -> Batch:
    return batch[0][at], batch[1][at]


def one_at_a_time(
    module: nn.Module, batch: Batch, kind: str, C: float, divisors: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Autograd's gradient of each record alone, clipped, added up."""
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in trainable.items()}
    for at in range(len(batch[0])):
        loss = losses(module, take(batch, slice(at, at + 1))).sum()
        found = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        gradient = {n: torch.zeros_like(total[n]) if g is None else g for n, g in zip(trainable, found, strict=True)}
        gradient = {name: g / (divisors or {}).get(name, 1.0) for name, g in gradient.items()}
        if not all(bool(torch.isfinite(g).all()) for g in gradient.values()):
            continue
        groups: dict[str, list[str]] = {}
        for name in trainable:
            groups.setdefault(name.rpartition(".")[0] if kind == "per_layer" else "", []).append(name)
        for names in groups.values():
            norm = float(torch.cat([gradient[name].flatten() for name in names]).norm())
            share = C / len(groups) ** 0.5
            factor = C / (norm + 0.01) if kind == "automatic" else 1 / max(1.0, norm / share)
            for name in names:
                total[name] += factor * gradient[name]
    return total


class Tokens(nn.Module):
    """Embedding, positions, a mixing layer, output: tied or not, of every position or the last."""

    def __init__(self, *, tied: bool, last: bool = False, padding: int | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=padding)
        self.positions = Positions(LENGTH + 1, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, TOKENS, bias=False)
        self.last, self.scale = last, scale
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.positions(self.embedding(ids) * self.scale)
        x = torch.tanh(self.mix(x).cumsum(dim=1))
        return self.output(x[:, -1:] if self.last else x)


class Twice(nn.Module):
    """One layer called twice, and one weight held by three modules of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, TOKENS, bias=False), nn.Linear(WIDTH, TOKENS, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.first.weight = self.second.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.again(torch.tanh(self.again(self.embedding(ids)))))
        return self.first(self.norm(x)) + self.second(torch.sin(x))


class Mirror(nn.Module):
    """One weight in a linear layer and, transposed in use, in a Conv1D as Hugging Face has it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.conv.weight = self.linear.weight
        self.output = Conv1D(CLASSES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.conv(self.linear(x))))


class Conv1D(nn.Module):
    """transformers.pytorch_utils.Conv1D: a linear layer with its weight transposed."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Scale(nn.Module):
    """A layer that nobody has a rule for."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + torch.sin(self.scale)


class Lora(nn.Module):
    """A frozen layer and a trainable pair beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def _images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(1), nn.LazyLinear(CLASSES))


@dataclass(frozen=True)
class Case:
    """A model and what its records look like: "ids", or the shape of a real-valued input."""

    make: Callable[[], nn.Module]
    inputs: Any
    outputs: int = CLASSES

    def module(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        module = self.make().double()
        module(self.batch(1)[0])  # fills lazy layers
        for parameter in module.parameters():
            parameter.data.normal_(0.0, 0.5)
        return module

    def batch(self, n: int, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        if self.inputs == "ids":
            x = torch.randint(0, TOKENS, (n, LENGTH), generator=generator)
        else:
            x = torch.randn(n, *self.inputs, generator=generator, dtype=torch.float64)
        return x, torch.randint(0, self.outputs, (n, LENGTH), generator=generator)


SEQUENCE, IMAGE, LINE = (LENGTH, WIDTH), (3, 7, 6), (4, 9)
CASES: dict[str, Case] = {
    "linear": Case(lambda: nn.Linear(WIDTH, CLASSES), (WIDTH,)),
    "mlp": Case(lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, CLASSES)), (WIDTH,)),
    "linear over positions": Case(lambda: nn.Linear(WIDTH, CLASSES), SEQUENCE),
    "linear, wide": Case(lambda: nn.Sequential(nn.Linear(WIDTH, 90), nn.Linear(90, CLASSES)), SEQUENCE),
    "linear over a grid": Case(lambda: nn.Linear(WIDTH, CLASSES), (2, 3, WIDTH)),
    "conv2d": Case(lambda: _images(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.Tanh()), IMAGE),
    "conv2d, wide": Case(lambda: _images(nn.Conv2d(3, 5, (2, 5), (2, 3), (1, 2), dilation=(3, 1)), nn.Tanh()), IMAGE),
    "conv2d, wide, dilated": Case(lambda: _images(nn.Conv2d(3, 4, 4, padding="same", dilation=2)), IMAGE),
    "conv2d, many channels": Case(lambda: _images(nn.Conv2d(3, 40, (7, 5)), nn.Tanh()), IMAGE),
    "conv2d, same, dilated": Case(lambda: _images(nn.Conv2d(3, 4, 3, padding="same", dilation=2)), IMAGE),
    "conv2d, reflecting": Case(
        lambda: _images(nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect", bias=False)), IMAGE
    ),
    "conv2d, groups": Case(lambda: _images(nn.Conv2d(3, 6, 3, groups=3)), IMAGE),
    "conv1d": Case(lambda: _images(nn.Conv1d(4, 5, 3, stride=2, padding=2), nn.ReLU()), LINE),
    "conv1d, circular, groups": Case(
        lambda: _images(nn.Conv1d(4, 6, 3, padding=1, groups=2, padding_mode="circular")), LINE
    ),
    "layer norm": Case(lambda: nn.Sequential(nn.LayerNorm((LENGTH, WIDTH)), nn.Linear(WIDTH, CLASSES)), SEQUENCE),
    "layer norm, no bias": Case(
        lambda: nn.Sequential(nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, CLASSES)), SEQUENCE
    ),
    "group norm": Case(lambda: _images(nn.Conv2d(3, 6, 3), nn.GroupNorm(3, 6), nn.ReLU()), IMAGE),
    "rms norm": Case(lambda: nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, CLASSES)), SEQUENCE),
    "untied": Case(lambda: Tokens(tied=False), "ids", TOKENS),
    "tied": Case(lambda: Tokens(tied=True), "ids", TOKENS),
    "tied, last": Case(lambda: Tokens(tied=True, last=True), "ids", TOKENS),
    "tied, padding": Case(lambda: Tokens(tied=True, padding=0), "ids", TOKENS),
    "tied, scaled": Case(lambda: Tokens(tied=True, padding=3, scale=WIDTH**0.5), "ids", TOKENS),
    "called twice, shared by three": Case(Twice, "ids", TOKENS),
    "shared by unlike layers": Case(Mirror, SEQUENCE),
    "lora": Case(Lora, (WIDTH,)),
    "no rule": Case(lambda: nn.Sequential(Scale(WIDTH), nn.Linear(WIDTH, CLASSES)), SEQUENCE),
    "no rule, from torch": Case(
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.Conv3d(2, 3, (2, 3, 3)), nn.Flatten(1), nn.LazyLinear(CLASSES)
        ),
        (6, 6, 5),
    ),
}
