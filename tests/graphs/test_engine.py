"""A graph as a job's model: tried on public records, trained, written to files, and loaded from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core.parts import graph_facts
from core.parts.graph_program import GRAPH, Program
from tests.bound.worst import Case, worst_sum
from tests.graphs.architectures import ACCEPTED
from tests.graphs.conftest import Exported, made
from tests.worker.support import plan_of, spec, start_of
from worker.clipping.examined import UnfitLayerError
from worker.data.records import DenseRecords
from worker.models.graph_network import GraphNetwork
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.model_files import save_model
from worker.predicting.loaded import UnreadableModelError, load
from worker.training import self_test
from worker.training.plan import Plan
from worker.training.rehearsal import rehearse


def start(exported: Exported, name: str, **changes: Any) -> dict[str, Any]:
    """A start message whose job's model is an architecture's file, as admission pins it."""
    facts = graph_facts.facts_of(exported(name))
    model = {"kind": "graph", "path": f"{name}.pt2"} | facts
    shape = {"records_train": 80, "records_holdout": 20, "features": facts["inputs"], "outputs": facts["outputs"]}
    return start_of(spec(model=model, **changes), shape | {"sparse": False})


def plan(exported: Exported, folder: Path, name: str, **changes: Any) -> Plan:
    return plan_of(start(exported, name, **changes), models_root=folder)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_job_s_engine_is_exact_and_keeps_records_apart(name: str, exported: Exported, folder: Path) -> None:
    """Three public records against autograd; a pass without numbers; and no operation that nobody judged."""
    ready = plan(exported, folder, name)
    assert ready.numerics.rows_per_pass > 1
    self_test.require_exact(ready)
    assert self_test.unlisted(ready) == []
    assert list(self_test.failures(ready)) == []
    rehearse(ready)


def test_training_begins_at_the_file_s_weights(exported: Exported, folder: Path) -> None:
    model = plan(exported, folder, "vit").model
    wanted = {name: each.detach().double() for name, each in made("vit").named_parameters()}
    assert {name: torch.equal(each, wanted[name]) for name, each in model.init().items()} == dict.fromkeys(wanted, True)
    assert model.numbers == sum(each.numel() for each in wanted.values())


@pytest.mark.parametrize("name", ["resnet", "tabtransformer", "densenet"])
def test_the_files_are_the_model(name: str, exported: Exported, folder: Path, tmp_path: Path) -> None:
    """Weights under the module's own names, and a graph that `load_model` runs."""
    ready = plan(exported, folder, name)
    moved = {at: each + 0.01 for at, each in ready.model.init().items()}
    files = save_model(tmp_path, ready.model, moved, ready.job.task, ready.job.features)
    assert {each.name for each in files} == {"model.safetensors", GRAPH, "model.json", "README.md"}
    whole = made(name)
    tensors = load_file(tmp_path / "model.safetensors")
    missing, unexpected = whole.load_state_dict(tensors, strict=False)
    assert not unexpected and all(each.endswith("num_batches_tracked") for each in missing)
    x = ACCEPTED[name].example(4, seed=2)
    with torch.no_grad():
        wanted = torch.softmax(whole.double()(x.double()), dim=1)
    card = json.loads((tmp_path / "model.json").read_text())
    loaded = load(tmp_path, card, (tmp_path / "model.safetensors").read_bytes(), None)
    answers = loaded.predict([each.flatten().tolist() for each in x], top=10)
    for answer, shares in zip(answers, wanted, strict=True):
        assert all(
            math.isclose(answer["probabilities"][str(at)], float(p), abs_tol=1e-5) for at, p in enumerate(shares)
        )
    (tmp_path / GRAPH).write_text((tmp_path / GRAPH).read_text().replace("linear.default", "set_.source", 1))
    with pytest.raises(UnreadableModelError, match="does not describe the model"):
        load(tmp_path, card, (tmp_path / "model.safetensors").read_bytes(), None)
    (tmp_path / GRAPH).unlink()
    with pytest.raises(UnreadableModelError, match=r"has no graph\.json"):
        load(tmp_path, card, (tmp_path / "model.safetensors").read_bytes(), None)


def test_a_file_that_changed_is_refused(exported: Exported, folder: Path) -> None:
    message = start(exported, "lstm")
    message["spec"]["model"]["sha256"] = "0" * 64
    with pytest.raises(ModelMissingError, match="differs from the admitted one"):
        plan_of(message, models_root=folder)
    with pytest.raises(ModelMissingError, match="no models root"):
        plan_of(start(exported, "lstm"))


def test_a_file_that_says_other_sizes_is_refused_before_a_private_record(exported: Exported, folder: Path) -> None:
    ready = plan(exported, folder, "wide_and_deep")
    assert isinstance(ready.model, GraphNetwork)
    document = ready.model.program.model_dump(mode="json")
    name = next(each["results"][0] for each in document["nodes"] if each["operation"] == "tanh.default")
    document["values"][name]["sizes"] = [{"records": 1}, 13]
    object.__setattr__(ready.model, "program", Program.model_validate(document))
    with pytest.raises(UnfitLayerError, match="has sizes"):
        self_test.require_exact(ready)


def test_places_are_paid_for(exported: Exported, folder: Path) -> None:
    """What admission counts is what the engine sees."""
    for name in ACCEPTED:
        ready = plan(exported, folder, name)
        generator = torch.Generator().manual_seed(1)
        examples = self_test.random_records(ready.model, self_test.EXAMPLES, generator)
        assert isinstance(examples, DenseRecords)
        assert ready.engine.positions_of(examples) <= ready.job.spec.model.positions(), name  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["resnet", "tabtransformer", "lstm", "wide_and_deep"])
def test_one_record_more_or_less_moves_a_sum_by_at_most_c(name: str, exported: Exported, folder: Path) -> None:
    ready = plan(exported, folder, name)
    case = Case(ready.model, ready.job.spec.model.positions(), numbers=(1, 3, 17))
    assert 0.5 < worst_sum(case) <= case.slack


def test_a_step_moves_the_model(exported: Exported, folder: Path) -> None:
    ready = plan(exported, folder, "deepfm")
    generator = torch.Generator().manual_seed(3)
    records = self_test.random_records(ready.model, 40, generator)
    total = ready.engine.private_sum(ready.model.init(), records)
    norms = {name: float(each.norm()) for name, each in total.items()}
    assert all(np.isfinite(list(norms.values()))) and norms["second.0.weight"] > 0.0
