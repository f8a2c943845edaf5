"""Scores of language models: each record's mean, and tokens by how frequent they are in public data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from app.contracts.job_spec import Clipping
from tests.hf.test_norms import model, records, some_parameters, training
from worker.clipping.build import build_engine
from worker.metrics.scores import frequency_groups, public_scores


def test_tokens_are_scored_one_by_one_and_in_groups(models_root: Path) -> None:
    m, batch = model(models_root, "gpt2", tuning="lora"), records()
    parameters = some_parameters(m)
    means, losses = m.token_scores(parameters, batch)
    ids = m.predicted(batch)
    lengths = (batch.windows(m.spec.max_length)[1] != 0).sum(dim=1).tolist()
    assert len(ids) == len(losses) == sum(lengths) and 0 in lengths
    parts = losses.split(lengths)
    wanted = torch.stack([each.mean() if len(each) else torch.tensor(0.0) for each in parts])
    assert torch.allclose(means, wanted, rtol=1e-12) and torch.allclose(means, m.forward(parameters, batch)[0])
    groups = frequency_groups(ids, m.vocabulary)
    found = {each.name: each.value for each in public_scores(m, parameters, batch, groups)}
    assert found.pop("loss") == pytest.approx(float(means.mean()))
    counts = np.bincount(ids.numpy(), minlength=m.vocabulary)
    for name, places in groups.items():
        low, high = map(int, name.split("-"))
        assert all(low <= counts[place] <= high for place in places)
        inside = np.isin(ids.numpy(), places)
        assert found.pop(f"loss:{name}") == pytest.approx(float(losses[torch.from_numpy(inside)].mean()))
    assert found == {}, "every token is in one group"


def test_checkpointed_passes_keep_no_layer_s_input(models_root: Path) -> None:
    """Until the backward pass the books hold what stands outside of blocks, and nothing that is inside."""

    def held(*, checkpointing: bool) -> set[tuple[int, ...]]:
        m = model(models_root, "gpt2", tuning="full", gradient_checkpointing=checkpointing)
        engine = build_engine(m, Clipping(), training(1.0))
        found: set[tuple[int, ...]] = set()

        def pack(value: torch.Tensor) -> torch.Tensor:
            found.add(tuple(value.shape))
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            engine.private_sum(some_parameters(m), [records(3)])
        return found

    of_last_layer = (3, 8, 4 * 8)  # what a block's last layer is given
    assert of_last_layer in held(checkpointing=False) and of_last_layer not in held(checkpointing=True)
