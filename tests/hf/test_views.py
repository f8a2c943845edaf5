"""Augmentation of Hugging Face models: images and texts, their sums those of autograd over the views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.augmentation import Augmentation
from core.contracts.hf import HfModel
from core.contracts.job_spec import Clipping
from core.parts import model_folder
from tests.hf.test_norms import KEY, norm, training
from tests.hf.tiny import write
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import build_engine
from worker.data.records import DenseRecords
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.images import HfImages
from worker.models.views import Views

CLASSES = ("a", "b", "c")
IMAGE = {"height": 6, "width": 6, "channels": 3, "layout": "last", "input_scale": 1.0}
CROP = {"views": 3, "transforms": [{"kind": "crop", "padding": 2}, {"kind": "flip"}]}
DROP = {"views": 3, "transforms": [{"kind": "drop_words", "rate": 0.4}]}


def made(root: Path, kind: str, tuning: str) -> tuple[HfTuning, Any, Views]:
    """A model, five records and their views."""
    folder = write(root / kind, kind)
    generator, labels = torch.Generator().manual_seed(0), torch.arange(5) % 3
    asked: dict[str, Any] = {"path": kind, "tuning": tuning}
    if kind == "vit":
        spec = HfModel.model_validate(asked | {"image": IMAGE})
        model: HfTuning = HfImages(
            model_folder.read(root, folder.name), spec, CLASSES, dtype=torch.float64, rows_per_pass=2
        )
        batch: Any = DenseRecords(torch.rand(5, model.features, generator=generator), labels)
        return model, batch, Views(Augmentation.model_validate(CROP), spec.pixels())
    spec = HfModel.model_validate(asked | {"max_length": 8})
    model = HfTuning(model_folder.read(root, folder.name), spec, CLASSES, dtype=torch.float64, rows_per_pass=2)
    lengths = np.array([8, 2, 5, 1, 7])
    items = torch.randint(3, 30, (int(lengths.sum()),), generator=generator).numpy().astype(np.int32)
    ends = np.cumsum(lengths)
    return (
        model,
        SequenceRecords(items, ends - lengths, ends, labels),
        Views(Augmentation.model_validate(DROP), None, 8),
    )


def mean_gradient(model: HfTuning, parameters: Parameters, batch: Any, views: Views, place: int) -> Parameters:
    """Of one record's views, each by autograd alone."""
    module = model.module()
    own = {name: p for name, p in module.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, value in parameters.items():
            own[name].copy_(value)
    views.begin_pass(place)
    seen = views.of(batch.piece(np.array([place]), torch.float64))
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for view in range(views.each):
        loss = model.record_losses(module, seen.select(np.array([view]))).sum()
        found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        for name, each in zip(own, found, strict=True):
            total[name] += 0.0 if each is None else each / views.each
    return total


@pytest.mark.parametrize(("kind", "tuning"), [("vit", "full"), ("bert", "full"), ("roberta", "lora")])
def test_sums_are_those_of_autograd_over_the_views(tmp_path: Path, kind: str, tuning: str) -> None:
    model, batch, views = made(tmp_path, kind, tuning)
    generator = torch.Generator().manual_seed(2)
    first = model.init(KEY)
    parameters = {n: v + 0.3 * torch.randn(v.shape, generator=generator, dtype=v.dtype) for n, v in first.items()}
    views.begin(KEY, 1)
    alone = [mean_gradient(model, parameters, batch, views, place) for place in range(5)]
    norms = [norm(each) for each in alone]
    C = float(np.median(norms))
    engine = build_engine(model, Clipping(), training(C), views=views)
    assert isinstance(engine, Bookkeeping)
    engine.examine(batch.select(np.arange(3)), parameters)
    found = engine.private_sum(parameters, batch)
    wanted = {
        name: sum((each[name] / max(1.0, size / C) for each, size in zip(alone, norms, strict=True)), torch.zeros(1))
        for name in found
    }
    gap = norm({name: found[name] - wanted[name] for name in found})
    assert gap <= 1e-7 * norm({name: torch.as_tensor(each) for name, each in wanted.items()})
