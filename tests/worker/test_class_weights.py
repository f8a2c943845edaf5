"""Weights of classes multiply a record's loss before its clip: sums are autograd's, and one record moves them by C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.errors import PrivacyError
from tests.worker.support import dense, plan_of, prepared, records, spec, start_of
from worker.training.plan import Plan

N, D, K, C = 60, 5, 3, 0.6
WEIGHTS = [0.2, 1.0, 4.0]
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"model": {"kind": "linear", "bias": True}},
    "opacus": {"model": {"kind": "linear", "bias": True}, "clipping": {"max_grad_norm": C, "engine": "opacus"}},
    "mlp": {"model": {"kind": "mlp", "hidden": [4]}},
    "automatic": {"model": {"kind": "linear", "bias": True}, "clipping": {"kind": "automatic", "max_grad_norm": C}},
}


def plan(name: str, **changes: Any) -> Plan:
    shape = {"records_train": N, "records_holdout": N, "features": D, "outputs": K, "sparse": False}
    job = {
        "clipping": {"max_grad_norm": C},
        "evaluation": None,
        "class_weights": WEIGHTS,
        "runtime": {"dtype": "float64"},
    }
    return plan_of(start_of(spec(**job | MODELS[name] | changes), shape))


def by_autograd(of: Plan, parameters: dict[str, torch.Tensor], x: np.ndarray, y: np.ndarray, kind: str) -> Any:
    """Σ clip(w_y g_i): a record at a time, from torch's own weighted loss."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}

    def logits(row: torch.Tensor) -> torch.Tensor:
        if "weight" in leaves:
            return leaves["weight"] @ row + leaves["bias"]
        hidden = torch.tanh(leaves["1.weight"] @ row + leaves["1.bias"])
        return leaves["3.weight"] @ hidden + leaves["3.bias"]

    totals = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for row, label in zip(torch.from_numpy(x).double(), torch.from_numpy(y), strict=True):
        weight = torch.tensor(WEIGHTS, dtype=torch.float64)
        loss = torch.nn.functional.cross_entropy(logits(row)[None], label[None], weight=weight, reduction="sum")
        found = torch.autograd.grad(loss, list(leaves.values()))
        norm = torch.cat([each.flatten() for each in found]).norm()
        factor = C / (norm + 0.01) if kind == "automatic" else min(1.0, C / float(norm))
        for name, each in zip(leaves, found, strict=True):
            totals[name] += factor * each
    return totals


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_weighted_losses(name: str) -> None:
    x, y = dense(N, D, K)
    of = plan(name)
    generator = torch.Generator().manual_seed(5)
    start = of.model.init(bytes(range(32)))
    parameters = {
        each: torch.randn(value.shape, dtype=torch.float64, generator=generator) for each, value in start.items()
    }
    rows = of.numerics.rows_per_pass
    own = {each: parameters[each] for each in start}
    found = of.engine.private_sum(own, prepared(records(x, y), rows))
    wanted = by_autograd(of, parameters, x, y, name)
    for each in own:
        assert torch.allclose(found[each], wanted[each], atol=1e-7), each
    without = of.engine.private_sum(own, prepared(records(x[1:], y[1:]), rows))
    moved = torch.cat([(found[each] - without[each]).flatten() for each in own]).norm()
    assert float(moved) <= C * of.numerics.sensitivity_slack


def test_scores_and_losses_are_not_weighted() -> None:
    x, y = dense(N, D, K)
    weighted, plain = plan("linear"), plan("linear", class_weights=None)
    outputs = torch.randn(K, N, dtype=torch.float64)
    labels = torch.from_numpy(y)
    assert torch.equal(weighted.model.losses(outputs, labels), plain.model.losses(outputs, labels))
    assert len(x) == N


def test_weights_that_admission_did_not_settle_are_refused() -> None:
    for wrong in ("balanced", [1.0, 2.0]):
        with pytest.raises(PrivacyError, match="weights of classes"):
            plan("linear", class_weights=wrong)
