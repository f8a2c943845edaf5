"""Public architectures from their files: outputs and each record's gradient are torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from core.parts.graph_file import GraphFile
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


def test_ids_outside_of_a_table_take_its_ends(exported: Exported) -> None:
    """A record with a code that the table has not must not end the pass: that would tell of it."""
    graph = module_of(exported("deepfm"))
    x = ACCEPTED["deepfm"].example(2).double()
    wild, ends = x.clone(), x.clone()
    wild[0, :3], ends[0, :3] = torch.tensor([9e9, -4.0, torch.nan]), torch.tensor([4.0, 0.0, 0.0])
    assert torch.equal(graph(wild), graph(ends))
