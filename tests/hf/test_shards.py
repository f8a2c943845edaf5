"""Weights in several files: the same model, pinned by the hash of each file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from core.parts import model_folder
from core.parts.model_folder import UnfitModelError
from tests.hf.test_hostile import rewritten
from tests.hf.test_norms import KEY, model
from worker.models.hf.hf_loading import ModelMissingError

NAMES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(root: Path, to: Path) -> Path:
    """A copy of `llama` whose tensors lie alternately in two files."""
    folder = Path(shutil.copytree(root / "llama", to / "m"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    placed = {name: NAMES[at % 2] for at, name in enumerate(sorted(tensors))}
    for file in NAMES:
        safetensors.torch.save_file({n: t for n, t in tensors.items() if placed[n] == file}, folder / file)
    indexed(folder, placed)
    return folder


def indexed(folder: Path, placed: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def test_they_are_the_same_model(models_root: Path, tmp_path: Path) -> None:
    sharded(models_root, tmp_path)
    found, whole = model_folder.read(tmp_path, "m"), model_folder.read(models_root, "llama")
    assert found.shapes == whole.shapes and found.weights == NAMES
    assert set(NAMES) < set(found.hashes) and found.sha256 != whole.sha256
    mine, theirs = (
        model(root, path, tuning="full").init(KEY) for root, path in ((tmp_path, "m"), (models_root, "llama"))
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs) and set(mine) == set(theirs)


def test_one_file_is_read_where_both_forms_exist(models_root: Path, tmp_path: Path) -> None:
    folder = sharded(models_root, tmp_path)
    shutil.copy(models_root / "llama" / "model.safetensors", folder)
    assert model_folder.read(tmp_path, "m").sha256 == model_folder.read(models_root, "llama").sha256


def test_what_is_read_is_what_was_hashed(models_root: Path, tmp_path: Path) -> None:
    folder = sharded(models_root, tmp_path)
    tuned = model(tmp_path, "m", tuning="head")
    rewritten(folder / NAMES[1])
    with pytest.raises(ModelMissingError):
        tuned.init(KEY)


@pytest.mark.parametrize(
    ("placed", "says"),
    [
        ({}, "does not name"),
        ([], "does not name"),
        ({"a": "../llama/model.safetensors"}, "does not name"),
        ({"a": ["x.safetensors"]}, "does not name"),
        ({"a": "pytorch_model.bin"}, "does not name"),
        ({"a": "absent.safetensors"}, r"no absent\.safetensors"),
        ({str(n): f"{n}.safetensors" for n in range(300)}, "does not name 1 to 256"),
    ],
)
def test_indexes_that_name_no_files_beside_them(models_root: Path, tmp_path: Path, placed: Any, says: str) -> None:
    indexed(sharded(models_root, tmp_path), placed)
    with pytest.raises(UnfitModelError, match=says):
        model_folder.read(tmp_path, "m")


def test_a_tensor_in_two_files_is_refused(models_root: Path, tmp_path: Path) -> None:
    folder = sharded(models_root, tmp_path)
    shutil.copy(folder / NAMES[0], folder / NAMES[1])
    with pytest.raises(UnfitModelError, match="in two files"):
        model_folder.read(tmp_path, "m")


def test_their_size_is_bounded_together(models_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sharded(models_root, tmp_path)
    most = max((folder / name).stat().st_size for name in NAMES)
    monkeypatch.setattr(model_folder, "MAX_WEIGHTS_BYTES", most)
    with pytest.raises(UnfitModelError, match="together"):
        model_folder.read(tmp_path, "m")
