"""Public architectures from their files: outputs and each record's gradient are torch's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from core.parts import graph_file
from core.parts.graph_file import GraphFile
from scrimp.graph_export import export_graph
from tests.graphs.architectures import ACCEPTED
from tests.graphs.conftest import Exported, made
from worker.clipping.bookkeeping import Bookkeeping
from worker.data.records import DenseRecords
from worker.models.graph_module import GraphModule
from worker.models.graph_network import tensors_of

EXACT, RECORDS = 1e-6, 5


def module_of(file: GraphFile) -> GraphModule:
    tensors = tensors_of(file)
    module = GraphModule(file.program, tensors, torch.float64, "cpu")
    with torch.no_grad():
        for name, each in module.named_parameters():
            each.copy_(tensors[name])
    return module


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


def by_autograd(module: nn.Module, x: Tensor, label: Tensor) -> dict[str, Tensor]:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return losses(functional_call(module, parameters, (x[None],)), label[None])[0]

    found: dict[str, Tensor] = grad(loss)({name: each.detach() for name, each in module.named_parameters()})
    return found


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_graph_is_the_module(name: str, exported: Exported) -> None:
    whole, shape = made(name).double(), ACCEPTED[name].record
    graph = module_of(exported(name))
    x = ACCEPTED[name].example(RECORDS, seed=1).double()
    labels = torch.arange(RECORDS) % whole(x).shape[1]
    assert set(dict(graph.named_parameters())) == set(dict(whole.named_parameters()))
    assert torch.allclose(graph(x), whole(x), rtol=EXACT, atol=EXACT)
    engine = Bookkeeping[DenseRecords](
        graph,
        lambda module, records: losses(module(records.dense(torch.float64).unflatten(1, shape)), records.labels),
        rows=RECORDS,
        kind="flat",
        max_grad_norm=1.0,
        dtype=torch.float64,
    )
    assert engine.fallbacks == ()
    records = DenseRecords(x.flatten(1), labels)
    engine.examine(records)
    for at in range(RECORDS):
        found = engine.one_pass(records.select(np.array([at])), RECORDS)[1]
        wanted = by_autograd(whole, x[at], labels[at])
        norm = torch.cat([each.flatten() for each in wanted.values()]).norm()
        assert norm > 1e-3
        assert max(float((found[each] - wanted[each]).norm() / norm) for each in wanted) < EXACT


class SameTwice(nn.Module):
    """One parameter that scales and shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.out = nn.Parameter(torch.rand(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(F.layer_norm(x, (6,), self.own, self.own) * self.own)
        return found


def test_one_tensor_as_weight_and_bias(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = SameTwice()
    graph = module_of(graph_file.read(export_graph(whole, torch.randn(3, 6), tmp_path / "twice.pt2")))
    engine = Bookkeeping[DenseRecords](
        graph,
        lambda module, records: losses(module(records.dense(torch.float64)), records.labels),
        rows=3,
        kind="flat",
        max_grad_norm=1.0,
        dtype=torch.float64,
    )
    records = DenseRecords(torch.randn(3, 6, dtype=torch.float64), torch.arange(3))
    engine.examine(records)
    found = engine.one_pass(records.select(np.array([0])), 3)[1]
    wanted = by_autograd(whole.double(), records.dense(torch.float64)[0], records.labels[0])
    assert all(torch.allclose(found[name], each) for name, each in wanted.items())


def test_ids_outside_of_a_table_take_its_ends(exported: Exported) -> None:
    """A record with a code that the table has not must not end the pass: that would tell of it."""
    graph = module_of(exported("deepfm"))
    x = ACCEPTED["deepfm"].example(2).double()
    wild, ends = x.clone(), x.clone()
    wild[0, :3], ends[0, :3] = torch.tensor([9e9, -4.0, torch.nan]), torch.tensor([4.0, 0.0, 0.0])
    assert torch.equal(graph(wild), graph(ends))
