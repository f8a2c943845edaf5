"""Max-pooling by whole tensors: torch's own values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker.models.pooling import MaxPool2x2


@pytest.mark.parametrize("shape", [(3, 2, 5, 4), (1, 1, 2, 2), (2, 3, 14, 14)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ties", [False, True])
def test_it_is_torchs(shape: tuple[int, ...], dtype: torch.dtype, ties: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    x = (x.sign() if ties else x).to(dtype)
    found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, theirs = MaxPool2x2()(found), nn.MaxPool2d(2, 1)(wanted)
    assert torch.equal(ours, theirs) and ours.is_contiguous()
    g = torch.randint(-8, 8, ours.shape, generator=generator).to(dtype)  # sums of integers are exact
    ours.backward(g)
    theirs.backward(g)
    assert found.grad is not None and wanted.grad is not None and torch.equal(found.grad, wanted.grad)


def test_other_orders_of_memory() -> None:
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    assert torch.equal(MaxPool2x2()(x), nn.MaxPool2d(2, 1)(x))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_no_record_reaches_another(bad: float) -> None:
    """Though records touch in memory: neither values nor gradients cross."""
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[1] = bad
    outputs, gradients = [], []
    for each in (x, y):
        leaf = each.clone().requires_grad_()
        pooled = MaxPool2x2()(leaf)
        outputs.append(pooled.detach())
        weights = torch.ones_like(pooled)
        weights[1] = bad if each is y else 1.0
        pooled.backward(weights)
        gradients.append(leaf.grad)
    for one, two in (outputs, gradients):
        assert one is not None and two is not None and torch.equal(one[[0, 2]], two[[0, 2]])
