"""Passes, sums and gradients of Hugging Face models on torch's meta device; see tests/worker/test_meta.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bound.worst import engine_of
from tests.by_night import but
from tests.hf.test_norms import CASES as TUNINGS
from tests.hf.test_norms import model as tuned
from tests.worker.test_meta import META, drawn, on_meta, shapes
from worker.clipping.build import unclipped_engine

__all__ = ["on_meta"]  # a fixture


EVERY = [(path, tuning, dtype) for dtype in (torch.float32, torch.bfloat16) for path, tuning in TUNINGS]
# By day all layers of each architecture, and each other way of tuning once; by night all of them.
BY_DAY = {
    *((path, "full", torch.bfloat16) for path, _tuning in TUNINGS),
    *(("gpt2", tuning, torch.float32) for tuning in ("full", "head", "last_block", "bias", "lora")),
}


@pytest.mark.parametrize(("path", "tuning", "dtype"), but(EVERY, BY_DAY.__contains__))
def test_language_models(models_root: Path, path: str, tuning: str, dtype: torch.dtype) -> None:
    model = replace(tuned(models_root, path, dtype, tuning=tuning), device=META)
    parameters, records = drawn(model)
    shapes(engine_of(model).private_sum(parameters, records), parameters)
    shapes(unclipped_engine(model).private_sum(parameters, records), parameters)
