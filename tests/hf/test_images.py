"""Vision transformers: exact for every image, as transformers computes them, and through the real API's checks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from app.catalogue.model_folders import resolved
from app.catalogue.model_kinds import refusal
from core.contracts.dataset_spec import ClassificationTask
from core.contracts.dataset_spec import Tensor as TensorFeatures
from core.contracts.hf import HfModel
from core.contracts.job_spec import Clipping, JobSpec
from core.errors import InvalidRequest
from core.parts import model_folder
from core.parts.model_folder import UnfitModelError
from tests.bound.worst import Case, worst_sum
from tests.factories import job_spec
from tests.hf.test_files import peft_s_own_warnings
from tests.hf.test_norms import KEY, norm, one_at_a_time, training
from tests.hf.tiny import IMAGES, write
from tests.worker.test_meta import META, drawn, shapes
from worker.clipping.build import build_engine
from worker.data.records import DenseRecords
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.hf.images import HfImages
from worker.models.model_files import save_model
from worker.training.self_test import require_exact

CLASSES = ("a", "b", "c")
IMAGE = {"height": 6, "width": 6, "channels": 3, "layout": "last", "input_scale": 1.0}
CASES = [("vit", each) for each in ("full", "head", "last_block", "bias", "lora")] + [("deit", "full")]


@pytest.fixture(scope="module")
def images_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for kind in IMAGES:
        write(root / kind, kind)
    return root


def model(root: Path, path: str, dtype: torch.dtype = torch.float64, image: Any = None, **asked: Any) -> HfImages:
    spec = HfModel.model_validate({"path": path, "image": IMAGE | (image or {})} | asked)
    return HfImages(model_folder.read(root, path), spec, CLASSES, dtype=dtype, rows_per_pass=3)


def records(m: HfImages, n: int = 4) -> DenseRecords:
    generator = torch.Generator().manual_seed(0)
    return DenseRecords(torch.rand(n, m.features, generator=generator), torch.arange(n) % 3)


def some_parameters(m: HfImages) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    first = m.init(KEY)
    return {n: v + 0.3 * torch.randn(v.shape, generator=generator, dtype=v.dtype) for n, v in first.items()}


@pytest.mark.parametrize(("path", "tuning"), CASES)
def test_clipped_sums_are_those_of_autograd_record_by_record(images_root: Path, path: str, tuning: str) -> None:
    m = model(images_root, path, tuning=tuning)
    batch, parameters = records(m), some_parameters(m)
    alone = one_at_a_time(m, parameters, batch)  # type: ignore[arg-type]
    norms = [norm(each) for each in alone]
    C = float(np.median(norms))
    found = build_engine(m, Clipping(), training(C)).private_sum(parameters, batch)
    assert set(found) == set(m.folder.trained(m.spec, m.outputs)), "what a quote says is what is trained"
    wanted = {
        name: sum((each[name] / max(1.0, size / C) for each, size in zip(alone, norms, strict=True)), torch.zeros(1))
        for name in found
    }
    assert norm({name: found[name] - wanted[name] for name in found}) <= 1e-10 * norm(wanted)


def test_one_image_changes_a_clipped_sum_by_at_most_c(images_root: Path) -> None:
    case = Case(model(images_root, "vit", torch.float32, tuning="full"), 5, numbers=(1, 4))
    assert 0.5 < worst_sum(case) <= case.slack


def test_class_tokens_and_positions_are_trained_in_full(images_root: Path) -> None:
    found = model(images_root, "deit", tuning="full").init(KEY)
    names = {"cls_token", "distillation_token", "position_embeddings"}
    assert names <= {name.removeprefix("deit.embeddings.") for name in found}


def test_a_distilled_deit_with_its_two_heads_is_read(images_root: Path, tmp_path: Path) -> None:
    """As published: the body's names have its prefix, and the heads are the file's own."""
    folder = Path(shutil.copytree(images_root / "deit", tmp_path / "deit"))
    tensors = {
        f"deit.{name}": value for name, value in safetensors.torch.load_file(folder / "model.safetensors").items()
    }
    for head in ("cls_classifier", "distillation_classifier"):
        tensors |= {f"{head}.weight": torch.zeros(1000, 16), f"{head}.bias": torch.zeros(1000)}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    found = model(tmp_path, "deit", tuning="full")
    assert not [name for name in found.init(KEY) if "distillation_classifier" in name or "cls_classifier" in name]


def test_on_the_meta_device_and_on_three_records(images_root: Path) -> None:
    m = replace(model(images_root, "vit", torch.float32, tuning="full"), device=META)
    parameters, drawn_records = drawn(m)
    shapes(build_engine(m, Clipping(), training(1.0)).private_sum(parameters, drawn_records), parameters)
    here = model(images_root, "vit", torch.float32, tuning="full")
    engine: Any = build_engine(here, Clipping(), training(1.0))
    plan: Any = SimpleNamespace(model=here, engine=engine, device=torch.device("cpu"))
    require_exact(plan)


@pytest.mark.parametrize("tuning", ["last_block", "lora"])
def test_transformers_and_peft_compute_what_was_trained(images_root: Path, tmp_path: Path, tuning: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageClassification

    m = model(images_root, "vit", tuning=tuning)
    parameters = {name: value.float().double() for name, value in some_parameters(m).items()}
    task, features = ClassificationTask(label="y", classes=list(CLASSES)), TensorFeatures(array="x")
    save_model(tmp_path, m, parameters, task, features)
    with peft_s_own_warnings():
        if tuning == "lora":
            base = AutoModelForImageClassification.from_pretrained(images_root / "vit", num_labels=3)
            loaded: Any = PeftModel.from_pretrained(base, str(tmp_path))
        else:
            loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    batch = records(m)
    pixels = (batch.dense(torch.float64).view(-1, 6, 6, 3).movedim(-1, 1) - 0.5) / 0.5
    wanted = loaded.double().eval()(pixel_values=pixels).logits.detach()
    torch.testing.assert_close(m.forward(parameters, batch).mT, wanted, rtol=1e-5, atol=1e-6)


def test_images_are_scaled_resized_and_normalized(images_root: Path, tmp_path: Path) -> None:
    shutil.copytree(images_root / "vit", tmp_path / "m")
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [1.0, 2.0, 4.0]}
    (tmp_path / "m" / "preprocessor_config.json").write_text(json.dumps(settings))
    grey = model(tmp_path, "m", image={"height": 3, "width": 12, "channels": 1, "input_scale": 0.5})
    x = torch.ones(2, 36)
    found = grey._pixels(DenseRecords(x, torch.zeros(2, dtype=torch.int64)), torch.float64)
    wanted = torch.tensor([0.4, 0.15, 0.05], dtype=torch.float64)
    assert found.shape == (2, 3, 6, 6) and torch.allclose(found, wanted[:, None, None].expand(2, 3, 6, 6))
    (tmp_path / "m" / "preprocessor_config.json").write_text('{"image_std": [1, 1, 0]}')
    with pytest.raises(ModelMissingError, match="cannot be used"):
        whole = model(tmp_path, "m")
        whole.forward(whole.init(KEY), records(whole))


def test_names_from_before_transformers_5_are_understood(images_root: Path, tmp_path: Path) -> None:
    shutil.copytree(images_root / "vit", tmp_path / "m")
    tensors = safetensors.torch.load_file(images_root / "vit" / "model.safetensors")
    before = {"layers.": "encoder.layer.", "attention.o_proj": "attention.output.dense"}
    before |= {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    before |= {f"attention.{name[0]}_proj": f"attention.attention.{name}" for name in ("query", "key", "value")}
    renamed = {}
    for name, value in tensors.items():
        old = name
        for new, then in before.items():
            old = old.replace(new, then)
        renamed[old] = value
    safetensors.torch.save_file(renamed, tmp_path / "m" / "model.safetensors")
    assert model_folder.read(tmp_path, "m").shapes == model_folder.read(images_root, "vit").shapes
    one, other = (model(root, path, tuning="full").init(KEY) for root, path in ((tmp_path, "m"), (images_root, "vit")))
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("asked", "pointer", "says"),
    [
        ({"path": "vit"}, "/model/image", "say how"),
        ({"path": "gpt2", "image": IMAGE}, "/model/image", "reads texts"),
        ({"path": "vit", "image": IMAGE | {"width": 5}}, "/model/image", "90 numbers"),
    ],
)
def test_refusals(images_root: Path, models_root: Path, asked: dict[str, Any], pointer: str, says: str) -> None:
    root = models_root if asked["path"] == "gpt2" else images_root
    spec = JobSpec.model_validate(job_spec("ds_x", model={"kind": "hf"} | asked))
    if says.endswith("numbers"):
        found = refusal(resolved(spec.model, root, 3), "classification", "tensor", 108, 3)
        assert found is not None and found[0] == pointer and says in found[1]
        return
    with pytest.raises(InvalidRequest) as refused:
        resolved(spec.model, root, 3)
    error = refused.value.members["errors"][0]
    assert error["pointer"] == pointer and says in error["detail"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"patch_size": 2}, "patches"),
        ({"image_size": 9}, "positions"),
        ({"num_hidden_layers": 3}, "blocks"),
        ({"image_size": "6"}, "size of images"),
        ({"hidden_size": None}, "does not say"),
    ],
)
def test_folders_that_do_not_fit(images_root: Path, tmp_path: Path, config: dict[str, Any], says: str) -> None:
    shutil.copytree(images_root / "vit", tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(UnfitModelError, match=says):
        model_folder.read(tmp_path, "m")
