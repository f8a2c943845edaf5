"""One record more in a row of its own moves a network's sum in float32 by at most what is paid, at a gain of 30."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from core.contracts.cnn import ImageSize
from core.contracts.job_spec import CnnModel, GruRecModel, LstmRecModel, MlpModel, TransformerRecModel
from core.privacy.numerics import DENSE_GROUP, GROUP, grid_slack, sensitivity_slack
from tests.bound.worst import C, Case, flat, network, next_items
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import ClippingKind
from worker.clipping.totals import Grid
from worker.data.passes import EMPTY
from worker.data.secret_slots import Slotted
from worker.models.modules import ModuleModel
from worker.training.self_test import random_parameters, random_records

SMALL: dict[str, Any] = {"dim": 16, "max_length": 12}
IMAGE = ImageSize(height=8, width=8, channels=2)
CASES = {
    "mlp": (network(MlpModel(hidden=[33, 7, 30])), DENSE_GROUP),
    "cnn": (network(CnnModel(preset="conv5", image=IMAGE), IMAGE.numbers, positions=64), DENSE_GROUP),
    "transformer": (next_items(TransformerRecModel(**SMALL, blocks=2)), GROUP),
    "transformer, last": (
        next_items(TransformerRecModel(**SMALL, heads=2, blocks=2, loss_positions="last", tied=False)),
        GROUP,
    ),
    "gru": (next_items(GruRecModel(**SMALL)), GROUP),
    "lstm": (next_items(LstmRecModel(**SMALL)), GROUP),
}
# Whole groups; a group and a smaller one; less than a group.
ROWS = (GROUP, 2 * GROUP + GROUP, 24)


def worst_of_groups(case: Case, group: int, rows: int, kind: ClippingKind) -> tuple[float, float]:
    """max ‖S − S′‖ / C, and what is paid."""
    model = cast(ModuleModel, replace(cast(Any, case.model), rows_per_pass=rows))
    generator = torch.Generator().manual_seed(1)
    parameters = random_parameters(model, generator)
    everyone = random_records(model, 3 * GROUP, generator)
    engine = Bookkeeping(
        model.module(),
        model.record_losses,
        rows=rows,
        kind=kind,
        max_grad_norm=C,
        positions=case.positions,
        group=group,
        grid=Grid(4 * GROUP, rows),
    )
    largest = 0.0
    for n in (1, GROUP - 1, GROUP, GROUP + 13):
        for place in {0, n // 2, n}:
            before, after = (
                flat(engine.private_sum(parameters, Slotted(everyone, np.insert(np.arange(n), place, occupant))))
                for occupant in (EMPTY, n)
            )
            largest = max(largest, float((after - before).norm()) / C)
    numbers = sum(each.numel() for each in parameters.values())
    paid = sensitivity_slack(4 * GROUP, rows, case.positions, group)
    return largest, paid + grid_slack(4 * GROUP, rows, numbers, 1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CASES)
def test_one_record_more_in_a_row_of_its_own(name: str, rows: int) -> None:
    case, group = CASES[name]
    moved, paid = worst_of_groups(case, group, rows, "flat")
    assert 0.01 < moved <= paid


@pytest.mark.parametrize("kind", ["per_layer", "automatic"])
@pytest.mark.parametrize("name", ["cnn", "transformer, last"])
def test_one_record_more_clipped_otherwise(name: str, kind: ClippingKind) -> None:
    case, group = CASES[name]
    moved, paid = worst_of_groups(case, group, GROUP, kind)
    assert 0.01 < moved <= paid
