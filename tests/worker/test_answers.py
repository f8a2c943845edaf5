"""Answers of a clipped model of two classes: which jobs have clip ratios, and what a whole training says with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.table import TableFeatures
from core.privacy.two_class_answers import SLOPE
from tests.worker.support import key, plan_of, prepared, records, spec, start_of
from worker.models.base import answers

GROUPS = 4
TABLE: dict[str, Any] = {
    "kind": "table",
    "columns": [
        {"kind": "category", "name": "ward", "values": list(range(GROUPS))},
        {"kind": "number", "name": "age", "range": [0, 1], "bins": 2},
    ],
}
NUMBERS = {"kind": "columns", "columns": ["a", "b"]}
ADAPTIVE = {"target_quantile": 0.5, "learning_rate": 0.2, "count_noise_multiplier": 4.0}
C = 0.4
LENGTH = np.sqrt(2.0)


def start_for(features: dict[str, Any], outputs: int = 2, **changes: Any) -> dict[str, Any]:
    width = TableFeatures.model_validate(features).width if features["kind"] == "table" else 2
    shape = {"records_train": 400, "records_holdout": 10, "features": width, "outputs": outputs, "sparse": False}
    job = spec(**{"evaluation": None, "clipping": {"kind": "flat", "max_grad_norm": C}} | changes)
    start = start_of(job, shape) | {"features": features}
    start["mechanism"]["training"]["adaptive"] = job["clipping"].get("adaptive")
    return start


RATIO = float(np.sqrt(2.0) * LENGTH / C)
CASES: list[tuple[dict[str, Any], tuple[float, float] | None]] = [
    ({}, (RATIO, RATIO)),
    ({"class_weights": [0.5, 3.0]}, (0.5 * RATIO, 3.0 * RATIO)),
    ({"model": {"kind": "linear", "bias": True}}, (RATIO * np.sqrt(1.5), RATIO * np.sqrt(1.5))),
    ({"clipping": {"kind": "per_layer", "max_grad_norm": C}}, (RATIO, RATIO)),
    ({"clipping": {"kind": "automatic", "max_grad_norm": C}}, None),
    ({"clipping": {"kind": "adaptive", "max_grad_norm": C, "adaptive": ADAPTIVE}}, None),
    ({"model": {"kind": "mlp", "hidden": [3]}}, None),
]


@pytest.mark.parametrize(("changes", "wanted"), CASES)
def test_ratios_follow_from_the_declaration(changes: dict[str, Any], wanted: tuple[float, float] | None) -> None:
    found = plan_of(start_for(TABLE, **changes)).model.clip_ratios
    assert found is None if wanted is None else found == pytest.approx(wanted)


def test_lengths_that_nobody_declared_have_no_ratios() -> None:
    assert plan_of(start_for(NUMBERS)).model.clip_ratios is None
    assert plan_of(start_for(TABLE, outputs=3)).model.clip_ratios is None
    free = TABLE | {"columns": [*TABLE["columns"], {"kind": "number", "name": "dose"}]}
    assert plan_of(start_for(free)).model.clip_ratios is None
    ranged = TABLE | {"columns": [*TABLE["columns"], {"kind": "number", "name": "dose", "range": [0, 1]}]}
    length = np.hypot(LENGTH, np.sqrt(1.0 / 3.0))
    assert plan_of(start_for(ranged)).model.clip_ratios == pytest.approx((RATIO * length / LENGTH,) * 2)


def test_a_training_without_noise_answers_each_group_s_share() -> None:
    """The level that clipping starves: a rare outcome's softmax is far below its share."""
    plan = plan_of(start_for(TABLE))
    shares, each = np.array([0.04, 0.1, 0.3, 0.9]), 100
    x = np.zeros((GROUPS * each, 6), dtype=np.float32)
    x[np.arange(len(x)), np.repeat(np.arange(GROUPS), each)] = 1.0
    x[:, 4] = 1.0  # one age: the groups alone differ
    y = np.concatenate([np.arange(each) < share * each for share in shares]).astype(np.int64)
    data = prepared(records(x, y), plan.numerics.rows_per_pass)
    parameters = plan.model.init(bytes.fromhex(key("init")))
    for _ in range(1500):
        total = plan.engine.private_sum(parameters, data)
        parameters = {name: value - 0.02 * total[name] for name, value in parameters.items()}
    outputs = plan.model.forward(parameters, records(x[::each], y[::each]))
    softmax, said = (torch.softmax(f, dim=0)[1].numpy() for f in (outputs, answers(outputs, plan.model.clip_ratios)))
    wanted = np.log(shares / (1.0 - shares))
    assert np.abs(np.log(said / (1.0 - said)) - wanted).max() < 2.0 * SLOPE * np.log(RATIO) + 0.01
    assert softmax[0] < 0.3 * shares[0] and softmax[1] < 0.4 * shares[1]
