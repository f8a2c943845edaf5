"""Users as what is protected: whole users are drawn, clipped together to C, and scored with noise for all they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.errors import PrivacyError
from core.parts.part_files import save_part
from core.parts.stored_records import StoredPart
from core.privacy.mechanism import MechanismConfig
from core.privacy.releases import NoisyCount
from tests.worker.support import (
    Supervisor,
    dense,
    key,
    mechanism,
    parts_of,
    plan_of,
    records,
    run_child,
    spec,
    start_of,
)
from worker.data.loaded_parts import users_of
from worker.data.record_units import Users
from worker.messages import Finished, MetricValue
from worker.metrics.scores import noisy_score
from worker.models.linear import Linear

SHAPE = {"records_train": 40, "records_holdout": 10, "features": 5, "outputs": 3, "sparse": False}
MLP = {"kind": "mlp", "hidden": [4]}
X, Y = dense(150, 5, 3)
OWNERS = np.repeat(np.arange(50), 3)  # three records each
ENGINES: dict[str, dict[str, Any]] = {
    "linear": {},
    "bookkeeping": {"model": MLP},
    "opacus": {"model": MLP, "clipping": {"engine": "opacus"}},
}


def user_start(most: int = 3, **changes: Any) -> dict[str, Any]:
    start = start_of(spec(**changes), SHAPE)
    start["mechanism"] |= {"unit": "user"}
    for part in (start["mechanism"]["training"], *start["mechanism"]["releases"]):
        part["records_per_unit"] = most
    return start


@pytest.mark.parametrize("kind", ["flat", "automatic", "per_layer"])
@pytest.mark.parametrize("engine", ENGINES)
def test_all_of_a_user_s_records_together_change_the_sum_by_at_most_c(engine: str, kind: str) -> None:
    """Also where they all are the same, and large: their parts add up in one direction."""
    asked = ENGINES[engine]
    clipping = asked.get("clipping", {}) | {"kind": kind, "max_grad_norm": 0.7}
    plan = plan_of(user_start(**{**asked, "clipping": clipping}))
    parameters = {name: value + 0.05 for name, value in plan.model.init(bytes(range(32))).items()}
    x, y = X.copy(), Y.copy()
    for user in range(10):  # adversaries
        x[user == OWNERS] = 10.0 ** (user - 3) * x[3 * user]
        y[user == OWNERS] = y[3 * user]
    x[29] = np.nan
    whole = plan.engine.private_sum(parameters, records(x, y))
    largest = 0.0
    for user in range(12):
        rest = plan.engine.private_sum(parameters, records(x[user != OWNERS], y[user != OWNERS]))
        moved = torch.cat([(whole[name] - rest[name]).flatten() for name in whole])
        largest = max(largest, float(moved.norm()))
    assert 0.6 * 0.7 < largest <= 0.7 * (1 + 1e-6)


def test_a_user_s_records_are_drawn_together() -> None:
    shuffled = np.random.default_rng(3).permutation(150)
    users = Users(OWNERS[shuffled], 3)
    assert len(users) == 50
    chosen = np.array([0, 7, 49], dtype=np.int64)
    assert sorted(OWNERS[shuffled][users.records(chosen)]) == sorted([0, 7, 49] * 3)
    assert len(users.records(np.empty(0, dtype=np.int64))) == 0
    assert len(Users(np.empty(0, dtype=np.int64), 3)) == 0
    odd = Users(np.array([5, 9, 5, 2]), 2)
    assert [sorted(odd.records(np.array([i])).tolist()) for i in range(3)] == [[3], [0, 2], [1]]


def test_a_user_with_more_records_than_were_charged_for_is_an_error() -> None:
    with pytest.raises(PrivacyError):
        Users(OWNERS, 2)


def test_the_data_s_unit_is_the_mechanism_s() -> None:
    charged = MechanismConfig.model_validate(user_start()["mechanism"])
    example = MechanismConfig.model_validate(mechanism(spec(), SHAPE))
    of_users, plain = StoredPart(x=X, y=Y, user=OWNERS), StoredPart(x=X, y=Y)
    assert users_of(of_users, charged) is not None and users_of(plain, example) is None
    for part, wrong in ((of_users, example), (plain, charged)):
        with pytest.raises(PrivacyError):
            users_of(part, wrong)
    assert len(users_of(of_users, None) or ()) == 50  # public data, no privacy


def test_a_mechanism_has_one_unit() -> None:
    start = user_start()["mechanism"]
    for wrong in ({"unit": "example"}, {"releases": [start["releases"][0] | {"records_per_unit": 1}]}):
        with pytest.raises(ValueError, match="user"):
            MechanismConfig.model_validate(start | wrong)


def test_scores_have_noise_for_all_that_a_user_has() -> None:
    declared = NoisyCount(account="holdout", noise_mu=0.5, records_per_unit=3, records=10)
    assert declared.noise_std == 6.0
    model = Linear(5, 3)
    score = noisy_score(declared, bytes(range(32)), 1, 0, model, model.init(), records(X, Y))
    assert score.noise_std == 6.0 and 0.0 <= score.value <= 1.0


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, {"kind": "poisson", "expected_batch_size": 8}])
def test_a_job_that_protects_users_runs(tmp_path: Path, sampling: dict[str, Any]) -> None:
    parts = {}
    for name, at in (("train", OWNERS < 40), ("holdout", OWNERS >= 40)):
        path = tmp_path / f"{name}.npz"
        parts[name] = {"path": str(path), "sha256": save_part(path, StoredPart(x=X[at], y=Y[at], user=OWNERS[at]))}
    start = user_start(sampling=sampling, length={"steps": 20}) | {
        "parts": parts_of(parts),
        "output_dir": str(tmp_path),
    }
    record = Supervisor(start)
    ended = run_child(record)
    assert isinstance(ended.last, Finished), (ended.last, ended.printed)
    assert [each.step for each in record.of(MetricValue)] == [10, 20]
    start["mechanism"]["training"]["records_per_unit"] = 2
    start["mechanism"]["releases"][0]["records_per_unit"] = 2
    refused = run_child(Supervisor(start | {"job_id": key("other")}))
    assert refused.last is not None and refused.last.kind == "failed" and refused.last.code == "privacy-invariant"
