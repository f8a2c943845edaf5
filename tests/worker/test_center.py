"""Features centred by a private mean: what it weighs, what noise it has, and that it goes with the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import scrimp
from core.errors import PrivacyError
from tests.worker.support import (
    Ended,
    Supervisor,
    assert_released_once,
    dense,
    key,
    parts_of,
    plan_of,
    records,
    run_direct,
    run_thread,
    spec,
    start_of,
    stored_part,
)
from tests.worker.test_load_model import same
from worker.data.records import DenseRecords, clipped_sum
from worker.messages import Finished, MetricValue, Part, Predict
from worker.predicting.predict import predicted
from worker.statistics.base import Noise

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
CENTER = {"max_norm": 2.0, "noise_mu": 0.5}
FAR = np.array([3.0, -2.0, 0.0, 5.0, 1.0], dtype=np.float32)


def job(**changes: Any) -> dict[str, Any]:
    return spec(model={"kind": "linear", "center": CENTER}) | changes


def start(asked: dict[str, Any], features: int = 5, **more: Any) -> dict[str, Any]:
    made = start_of(asked, SHAPE | {"features": features}, **more)
    if made["mechanism"] is not None:
        made["mechanism"]["mean"] = CENTER | {"records": 80}
    return made


def mean(x: np.ndarray, *, asked: dict[str, Any] | None = None, public: bool = False) -> Tensor:
    return means(x, ["a"], asked=asked, public=public)[0]


def means(x: np.ndarray, salts: list[str], *, asked: dict[str, Any] | None = None, public: bool = False) -> Tensor:
    """The mean as it is released under each salt, of one sum: a pass over the records takes 20 ms."""
    (centering,) = plan_of(start(asked or job(), x.shape[1], public=public)).before
    some = records(x, np.zeros(len(x), dtype=np.int64))
    noises = [Noise(bytes.fromhex(key(salt, "release")), 0) for salt in salts]
    return torch.stack([centering.release(some, noise, data_public=public).tensors["mean"] for noise in noises])


def dense_records(x: np.ndarray) -> DenseRecords:
    return DenseRecords(torch.from_numpy(x), torch.zeros(len(x), dtype=torch.int64))


def clipped(x: np.ndarray, bound: float) -> Tensor:
    total = clipped_sum(dense_records(x), x.shape[1], bound)
    assert total.dtype == torch.float64
    return total


@pytest.mark.parametrize("bound", [0.3, 1.0, 7.7])
def test_a_record_changes_the_sum_by_at_most_its_bound(bound: float) -> None:
    """Exactly, whatever its size; and by next to all of itself where it is within the bound."""
    generator = np.random.default_rng(3)
    x = (generator.normal(size=(60, 7)) * 10.0 ** generator.uniform(-3, 3, size=(60, 1))).astype(np.float32)
    whole = clipped(x, bound)
    for left_out in range(0, 60, 7):
        rest = clipped(np.delete(x, left_out, axis=0), bound)
        change = sum((a - b) ** 2 for a, b in zip(map(_exact, whole), map(_exact, rest), strict=True))
        assert change <= _exact(torch.tensor(bound, dtype=torch.float64)) ** 2
        size = float(np.linalg.norm(x[left_out].astype(np.float64)))
        assert float(change) ** 0.5 == pytest.approx(min(size, bound), rel=1e-5, abs=1e-7)


def _exact(value: Tensor) -> Any:
    from fractions import Fraction

    return Fraction(float(value))


def test_the_sum_does_not_depend_on_the_order_and_what_is_not_finite_adds_nothing() -> None:
    x, _ = dense(70, 5)
    x[3] = 1e6
    shuffled = np.random.default_rng(0).permutation(70)
    whole = clipped(x, 1.0)
    assert torch.equal(whole, clipped(x[shuffled], 1.0))
    broken = np.vstack([x, np.full((1, 5), np.nan, dtype=np.float32), np.full((1, 5), 3e38, dtype=np.float32)])
    assert torch.equal(whole, clipped(broken[:-1], 1.0))
    # Nor to a gradient, once it is centred.
    assert torch.isinf(dense_records(broken[:-1]).less(torch.ones(5)).private_norms[-1]), (
        "nor to a gradient, once it is centred"
    )
    assert float((clipped(broken, 1.0) - whole).norm()) <= 1.0


def test_the_noise_is_what_was_charged() -> None:
    x, _ = dense(80, 60)
    exact = clipped(x, 2.0) / 80
    off = (means(x, [f"{salt}" for salt in range(10)]) - exact) * 80 / (2.0 / 0.5)  # 600 numbers
    assert abs(float(off.mean())) < 0.15 and float(off.std()) == pytest.approx(1.0, abs=0.09)
    assert torch.equal(mean(x), mean(x)), "the same key, the same noise"
    public = mean(x, asked=job(privacy=None), public=True)
    assert torch.equal(public, exact), "public data have no noise where no privacy is claimed"
    with pytest.raises(PrivacyError):
        mean(x, asked=job(privacy=None))


def attempt(folder: Path, asked: dict[str, Any], *, public: bool = False) -> tuple[Supervisor, Ended]:
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(folder / "train.npz", x[:80] + FAR, y[:80]),
        "holdout": stored_part(folder / "holdout.npz", x[80:] + FAR, y[80:]),
    }
    (folder / "out").mkdir()
    supervisor = Supervisor(start(asked, parts=parts, output_dir=folder / "out", public=public))
    return supervisor, run_thread(supervisor)


def test_an_attempt_is_centred_and_hands_out_its_mean(tmp_path: Path) -> None:
    """Records far from the origin, without a bias: as well learned as if they were not; and predicted so."""
    asked = job(model={"kind": "linear", "center": {"max_norm": 50.0, "noise_mu": 10.0}}, evaluation={"noise_mu": 5.0})
    asked["privacy"] = {"noise_multiplier": 0.1, "target_delta": 1e-5}
    made = start(asked)
    made["mechanism"]["mean"] = {"max_norm": 50.0, "noise_mu": 10.0, "records": 80}
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80] + FAR, y[:80]),
        "holdout": stored_part(tmp_path / "holdout.npz", x[80:] + FAR, y[80:]),
    }
    (tmp_path / "out").mkdir()
    supervisor = Supervisor(made | {"parts": parts_of(parts), "output_dir": str(tmp_path / "out")})
    ended = run_thread(supervisor)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    (score,) = supervisor.of(MetricValue)
    assert score.value > 0.5  # of three classes
    weights, card, _readme = ended.last.artifacts
    tensors = load_file(weights.path)
    assert float((tensors["mean"].double() - torch.from_numpy(x[:80] + FAR).double().mean(dim=0)).norm()) < 0.5
    said = json.loads(Path(card.path).read_text())
    assert said["tensors"]["mean"] == [5] and 'x = x - tensors["mean"]' in said["usage"]
    answers = predicted(
        Predict.model_validate(
            {name: made[name] for name in ("spec", "task", "features", "shape")}
            | {"top": 1, "records": (x[80:] + FAR).tolist()}
            | {"weights": Part(path=weights.path, sha256=weights.sha256)}
        )
    )
    assert same(scrimp.load_model(tmp_path / "out").predict(x[80:] + FAR, top=1), answers)
    right = sum(answer["class"] == label for answer, label in zip(answers, y[80:].tolist(), strict=True))
    assert right / 20 == pytest.approx(score.value, abs=0.05)


def test_it_replays_and_is_released_once(tmp_path: Path) -> None:
    supervisor, ended = attempt(tmp_path, job())
    assert_released_once(supervisor, ended)


def test_what_was_charged_is_what_is_released() -> None:
    for wrong in (None, {"max_norm": 2.0, "noise_mu": 0.4}, {"max_norm": 1.0, "noise_mu": 0.5}):
        made = start(job())
        made["mechanism"]["mean"] = wrong and wrong | {"records": 80}
        with pytest.raises(PrivacyError):
            plan_of(made)
    not_asked = start(spec())
    with pytest.raises(PrivacyError):
        plan_of(not_asked)


def test_what_is_trained_on_is_what_is_left_of_the_features() -> None:
    """On public data, without noise: the weights are those of features that were centred by hand."""
    x, y = dense(100, 5, 3)
    x = x + FAR
    asked = job(model={"kind": "linear", "center": CENTER | {"max_norm": 100.0}}, privacy=None, seed=1)
    parts = [(records(x[at], y[at])) for at in (slice(80), slice(80, None))]
    centred, _ = run_direct(Supervisor(start(asked, public=True)), *parts)
    left = x - x[:80].mean(axis=0, dtype=np.float64)
    parts = [(records(left[at], y[at])) for at in (slice(80), slice(80, None))]
    plain, _ = run_direct(Supervisor(start(spec(privacy=None, seed=1), public=True)), *parts)
    assert list(centred.parameters) == ["weight", "mean"]
    torch.testing.assert_close(centred.parameters["weight"], plain.parameters["weight"], rtol=1e-6, atol=1e-9)
