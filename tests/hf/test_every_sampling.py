"""Every kind of network, under every sampling, gets its records in the order that its sums in float32 ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core.privacy.numerics import Arithmetic
from tests.by_night import but
from tests.worker.support import DirectLink, Supervisor, plan_of, spec, start_of
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.loop import Training
from worker.training.self_test import random_records
from worker.training.write_ahead import Replay

SAMPLINGS: dict[str, dict[str, Any]] = {
    "full_batch": {"kind": "full_batch"},
    "poisson": {"kind": "poisson", "expected_batch_size": 10},
    "truncated": {"kind": "poisson", "expected_batch_size": 10, "largest_batch": 12},
    "cyclic": {"kind": "cyclic", "batches": 3},
}
ITEMS = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": 30}}
IMAGE = {"height": 8, "width": 8, "channels": 2}
SMALL = {"dim": 8, "max_length": 6}
STEPS, FEW = 10, 3
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "mlp", "hidden": [7], "dropout": 0.2},
    "cnn": {"kind": "cnn", "preset": "conv5", "image": IMAGE},
    **{kind: {"kind": kind} | SMALL for kind in ("transformer_rec", "gru_rec", "lstm_rec")},
    **{f"hf/{kind}": {"kind": "hf", "path": kind, "max_length": 8, "tuning": "lora"} for kind in ("gpt2", "roberta")},
}


def steps_of(name: str, sampled: str) -> int:
    """Few where each step has 184 passes: those of Hugging Face models have one row each."""
    return FEW if name.startswith("hf/") and sampled in ("full_batch", "cyclic") else STEPS


def sampling_of(name: str, sampled: str) -> dict[str, Any]:
    """A Poisson sample has ten steps, so those models draw fewer rows in each."""
    fewer = {"expected_batch_size": 2} if name.startswith("hf/") and sampled == "poisson" else {}
    return SAMPLINGS[sampled] | fewer


def start_for(name: str, sampled: str) -> dict[str, Any]:
    model = MODELS[name]
    shape = {"records_train": 60, "records_holdout": 20, "features": 128, "outputs": 3, "sparse": False}
    more: dict[str, Any] = {}
    if name.endswith("_rec"):
        shape |= {"features": 30, "outputs": 1}
        more = {"task": {"kind": "next_item"}, "features": ITEMS}
    if name.startswith("hf/"):
        shape |= {"features": 8, "outputs": 1 if name.endswith("gpt2") else 3}
        more = {"features": {"kind": "text", "column": "text"}}
        if name.endswith("gpt2"):
            more["task"] = {"kind": "language_model"}
    found = (
        start_of(
            spec(
                model=model,
                evaluation=None,
                length={"steps": steps_of(name, sampled)},
                sampling=sampling_of(name, sampled),
            ),
            shape,
        )
        | more
    )
    if name.endswith("_rec"):
        found["mechanism"]["unit"] = "user"
    return found


# Those of Hugging Face models take 30 s: by day each has its cheapest sampling.
BY_DAY = {("hf/gpt2", "cyclic"), ("hf/roberta", "truncated")}
CASES = [(name, sampled) for name in MODELS for sampled in SAMPLINGS]


@pytest.mark.parametrize(("name", "sampled"), but(CASES, lambda case: case in BY_DAY or not case[0].startswith("hf/")))
def test_a_job_runs_and_replays(name: str, sampled: str, models_root: Path) -> None:
    digests = []
    for _ in range(2):
        record = Supervisor(start_for(name, sampled))
        start, link = record.message(), DirectLink(record)
        plan = plan_of(record.start, models_root=models_root)
        assert plan.numerics.sums == "float32" and plan.numerics.arithmetic is Arithmetic.PLACES
        train = random_records(plan.model, 60, torch.Generator().manual_seed(4))
        telemetry = Telemetry(link, start.mechanism, data_public=False, holdout_public=False, released=start.released)
        replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
        out = Training(plan, TrainingData(train, None, holdout_public=False), replay, link, telemetry).run()
        assert out.steps == steps_of(name, sampled)
        digests.append(record.digests())
    assert digests[0] == digests[1]
