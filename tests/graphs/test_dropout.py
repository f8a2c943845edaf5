"""Dropout of a user's own graph: masks by record and step under the service's keys, and none in the finished model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.contracts.job_spec import Clipping
from core.errors import PrivacyError
from core.parts import graph_facts, graph_file
from core.parts.graph_file import GraphFile
from core.parts.graph_program import Program, UnfitGraphError
from core.parts.graph_rules import places_of
from scrimp.graph_export import export_graph
from tests.worker.support import Supervisor, dense, key, plan_of, records, run_direct, spec, start_of
from worker.clipping.build import build_engine
from worker.models.dropout import Dropout, Masks
from worker.models.graph_module import GraphModule
from worker.models.graph_network import tensors_of
from worker.training import self_test
from worker.training.plan import Plan
from worker.training.rehearsal import rehearse

KEY = bytes.fromhex(key("dropout"))
X, Y = dense(80, 6, 3)
TRAIN = records(X, Y)
CLIPPING = Clipping(engine="bookkeeping", max_grad_norm=0.3)


class Dropped(nn.Module):
    """Masks after a layer, and in the middle of operations; a parameter of its own."""

    def __init__(self, first: Any = nn.Dropout(0.4), second: Any = nn.Dropout(0.4)) -> None:
        super().__init__()
        self.rise, self.scale, self.head = nn.Linear(6, 8), nn.Parameter(torch.rand(8) + 0.5), nn.Linear(8, 3)
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(torch.tanh(self.rise(x)))
        answer: Tensor = self.head(self.second((self.scale * h).square()).unsqueeze(1).sum(1))
        return answer


@pytest.fixture
def file(tmp_path: Path) -> GraphFile:
    torch.manual_seed(0)
    return graph_file.read(export_graph(Dropped().train(), torch.randn(3, 6), tmp_path / "own.pt2"))


def start(file: GraphFile, folder: Path) -> dict[str, Any]:
    model = {"kind": "graph", "path": "own.pt2"} | graph_facts.facts_of(file)
    shape = {"records_train": 80, "records_holdout": 20, "features": 6, "outputs": 3, "sparse": False}
    settings = spec(model=model, runtime={"dtype": "float64"}, clipping=CLIPPING.model_dump())
    return start_of(settings, shape) | {"models_root": str(folder)}


def plan(file: GraphFile, folder: Path) -> Plan:
    return plan_of(start(file, folder))


def flat(total: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in total.values()])


def test_how_a_batch_is_split_changes_no_mask(file: GraphFile, tmp_path: Path) -> None:
    ready = plan(file, tmp_path)
    assert ready.mechanism is not None
    parameters = ready.model.init()
    with pytest.raises(PrivacyError, match="before a step begins"):
        ready.engine.private_sum(parameters, TRAIN)
    sums = []
    for step, rows in ((1, 96), (1, 1), (1, 7), (2, 96)):
        model = replace(ready.model, rows_per_pass=rows)
        engine = build_engine(model, CLIPPING, ready.mechanism.training)
        model.masks.begin(KEY, step)  # type: ignore[attr-defined]
        sums.append(flat(engine.private_sum(parameters, TRAIN)))
    for other in sums[1:3]:
        torch.testing.assert_close(other, sums[0], rtol=1e-12, atol=1e-14)
    assert float((sums[3] - sums[0]).norm()) > 0.05 * float(sums[0].norm())  # another step, other masks


def test_a_killed_attempt_goes_on_to_the_same_bits(file: GraphFile, tmp_path: Path) -> None:
    train, holdout = records(X[:60], Y[:60]), records(X[60:], Y[60:])
    straight = Supervisor(start(file, tmp_path))
    weights = flat(run_direct(straight, train, holdout)[0].parameters)
    for step in (1, 5, 10):
        record = Supervisor(start(file, tmp_path), die_at=step)
        with pytest.raises(ConnectionError):
            run_direct(record, train, holdout)
        record.die_at = None
        assert torch.equal(flat(run_direct(record, train, holdout)[0].parameters), weights)
        assert record.digests() == straight.digests() and record.resalts == 0


def test_a_job_s_engine_is_exact_and_keeps_records_apart(file: GraphFile, tmp_path: Path) -> None:
    ready = plan(file, tmp_path)
    assert ready.numerics.rows_per_pass > 1
    self_test.require_exact(ready)
    assert self_test.unlisted(ready) == [] and list(self_test.failures(ready)) == []
    rehearse(ready)


def test_training_is_the_module_with_these_masks(file: GraphFile, tmp_path: Path) -> None:
    tensors, masks = tensors_of(file), Masks(0.4)
    graph = GraphModule(file.program, tensors, torch.float64, "cpu", masks)
    numbers = [part.layer for part in graph.modules() if isinstance(part, Dropout)]
    assert len(set(numbers)) == 2
    own = Masks(0.4)
    whole = Dropped(*(Dropout(own, number) for number in numbers)).double()
    with torch.no_grad():
        for name, parameter in graph.named_parameters():
            parameter.copy_(tensors[name])
            whole.get_parameter(name).copy_(tensors[name])
    x = torch.from_numpy(X).double()
    for source in (masks, own):
        source.begin(KEY, 3)
    assert torch.allclose(graph(x), whole(x), rtol=1e-12, atol=1e-12)
    dropped = graph.eval()(x)
    assert torch.allclose(dropped, whole.eval()(x), rtol=1e-12, atol=1e-12)
    alone = GraphModule(file.program, tensors, torch.float64, "cpu")  # as a prediction has it
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter.copy_(tensors[name])
    assert torch.equal(alone(x), dropped)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Dropped(second=nn.Dropout(0.2)), "one rate here"),
        (Dropped(nn.Dropout(1.0), nn.Dropout(1.0)), "one rate here"),
        (Dropped(second=nn.AlphaDropout(0.4)), "would not replay"),
        (Dropped(second=nn.Dropout1d(0.4)), "would not replay"),
    ],
    ids=["two rates", "all of it", "alpha", "channels"],
)
def test_other_masks_are_refused_by_name(module: nn.Module, why: str, tmp_path: Path) -> None:
    path = export_graph(module.train(), torch.randn(3, 6), tmp_path / "other.pt2")
    with pytest.raises(UnfitGraphError, match=why):
        places_of(graph_file.read(path).program)


@pytest.mark.parametrize("train", [True, False])
def test_masks_themselves_are_no_output(file: GraphFile, train: bool) -> None:
    document = file.program.model_dump(mode="json")
    (dropped, *_) = (each for each in document["nodes"] if each["operation"] == "native_dropout.default")
    document["output"], dropped["arguments"]["train"] = dropped["results"][1], train
    with pytest.raises(UnfitGraphError, match="masks themselves are not known"):
        places_of(Program.model_validate(document))


def test_masks_are_of_records_alone(tmp_path: Path) -> None:
    class OfWeights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ nn.functional.dropout(self.weight, 0.4, training=True)

    path = export_graph(OfWeights(), torch.randn(3, 6), tmp_path / "weights.pt2")
    with pytest.raises(UnfitGraphError, match="what no record has"):
        places_of(graph_file.read(path).program)
