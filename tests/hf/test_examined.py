"""Hugging Face models on three random records: the engine's gradients are autograd's, and a record's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.errors import PrivacyError
from tests.bound.worst import engine_of
from tests.hf.test_bound import TRIED
from tests.hf.test_norms import model
from worker.models.hf.hf_model import HfTuning
from worker.training.self_test import require_exact


def plan_of(root: Path, path: str, tuning: str, dtype: torch.dtype = torch.float32) -> Any:
    made = model(root, path, dtype, tuning=tuning)
    return SimpleNamespace(model=made, engine=engine_of(made), device=torch.device("cpu"))


@pytest.mark.parametrize(("path", "tuning"), TRIED)
def test_gradients_are_autograds(models_root: Path, path: str, tuning: str) -> None:
    require_exact(plan_of(models_root, path, tuning))


def test_in_bfloat16(models_root: Path) -> None:
    require_exact(plan_of(models_root, "gpt2", "lora", torch.bfloat16))


def test_a_model_that_mixes_texts_is_refused(models_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = HfTuning.record_losses

    def mixed(self: HfTuning, module: nn.Module, records: Any) -> Tensor:
        found = losses(self, module, records)
        return found - 0.5 * found.mean()

    monkeypatch.setattr(HfTuning, "record_losses", mixed)
    with pytest.raises(PrivacyError, match="other records"):
        require_exact(plan_of(models_root, "gpt2", "full"))
