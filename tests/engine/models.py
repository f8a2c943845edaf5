"""Models of users: as they write them, for any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CROSS = nn.CrossEntropyLoss(reduction="none")
Data = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Words, positions and a class token, an attention layer of linear layers, and a classifier."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.token = nn.Embedding(30, width), Token(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.token(self.words(ids))
        h = h + F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h))
        return self.out(self.norm(h)[:, 0])


class Token(nn.Module):
    """Puts a trained vector before a sequence: a layer without a rule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([self.vector.expand(h.shape[0], 1, -1), h], dim=1)


class Cell(nn.Module):
    """A GRU of linear layers over time."""

    def __init__(self, inputs: int = 4, width: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.width, self.x, self.h = width, nn.Linear(inputs, 3 * width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), self.width)
        for t in range(x.shape[1]):
            (a, b, c), (d, e, f) = self.x(x[:, t]).chunk(3, 1), self.h(h).chunk(3, 1)
            r, z = torch.sigmoid(a + d), torch.sigmoid(b + e)
            h = (1 - z) * torch.tanh(c + r * f) + z * h
        return self.out(h)  # type: ignore[no-any-return]


class Centred(nn.Module):
    """Subtracts the mean over the batch, by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Factors(nn.Module):
    """Two inputs: a factorization of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(12, 6), nn.Embedding(15, 6)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 3)),
    )


@dataclass(frozen=True)
class Case:
    """A model, its loss, and a maker of data."""

    model: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[..., Any] = CROSS


def drawn(n: int, *shape: int) -> Data:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, *shape, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def words(n: int) -> Data:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 30, (n, 7), generator=generator), torch.randint(0, 3, (n,), generator=generator)


def ratings(n: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    users, items = (torch.randint(0, most, (n,), generator=generator) for most in (12, 15))
    return users, items, torch.randn(n, generator=generator)


CASES = {
    "mlp": Case(mlp, lambda n: drawn(n, 10)),
    "cnn": Case(cnn, lambda n: drawn(n, 1, 12, 12)),
    "attention": Case(Attention, words),
    "gru of linear layers": Case(Cell, lambda n: drawn(n, 5, 4)),
    "factors": Case(Factors, ratings, nn.MSELoss(reduction="none")),
}


def one_by_one(model: nn.Module, case: Case, data: tuple[Tensor, ...], norm: float) -> dict[str, Tensor]:
    """Σ clip_C(g_i) by autograd, a record at a time."""
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    total = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in named.items()}
    for at in range(len(data[0])):
        *inputs, target = (each[at : at + 1] for each in data)
        loss = case.loss(model(*inputs), target).sum()
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        own = [torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), gradients, strict=True)]
        length = torch.cat([each.double().flatten() for each in own]).norm()
        factor = min(1.0, norm / float(length))
        for name, each in zip(named, own, strict=True):
            total[name] += factor * each.double()
    return total


def flat(named: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.detach().double().flatten() for each in named.values()])
