"""Canaries that are texts: random tokens of the vocabulary, which language models and classifiers train on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.dataset_spec import Text
from core.contracts.job_spec import Clipping
from core.privacy.canary_bound import coins
from tests.hf.test_norms import KEY, LENGTH, model, training
from tests.hf.tiny import VOCABULARY
from worker.clipping.build import build_engine
from worker.clipping.engine import Clip
from worker.data.ranks import ALONE
from worker.data.sequence_records import SequenceRecords
from worker.models.hf.hf_model import HfTuning
from worker.training.audit_records import Draws, form_of
from worker.training.planted import PlantedRecords

CANARIES, C = 100, 0.05


def planted(m: HfTuning) -> PlantedRecords:
    form = form_of(m, m.spec, Text(kind="text", column="text"), sparse=False)
    engine = build_engine(m, Clipping(), training(C))
    plan: Any = SimpleNamespace(
        model=m,
        engine=engine,
        ranks=ALONE,
        sample_rate=1.0,
        numerics=SimpleNamespace(rows_per_pass=m.rows_per_pass),
    )
    return PlantedRecords(plan, form.records(Draws("job_1", CANARIES)), coins("job_1", CANARIES), 1)


# How many of 40 guesses are right at least. LoRA's adapters of a model of 8 dimensions are too small for 50 texts.
LEAST = {("gpt2", "full"): 28, ("bert", "full"): 28, ("gpt2", "lora"): 0}


@pytest.mark.parametrize(("path", "tuning"), LEAST)
def test_texts_that_a_model_trained_on_score_higher(models_root: Path, path: str, tuning: str) -> None:
    """Without noise and records."""
    m = model(models_root, path, torch.float32, tuning=tuning)
    texts = planted(m)
    assert isinstance(texts._every, SequenceRecords)
    longest = LENGTH + (path == "gpt2")
    tokens = texts._every.padded(longest)
    assert tokens.shape == (CANARIES, longest) and int(tokens.min()) >= 1 and int(tokens.max()) <= VOCABULARY
    first = m.init(KEY)
    last = {name: value.clone() for name, value in first.items()}
    for _ in range(5):
        total = {name: torch.zeros_like(value) for name, value in last.items()}
        texts.add_to(total, last, None, Clip(C))
        last = {name: value - 0.1 * total[name] for name, value in last.items()}
    scores, inside = texts.left(first, last).numpy(), coins("job_1", CANARIES)
    order = np.argsort(scores)
    right = int(inside[order[-20:]].sum() + (~inside[order[:20]]).sum())
    assert right >= LEAST[path, tuning] and scores.std() > 0.0, right
