"""Each operation that has a rule: as torch's own on all records at once, blind to neighbours, and never an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.parts.graph_rules import RULES
from tests.graphs.operations import OPERATIONS, WITHOUT_RECORDS, Built, built

N, KEPT = 7, (0, 3, 6)
EXTREMES = (torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 0.0, 1e-40)


def drawn(of: Built, seed: int) -> Tensor:
    x = torch.randn(N, *of.case.row, generator=torch.Generator().manual_seed(seed))
    return x * 3.0 if of.case.kind == "float32" else x.round().abs().clamp(max=2)


def extreme(of: Built) -> Tensor:
    """Each record all of one extreme number."""
    return torch.stack([torch.full(of.case.row, each) for each in EXTREMES])


def bits(x: Tensor) -> Tensor:
    return x.nan_to_num(7.25) if x.is_floating_point() else x


def test_every_rule_has_a_case() -> None:
    assert set(OPERATIONS) | WITHOUT_RECORDS == set(RULES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation(operation: str) -> None:
    of = built(operation)
    x = drawn(of, 1)
    with torch.no_grad():
        found = of.module(x)
        wanted = of.whole(x)
        assert found.shape[0] == N and torch.allclose(found, wanted.reshape(found.shape), atol=1e-5, equal_nan=True)
        beside = extreme(of)
        beside[list(KEPT)] = x[list(KEPT)]
        moved = of.module(beside)  # no number of a record may end a pass
    for at in KEPT:
        assert torch.equal(bits(moved[at]), bits(found[at])), "a neighbour moved it"
