"""The shipped convolutional networks, as new jobs run them: against autograd in float64, one record at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.job_spec import CnnModel
from tests.worker.layers import Batch, Tensors
from worker.clipping import rules
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.terms import Dense, Outer
from worker.clipping.totals import Grid
from worker.models import activations, pooling
from worker.models.activations import Tanh
from worker.models.networks import Network
from worker.models.pooling import AvgPool2x2, MaxPool2x2

RECORDS, ROWS, GROUP = 40, 48, 48
NETWORKS = {"conv2": 784, "conv5": 3072}


def losses(module: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def records(features: int) -> Batch:
    generator = torch.Generator().manual_seed(features)
    return torch.rand(RECORDS, features, generator=generator), torch.randint(0, 10, (RECORDS,), generator=generator)


def network(preset: str) -> nn.Module:
    module = Network(NETWORKS[preset], 10, CnnModel(preset=preset)).module()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5)
    return module


def clipped(module: nn.Module, batch: Batch, C: float) -> dict[str, Tensor]:
    start = {name: each.detach().double().clone() for name, each in module.named_parameters()}
    grid = Grid(1000, ROWS)
    engine: Bookkeeping[Batch] = Bookkeeping(
        module, losses, rows=ROWS, kind="flat", max_grad_norm=C, grid=grid, group=GROUP
    )
    return engine.private_sum(start, Tensors(*batch))


def by_torch(preset: str, batch: Batch, C: float) -> dict[str, Tensor]:
    """Of torch's own layers in float64."""
    theirs = {MaxPool2x2: nn.MaxPool2d(2, 1), AvgPool2x2: nn.AvgPool2d(2), Tanh: nn.Tanh()}
    module = nn.Sequential(*(theirs.get(type(each), each) for each in network(preset).children())).double()
    total = {name: torch.zeros_like(each) for name, each in module.named_parameters()}
    for x, target in zip(batch[0].double(), batch[1], strict=True):
        found = torch.autograd.grad(losses(module, (x[None], target[None])).sum(), list(module.parameters()))
        factor = min(1.0, C / float(torch.cat([each.flatten() for each in found]).norm()))
        for sums, each in zip(total.values(), found, strict=True):
            sums.add_(each, alpha=factor)
    return total


@pytest.mark.parametrize("C", [0.5, 1e3])
@pytest.mark.parametrize("preset", NETWORKS)
def test_the_sum_is_autograds(preset: str, C: float) -> None:
    batch = records(NETWORKS[preset])
    found = clipped(network(preset), batch, C)
    wanted = by_torch(preset, batch, C)
    for name, each in wanted.items():
        assert float((found[name] - each).norm()) <= 2e-4 * float(each.norm()), name


@pytest.mark.parametrize("preset", NETWORKS)
def test_the_library_changes_no_bit_of_a_step(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = records(NETWORKS[preset])
    one = clipped(network(preset), batch, 0.5)
    for module in (rules, pooling, activations):
        monkeypatch.setattr(module, "LAYERS", None)
    two = clipped(network(preset), batch, 0.5)
    assert all(torch.equal(each, two[name]) for name, each in one.items())


def test_what_is_formed_of_conv5() -> None:
    """A layer whose gradient is smaller than its patches, and one whose Gram matrices would cost more."""
    found = []
    for inputs, outputs, side in ((3, 32, 32), (32, 64, 16), (64, 64, 8), (64, 128, 4)):
        layer = nn.Conv2d(inputs, outputs, 3, padding=1)
        x, g = torch.zeros(2, inputs, side, side), torch.zeros(2, outputs, side, side)
        found.append(type(rules._conv2d(layer, x, g)[0][1]))
    assert found == [Dense, Dense, Dense, Outer]
