"""A job stored before keeps its bits through the plan, and each part of a slack is paid for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.privacy.numerics import GROUP, Arithmetic, Numerics, grid_unit, sensitivity_slack
from tests.worker.support import dense, plan_of, records, spec, start_of
from worker.clipping.accumulators import ParameterAccumulator
from worker.clipping.rules import rule_of
from worker.clipping.terms import Dense, Outer, Rows
from worker.noise.order import shuffled

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 300, "outputs": 3, "sparse": False}


def test_the_plan_hands_the_stored_arithmetic_to_the_engine() -> None:
    start: dict[str, Any] = start_of(spec(model={"kind": "mlp", "hidden": [300]}), SHAPE)
    stored = plan_of(start).numerics.model_dump(exclude={"arithmetic"})
    batch = shuffled(records(*dense(80, 300, 3)), np.arange(80))
    sums = []
    for numerics in (stored, stored | {"arithmetic": 1}, stored | {"arithmetic": 2}):
        plan = plan_of(start | {"numerics": numerics})
        found = plan.engine.private_sum(plan.model.init(bytes(range(32))), batch)
        sums.append(torch.cat([each.flatten() for each in found.values()]))
    assert torch.equal(sums[0], sums[1]) and not torch.equal(sums[0], sums[2])


def test_rows_of_jobs_stored_before_are_measured_by_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    term = Rows(torch.randint(0, 3, (50, 9), generator=generator), torch.randn(50, 9, 17, generator=generator), 3)
    found = [ParameterAccumulator([term], torch.Size([3, 17]), arithmetic=each).squares()[0] for each in (1, 2)]
    assert torch.equal(found[0], term.squares(1).squares) and not torch.equal(found[0], found[1])


@pytest.mark.parametrize("layer", [nn.Conv2d(64, 64, 3, padding=1), nn.Conv1d(64, 64, 9, padding=4)])
def test_convolutions_of_jobs_stored_before_are_formed_of_all_views_at_once(layer: nn.Module) -> None:
    """And of all uses: one product has other bits than the sum of theirs. conv5 with views has such a layer."""
    x = torch.randn(2, 64, *([8, 8] if isinstance(layer, nn.Conv2d) else [64]))
    kinds: dict[Arithmetic, type[Outer | Dense]] = {1: Outer, 2: Dense}
    for arithmetic, kind in kinds.items():
        rule = rule_of(layer, list(layer.parameters()), arithmetic)
        assert rule is not None
        assert type(rule(layer, x, torch.randn_like(x))[0][1]) is kind


def test_a_slack_in_float32_pays_for_what_stays_in_float64() -> None:
    for positions in (2, 100):
        narrow = [sensitivity_slack(10**6, 480, each, "float32") for each in (positions, 1)]
        assert narrow[0] - narrow[1] == pytest.approx(sensitivity_slack(10**6, 480, positions) - 1.0)


def test_two_groups_are_rounded_to_the_grid_where_a_pass_holds_all_records() -> None:
    """Fewer records than rows: two groups change all the same, and each is off by half a unit on either side."""
    paid = sensitivity_slack(164, 4080, 1, "float32")
    found = Numerics(
        passes="float32",
        sums="float32",
        group=GROUP,
        rows_per_pass=4080,
        positions=1,
        records_bound=164,
        sensitivity_slack=paid,
        filling=0.0,
        totals="integers",
        arithmetic=2,
    ).of_numbers(10**6)
    assert found.sensitivity_slack - paid >= 0.999 * 2.0 * 10**3 * 2.0 * grid_unit(164, 4080, 1.0)
