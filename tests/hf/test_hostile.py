"""Folders that are made to harm: nothing of a text may decide whether a job ends, nothing of a config what is made."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from core.contracts.hf import HfModel
from core.parts import model_folder
from core.parts.model_folder import UnfitModelError
from tests.hf.test_norms import KEY, model, records
from worker.models.hf.hf_loading import ModelMissingError, load
from worker.models.hf.tokens import Tokens
from worker.models.hf.tuned_files import tuned_files


def copied(models_root: Path, root: Path, kind: str = "gpt2", tokenizer: Any = None, **config: Any) -> Path:
    """A model's folder with another config, and whatever tokenizer a function makes of its own."""
    folder = Path(shutil.copytree(models_root / kind, root / "m"))
    document = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(document))
    if tokenizer is not None:
        made = json.loads((folder / "tokenizer.json").read_text())
        tokenizer(made)
        (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder


def slow_split(document: dict[str, Any]) -> None:
    pattern = {"Regex": "(x+x+)+y"}
    document["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": False}


def test_a_text_on_which_the_library_panics_has_no_tokens(models_root: Path, tmp_path: Path) -> None:
    copied(models_root, tmp_path, tokenizer=slow_split)
    tokens = Tokens(model_folder.read(tmp_path, "m"), 8)
    assert tokens.ids("x" * 40) == [2], "the end of text alone"


def rewritten(path: Path) -> None:
    """In place, with the same size and time: a hash that is known by them does not see it."""
    known, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


def test_what_is_read_is_what_was_hashed(models_root: Path, tmp_path: Path) -> None:
    folder = copied(models_root, tmp_path)
    (folder / "generation_config.json").write_text("{} ")
    pinned = model_folder.read(tmp_path, "m").sha256
    m = model(tmp_path, "m", tuning="head")
    rewritten(folder / "generation_config.json")
    delivered = tuned_files(m, m.init(KEY), {"format": "pt"})
    assert "tokenizer.json" in delivered and "generation_config.json" not in delivered
    for name in ("model.safetensors", "tokenizer.json"):
        rewritten(folder / name)
    read = model_folder.read(tmp_path, "m")
    assert read.sha256 == pinned, "as an attempt finds it, whose hashes are known already"
    with pytest.raises(ModelMissingError):
        load(read, m.spec, (), torch.float64)
    with pytest.raises(ModelMissingError):
        Tokens(read, 8)


@pytest.mark.parametrize("end", [50256, -1, "2", True, [32]])
def test_an_end_of_text_that_is_no_token_is_refused(models_root: Path, tmp_path: Path, end: Any) -> None:
    copied(models_root, tmp_path, eos_token_id=end)
    with pytest.raises(ModelMissingError):
        Tokens(model_folder.read(tmp_path, "m"), 8)


def test_positions_that_remember_longer_texts_are_refused(models_root: Path, tmp_path: Path) -> None:
    copied(models_root, tmp_path, "llama", rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4})
    with pytest.raises(ModelMissingError, match="depend on other texts"):
        load(model_folder.read(tmp_path, "m"), HfModel(path="m", max_length=8), (), torch.float32)


def test_marks_that_are_no_tokens_never_reach_the_model(models_root: Path, tmp_path: Path) -> None:
    def strange(document: dict[str, Any]) -> None:
        document["post_processor"]["special_tokens"]["</s>"]["ids"] = [999_999]

    copied(models_root, tmp_path, "roberta", tokenizer=strange)
    assert max(Tokens(model_folder.read(tmp_path, "m"), 8).ids("w1 w2")) < 32


@pytest.mark.parametrize(
    ("kind", "config"),
    [("gpt2", {"n_inner": 2**22}), ("llama", {"intermediate_size": 2**30}), ("llama", {"head_dim": 2**20})],
)
def test_a_config_makes_nothing_larger_than_the_file(
    models_root: Path, tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    folder = model_folder.read(models_root, kind)
    copied(models_root, tmp_path, kind, **config)
    with pytest.raises(ModelMissingError, match="do not fit its class"):
        load(model_folder.read(tmp_path, "m"), HfModel(path="m"), (), torch.float32)
    assert load(folder, HfModel(path=kind), (), torch.float32)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("bert", {"max_position_embeddings": 2**28}),
        ("gpt2", {"n_positions": 2**28}),
        ("roberta", {"pad_token_id": None}),
        ("roberta", {"pad_token_id": "x"}),
        ("roberta", {"pad_token_id": float("inf")}),
        ("gpt2", {"n_layer": True}),
    ],
)
def test_numbers_that_fit_nothing_are_refused_at_admission(
    models_root: Path, tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    copied(models_root, tmp_path, kind, **config)
    with pytest.raises(UnfitModelError):
        model_folder.read(tmp_path, "m")


@pytest.mark.parametrize("shape", ["[Infinity]", "[1180591620717411303424, -3]", "[true]", "[-1]"])
def test_shapes_that_are_no_sizes_are_refused(models_root: Path, tmp_path: Path, shape: str) -> None:
    header = ('{"wte.weight": {"dtype": "F32", "shape": ' + shape + ', "data_offsets": [0, 4]}}').encode()
    folder = copied(models_root, tmp_path)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UnfitModelError, match="not a safetensors file"):
        model_folder.read(tmp_path, "m")


def test_keys_that_change_what_a_pass_returns_are_not_taken(models_root: Path, tmp_path: Path) -> None:
    copied(models_root, tmp_path, "bert", return_dict=False, chunk_size_feed_forward=3, output_attentions=True)
    tuned, plain = model(tmp_path, "m", tuning="bias"), model(models_root, "bert", tuning="bias")
    found = [m.forward(m.init(KEY), records()) for m in (tuned, plain)]
    assert torch.equal(*found)


def test_a_tensor_that_its_class_does_not_have_is_not_quoted_and_then_left_out(
    models_root: Path, tmp_path: Path
) -> None:
    import safetensors.torch

    folder = copied(models_root, tmp_path, "llama")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(8)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelMissingError):
        load(model_folder.read(tmp_path, "m"), HfModel(path="m", tuning="bias"), (), torch.float32)


def test_a_link_or_a_pipe_in_place_of_a_config_is_not_read(models_root: Path, tmp_path: Path) -> None:
    folder = copied(models_root, tmp_path / "root")
    (folder / "config.json").rename(tmp_path / "outside.json")
    (folder / "config.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(UnfitModelError, match="cannot be read"):
        model_folder.read(tmp_path / "root", "m")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(UnfitModelError, match="cannot be read"):
        model_folder.read(tmp_path / "root", "m")


def test_the_loss_of_a_classifier_is_its_cross_entropy(models_root: Path) -> None:
    m = model(models_root, "bert", tuning="head")
    outputs, labels = torch.tensor([[5.0, -5.0], [-5.0, 5.0], [0.0, 0.0]]).double(), torch.tensor([0, 1])
    assert torch.equal(m.errors(outputs, labels), m.losses(outputs, labels)) and float(m.errors(outputs, labels)[0]) > 0
