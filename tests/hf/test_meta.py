"""Passes, sums and gradients of Hugging Face models on torch's meta device; see tests/worker/test_meta.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bound.worst import engine_of
from tests.hf.test_norms import CASES as TUNINGS
from tests.hf.test_norms import model as tuned
from tests.worker.test_meta import META, drawn, on_meta, shapes
from worker.clipping.build import unclipped_engine

__all__ = ["on_meta"]  # a fixture


@pytest.mark.parametrize(("path", "tuning"), TUNINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_language_models(models_root: Path, path: str, tuning: str, dtype: torch.dtype) -> None:
    model = replace(tuned(models_root, path, dtype, tuning=tuning), device=META)
    parameters, records = drawn(model)
    shapes(engine_of(model).private_sum(parameters, records), parameters)
    shapes(unclipped_engine(model).private_sum(parameters, records), parameters)
