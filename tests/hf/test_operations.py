"""Hugging Face models in every kind of tuning use operations of the closed list alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bound.worst import Case
from tests.by_night import but
from tests.hf.test_bound import TRIED
from tests.hf.test_norms import model
from tests.hf.tiny import FAMILIES, IMAGES, write
from tests.worker.test_operations import unjudged

POSITIONS = 64  # more than any use of a parameter has here
TYPES = but((torch.float32, torch.bfloat16, torch.float64), lambda dtype: dtype == torch.float32)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("path", "tuning"), TRIED)
def test_texts(models_root: Path, path: str, tuning: str, dtype: torch.dtype) -> None:
    made = model(models_root, path, dtype, tuning=tuning)
    assert unjudged(Case(made, POSITIONS)) == set()


@pytest.mark.parametrize("path", ["gpt2", "llama"])
def test_prompts(models_root: Path, path: str) -> None:
    assert (
        unjudged(Case(replace(model(models_root, path, torch.float32, tuning="lora"), prompts=True), POSITIONS))
        == set()
    )


@pytest.mark.parametrize("tuning", but(("lora", "full"), lambda tuning: tuning == "lora"))
@pytest.mark.parametrize("path", but(FAMILIES, lambda path: path in ("phi3", "gemma3_text")))
def test_families(tmp_path: Path, path: str, tuning: str) -> None:
    write(tmp_path / path, path)
    assert unjudged(Case(model(tmp_path, path, torch.float32, tuning=tuning), POSITIONS)) == set()


@pytest.mark.parametrize("side", [6, 8])
@pytest.mark.parametrize("path", but(IMAGES, lambda path: path == "vit"))
def test_images(tmp_path: Path, path: str, side: int) -> None:
    """As large as the model takes them, and resized."""
    from tests.hf.test_images import model as of_images

    write(tmp_path / path, path)
    made = of_images(tmp_path, path, torch.float32, {"height": side, "width": side}, tuning="full")
    assert unjudged(Case(made, POSITIONS)) == set()
