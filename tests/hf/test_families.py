"""Families beside the first four, and models outside the table: exact for every record, or refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from core.contracts.job_spec import Clipping
from core.parts import model_folder
from tests.bound.worst import Case, engine_of, worst_sum
from tests.hf.test_examined import plan_of
from tests.hf.test_norms import KEY, LENGTH, model, norm, one_at_a_time, records, some_parameters, training
from tests.hf.tiny import FAMILIES, write
from tests.worker.test_meta import META, drawn, on_meta, shapes
from worker.clipping.build import build_engine
from worker.clipping.examined import UnfitLayerError
from worker.models.hf.hf_loading import ModelMissingError
from worker.training.self_test import require_exact

__all__ = ["on_meta"]  # a fixture
OTHERS = ("phi", "gpt_neox")  # outside the table
CASES = [
    *((kind, "full") for kind in (*FAMILIES, *OTHERS)),
    *((kind, "lora") for kind in ("phi3", "gemma2", "gpt_neox")),
]
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}


@pytest.fixture(scope="module")
def families_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("families")
    for kind in (*FAMILIES, *OTHERS):
        write(root / kind, kind)
    return root


@pytest.mark.parametrize(("path", "tuning"), CASES)
def test_clipped_sums_are_those_of_autograd_record_by_record(families_root: Path, path: str, tuning: str) -> None:
    m, batch = model(families_root, path, tuning=tuning), records(4)
    parameters = some_parameters(m)
    alone = one_at_a_time(m, parameters, batch)
    norms = [norm(each) for each in alone]
    C = float(np.median(norms))
    engine = build_engine(m, Clipping(), training(C))
    assert engine.fallbacks == ()  # type: ignore[attr-defined]
    found = engine.private_sum(parameters, batch)
    assert set(found) == set(m.folder.trained(m.spec, m.outputs)), "what a quote says is what is trained"
    wanted = {
        name: sum((each[name] / max(1.0, size / C) for each, size in zip(alone, norms, strict=True)), torch.zeros(1))
        for name in found
    }
    assert norm({name: found[name] - wanted[name] for name in found}) <= 1e-10 * norm(wanted)


@pytest.mark.parametrize("path", ["qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text"])
def test_on_the_meta_device(families_root: Path, path: str) -> None:
    m = replace(model(families_root, path, torch.float32, tuning="full"), device=META)
    parameters, drawn_records = drawn(m)
    shapes(engine_of(m).private_sum(parameters, drawn_records), parameters)


@pytest.mark.parametrize("path", ["gemma2", "phi3", "gpt_neox"])
def test_three_random_records_are_tried(families_root: Path, path: str) -> None:
    require_exact(plan_of(families_root, path, "lora"))


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_model_that_chooses_its_path_by_its_records_is_refused(tmp_path: Path, tuning: str) -> None:
    """Which expert a token goes to is private: the error names the module."""
    write(tmp_path / "m", "mixtral", **EXPERTS)
    with pytest.raises(UnfitLayerError, match=r"model\.layers\.0\.mlp") as refused:
        require_exact(plan_of(tmp_path, "m", tuning))
    assert "Mixtral" in refused.value.module


def test_a_kind_that_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "gpt_neox")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard_of"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelMissingError, match="no language model of this type"):
        model(tmp_path, "m").init(KEY)


def test_one_text_changes_a_clipped_sum_by_at_most_c(families_root: Path) -> None:
    """With the trained weights at a gain of 30; the other families: `python -m tests.bound.nightly`."""
    case = Case(model(families_root, "gemma2", torch.float32, tuning="full"), 2 * LENGTH, numbers=(2,))
    assert 0.5 < worst_sum(case) <= case.slack


@pytest.mark.parametrize("path", ["qwen3", "gemma3_text"])
def test_last_blocks_and_heads(families_root: Path, path: str) -> None:
    for tuning in ("last_block", "head"):
        m, batch = model(families_root, path, tuning=tuning), records(3)
        parameters = some_parameters(m)
        found = build_engine(m, Clipping(), training(1e6)).private_sum(parameters, batch)
        wanted = one_at_a_time(m, parameters, batch)
        total = {name: sum((each[name] for each in wanted), torch.zeros(1)) for name in found}
        assert norm({name: found[name] - total[name] for name in found}) <= 1e-10 * norm(total)
        assert model_folder.read(families_root, path).positions >= LENGTH
