"""Many processes on a Hugging Face model: LoRA's sums have the same bits for every number of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from core.contracts.job_spec import Clipping
from tests.hf.test_norms import model, records, some_parameters, training
from tests.worker.gang import together
from worker.clipping.build import build_engine
from worker.clipping.totals import Grid
from worker.data.ranks import ALONE, Ranks, own_rows
from worker.models.base import Parameters

ROWS, TEXTS = 4, 14


def test_lora_gives_the_same_sums_for_every_number_of_ranks(models_root: Path) -> None:
    """Four passes of four texts, the last one short: no rank, one or two for each of the ranks."""
    made = [replace(model(models_root, "gpt2", torch.float32, tuning="lora"), rows_per_pass=ROWS) for _ in range(4)]
    texts, parameters = records(TEXTS), some_parameters(made[0])

    def summed(ranks: Ranks, sharded: bool = False) -> Parameters:
        grid = Grid(2 * TEXTS + 64, ROWS, ranks, sharded)
        engine = build_engine(made[ranks.rank], Clipping(), training(0.5), grid=grid)
        return engine.private_sum(parameters, texts.select(own_rows(TEXTS, ROWS, ranks)))

    wanted = summed(ALONE)
    assert any(bool(each.any()) for each in wanted.values())
    for size in (2, 3, 4):
        for found in together(size, summed):
            assert all(torch.equal(found[name], value) for name, value in wanted.items())
    whole = torch.cat([each.reshape(-1) for each in wanted.values()])
    parts = [each for found in together(3, lambda ranks: summed(ranks, True)) for each in found.values()]
    assert torch.equal(torch.cat(parts), whole), "each rank has the totals that it owns"
