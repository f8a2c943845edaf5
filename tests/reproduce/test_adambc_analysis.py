"""The DP-AdamBC experiment's own parts, on forty records: its variants, and moments without noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from benchmarks.reproduce.adambc_moments import measured
from benchmarks.reproduce.adambc_variants import VARIANTS, WithFakePhi
from benchmarks.reproduce.dp2_lab import TUNING_EPOCHS, delayed, lengthened
from benchmarks.reproduce.runs import Data, run
from worker.data.records import SparseRecords

FEATURES = 2000


def data() -> Data:
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(40, FEATURES, density=0.02, format="csr", rng=rng)
    records = SparseRecords(x, torch.arange(40) % 2)
    return Data(
        task={"kind": "classification", "label": "y", "classes": [0, 1]},
        features={"kind": "hashed_text", "column": "x", "buckets": FEATURES},
        train=records,
        holdout=records,
        features_count=FEATURES,
        outputs=2,
        sparse=True,
    )


def job(optimizer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "optimizer": {"learning_rate": 0.01, "betas": [0.9, 0.99], **optimizer},
        "privacy": {"noise_multiplier": 2.0, "target_delta": 1e-5},
        "clipping": {"kind": "flat", "max_grad_norm": 0.1},
        "sampling": {"kind": "poisson", "expected_batch_size": 10},
        "length": {"steps": 60},
        **changes,
    }


def weight(optimizer: dict[str, Any], variant: Any = None) -> torch.Tensor:
    return run(data(), job(optimizer), seed=3, optimizer=variant).parameters["weight"]


def test_a_fake_phi_is_what_is_subtracted() -> None:
    shipped = weight({"kind": "dp_adambc", "eps_root": 1e-6})
    assert torch.equal(weight({"kind": "dp_adambc", "eps_root": 1e-6}, lambda each: WithFakePhi(each, 1.0)), shipped)
    assert not torch.equal(weight({"kind": "dp_adambc", "eps_root": 1e-6}, VARIANTS["Φ × 4"]), shipped)
    # With nothing subtracted and γ′ below every v̂ it is DP-Adam.
    nothing = weight({"kind": "dp_adambc", "eps_root": 1e-30}, lambda each: WithFakePhi(each, 0.0))
    assert torch.allclose(nothing, weight({"kind": "dp_adam", "eps": 1e-20}), rtol=1e-9, atol=0.0)


def test_momentum_with_the_implied_rate_follows_dp_adam_where_noise_dominates() -> None:
    adam, momentum = weight({"kind": "dp_adam"}), weight({"kind": "dp_adam"}, VARIANTS["implied momentum"])
    correlation = torch.corrcoef(torch.stack([adam.flatten(), momentum.flatten()]))[0, 1]
    assert correlation > 0.97


@pytest.mark.parametrize("kind", ["dp_adam", "dp_adambc"])
def test_clean_moments_are_the_private_ones_less_their_noise(kind: str) -> None:
    optimizer = {"kind": kind} | ({"eps_root": 1e-6} if kind == "dp_adambc" else {})
    moments = measured(data(), job(optimizer), floor=1e-6)
    assert moments.step == 60 and moments.phi == pytest.approx((2.0 * 0.1 / 10) ** 2, rel=1e-9)
    noise = moments.values["m private"] - moments.values["m clean"]
    assert float(noise.std()) == pytest.approx((moments.phi * 0.1 / 1.9) ** 0.5, rel=0.05)
    assert abs(float(noise.mean())) < 0.1 * float(noise.std())
    gap = (moments.values["v private"] - moments.values["v clean"]).mean()
    assert float(gap) == pytest.approx(moments.phi, rel=0.05)
    summary = moments.summary()
    assert summary["v corrected"][0] == 1e-6 and len(summary) == 8


def test_longer_runs_have_smaller_rates() -> None:
    setting = delayed("dp2_rmsprop", (3.0, 0.01), (0.5, 200.0), 1e-3, 195)
    longer = lengthened(setting, 4 * TUNING_EPOCHS["reviews"], "reviews")
    assert longer == setting | {"learning_rate": 1.5, "learning_rate_adaptive": 0.005}
    adagrad = {"kind": "dp_adagrad", "learning_rate": 1.0, "clip": 0.5}
    assert lengthened(adagrad, 100, "reviews") == adagrad
