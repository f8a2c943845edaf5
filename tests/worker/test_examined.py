"""An engine that notices: modules whose per-record gradients it would get wrong are refused when it is built."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.errors import PrivacyError
from tests.worker.layers import CASES, Batch, Tensors, losses, one_at_a_time
from worker.clipping.bookkeeping import Bookkeeping

D, T, K = 8, 6, 4


class Chosen(Tensors):
    """Records that can be chosen from."""

    def select(self, indices: Any) -> Chosen:
        return Chosen(*(each[torch.as_tensor(indices)] for each in self._tensors))


class Made(nn.Module):
    """A module from a function: `layers` are its parts, `run` is its forward."""

    def __init__(self, run: Callable[..., Tensor], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def examples(shape: tuple[int, ...] = (T, D), n: int = 3) -> Chosen:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, *shape, generator=generator)
    return Chosen(x, torch.randint(0, K, (n, *shape[:-1]), generator=generator))


def build(module: nn.Module, given: Chosen | None = None, dtype: torch.dtype = torch.float32) -> Bookkeeping[Batch]:
    chosen = given or examples()
    return Bookkeeping(module, losses, rows=48, kind="flat", max_grad_norm=1.0, examples=chosen, dtype=dtype)


def linear() -> nn.Linear:
    return nn.Linear(D, D)


def out() -> nn.Linear:
    return nn.Linear(D, K)


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(D, D))


class Masked(nn.Module):
    """A layer without a rule that takes a second tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x * self.scale if mask is None else x * self.scale * mask


def tied_by_hand(m: Any, x: Tensor) -> Tensor:
    return m.out(m.one(x) @ m.one.weight.T)


def centred(m: Any, x: Tensor) -> Tensor:
    h = m.one(x)
    return m.out(h - h.mean(0))


def sequence_first(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.one(x.transpose(0, 1)))).transpose(0, 1)


def sequence_first_where_it_fits(m: Any, x: Tensor) -> Tensor:
    turned = x.transpose(0, 1) if len(x) == x.shape[1] else x
    h = torch.tanh(m.one(turned)).cumsum(dim=1)
    return m.out(h.transpose(0, 1) if len(x) == x.shape[1] else h)


def positions(m: Any, x: Tensor) -> Tensor:
    return m.out(m.one(x) + m.places(torch.arange(x.shape[1])))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a weight used by hand": (
        lambda: Made(lambda m, x: m.out(F.linear(m.one(x), m.one.weight)), one=linear(), out=out()),
        "one.weight",
    ),
    "tied by hand": (lambda: Made(tied_by_hand, one=nn.Linear(D, D, bias=False), out=out()), "one.weight"),
    "a list of parameters": (
        lambda: Made(lambda m, x: m.out(x * m.scales[0]), scales=nn.ParameterList([torch.ones(D)]), out=out()),
        "scales",
    ),
    "a dictionary of parameters": (
        lambda: Made(lambda m, x: m.out(x * m.scales["a"]), scales=nn.ParameterDict({"a": torch.ones(D)}), out=out()),
        "scales",
    ),
    "weight norm by hooks": (lambda: Made(lambda m, x: m.out(m.one(x)), one=old_weight_norm(), out=out()), "one"),
    "a mask into a layer without a rule": (
        lambda: Made(lambda m, x: m.out(m.scale(x, (x > 0).float())), scale=Masked(), out=out()),
        "Masked",
    ),
    "a mask by its name": (
        lambda: Made(lambda m, x: m.out(m.scale(x, mask=(x > 0).float())), scale=Masked(), out=out()),
        "Masked",
    ),
    "the batch's mean": (lambda: Made(centred, one=linear(), out=out()), "other records"),
    "the sequence first": (lambda: Made(sequence_first, one=linear(), out=out()), "Linear"),
    "the sequence first where it fits": (
        lambda: Made(sequence_first_where_it_fits, one=linear(), out=out()),
        "one.weight|other records",
    ),
    "positions for all records": (
        lambda: Made(positions, one=linear(), places=nn.Embedding(T, D), out=out()),
        "Embedding",
    ),
    "an activation in place": (lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), out()), "in place"),
    "an addition in place": (
        lambda: Made(lambda m, x: m.out(m.one(x).add_(x)), one=linear(), out=out()),
        "in place",
    ),
    "two inputs": (lambda: Made(lambda m, x: m.out(m.two(x, x)), two=nn.Bilinear(D, D, D), out=out()), "Bilinear"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_would_be_wrong_is_refused_by_name(name: str) -> None:
    torch.manual_seed(0)
    make, said = REFUSED[name]
    with pytest.raises(PrivacyError, match=said):
        build(make())


def test_bags_of_words() -> None:
    """There is no rule for bags: refused with the layer's name."""
    bags = Made(lambda m, x: m.out(m.bag(x)), bag=nn.EmbeddingBag(11, D), out=out())
    ids = Chosen(torch.randint(0, 11, (3, T)), torch.randint(0, K, (3,)))
    with pytest.raises(PrivacyError, match="EmbeddingBag"):
        build(bags, ids)


def test_an_input_by_its_name_is_exact() -> None:
    torch.manual_seed(0)
    module = Made(lambda m, x: m.out(input=torch.tanh(m.one(input=x))), one=linear(), out=out()).double()
    x, y = (each for each in examples()._tensors)
    batch = (x.double(), y)
    wanted = one_at_a_time(module, batch, "flat", 1.0)
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    got = build(module, Chosen(*batch), torch.float64).private_sum(parameters, Tensors(*batch))
    for name, value in got.items():
        torch.testing.assert_close(value, wanted[name])


def with_a_token(m: Any, x: Tensor) -> Tensor:
    """As a vision transformer's embeddings: a token of its own, and a position for each place."""
    hidden = torch.tanh(torch.cat([m.token.expand(len(x), -1, -1), m.one(x)], dim=1) * m.places)
    return m.out(hidden[:, 1:] + hidden[:, :1])


def test_parameters_beside_layers_are_exact() -> None:
    torch.manual_seed(0)
    token, places = nn.Parameter(torch.randn(1, 1, D)), nn.Parameter(torch.randn(1, T + 1, D))
    module = Made(with_a_token, one=linear(), out=out(), token=token, places=places).double()
    x, y = examples()._tensors
    batch = (x.double(), y)
    wanted = one_at_a_time(module, batch, "flat", 1.0)
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    got = build(module, Chosen(*batch), torch.float64).private_sum(parameters, Tensors(*batch))
    assert {"token", "places"} < set(got)
    for name, value in got.items():
        torch.testing.assert_close(value, wanted[name])


@pytest.mark.parametrize("name", CASES)
def test_what_is_exact_is_accepted(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    module = case.module()
    before = {each: p.detach().clone() for each, p in module.named_parameters()}
    build(module, Chosen(*case.batch(3)), torch.float64)
    assert all(torch.equal(before[each], p) for each, p in module.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_passes_are_accepted(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = examples()._tensors
    build(nn.Sequential(linear(), nn.Tanh(), nn.LayerNorm(D), out()).to(dtype), Chosen(x.to(dtype), y), dtype)


def test_it_takes_numpy_indices() -> None:
    assert len(examples().select(np.array([0, 2]))) == 2
