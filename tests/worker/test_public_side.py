"""Optimizers with public side information, against simulations that go through the records one at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from core.errors import PrivacyError
from tests.worker.support import (
    Supervisor,
    dense,
    keys_of,
    records,
    run_direct,
    run_thread,
    spec,
    start_of,
    stored_part,
    training_of,
)
from tests.worker.test_preconditioned import CLIP, SHAPE, SIGMA, STEPS, TRAIN, Array, Private
from worker.clipping.build import unclipped_engine
from worker.messages import Finished
from worker.models.linear import Linear
from worker.training.position import Position
from worker.training.side import PublicSide

PX, PY = dense(30, 3, seed=9)
PUBLIC = records(PX, PY)


def job(optimizer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    base = {
        "privacy": {"noise_multiplier": SIGMA, "target_delta": 1e-5},
        "length": {"steps": STEPS},
        "evaluation": None,
    }
    wide = {} if "model" in changes else {"runtime": {"dtype": "float64"}}  # as the definition's numbers
    return spec(optimizer={"learning_rate": 0.3, "public_dataset": "ds_p", **optimizer}, **(base | wide | changes))


def trained(asked: dict[str, Any]) -> Array:
    return run_direct(Supervisor(start_of(asked, SHAPE)), TRAIN, None, PUBLIC)[0].parameters["weight"].numpy()


def public_gradient(w: Array, rows: Any = None) -> Array:
    x, y = torch.from_numpy(PX).double(), torch.from_numpy(PY)
    rows = slice(None) if rows is None else rows
    leaf = torch.from_numpy(w).clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x[rows] @ leaf.T, y[rows])
    return np.asarray(torch.autograd.grad(loss, leaf)[0])


@pytest.mark.parametrize("size", [None, 8])
def test_ada_dps_is_its_definition(size: int | None) -> None:
    """A has this step's public gradient; the division comes before the clip, the noise after it."""
    asked = job({"kind": "ada_dps", "eps": 1e-2, "public_batch_size": size})
    private, side = Private(asked), PublicSide(PUBLIC, unclipped_engine(Linear(3, 2)), size)
    w, A = np.zeros((2, 3)), np.zeros((2, 3))
    for t in range(1, STEPS + 1):
        A = 0.9 * A + 0.1 * public_gradient(w, None if size is None else side._drawn(t, size)) ** 2
        w = w - 0.3 * private(w, t, CLIP, np.sqrt(A) + 1e-2)
    np.testing.assert_allclose(trained(asked), w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("horizon", [None, 40])
def test_pda_dpmd_is_its_definition(horizon: int | None) -> None:
    asked = job({"kind": "pda_dpmd", "horizon": horizon})
    private, w = Private(asked), np.zeros((2, 3))
    alphas = [math.cos(math.pi * t / (2 * (horizon or STEPS))) for t in range(STEPS)]
    assert alphas[0] == 1.0 and alphas[-1] > 0.0
    for t, alpha in enumerate(alphas, start=1):
        w = w - 0.3 * (alpha * private(w, t, CLIP) + (1 - alpha) * public_gradient(w))
    np.testing.assert_allclose(trained(asked), w, rtol=1e-9, atol=1e-12)


def test_public_batches_are_drawn_anew_each_step_and_the_same_in_a_replay() -> None:
    side = PublicSide(PUBLIC, unclipped_engine(Linear(3, 2)), 8)
    first, second = side._drawn(1, 8), side._drawn(2, 8)
    assert not np.array_equal(first, second) and np.array_equal(first, side._drawn(1, 8))
    drawn = np.concatenate([side._drawn(step, 100) for step in range(1, 31)])
    assert drawn.min() >= 0 and drawn.max() < 30 and np.bincount(drawn, minlength=30).min() > 50
    at = {"weight": torch.ones(2, 3, dtype=torch.float64)}
    wanted = public_gradient(np.ones((2, 3)), first)
    np.testing.assert_allclose(side.gradient(at, 1)["weight"].numpy(), wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["ada_dps", "pda_dpmd"])
def test_without_public_records_nothing_runs(kind: str) -> None:
    with pytest.raises(PrivacyError):
        run_direct(Supervisor(start_of(job({"kind": kind}), SHAPE)), TRAIN, None)


@pytest.mark.parametrize("kind", ["ada_dps", "pda_dpmd"])
def test_public_gradients_tell_nothing_of_the_masks_that_private_records_have(kind: str) -> None:
    """They are not noised: under the job's own dropout key its masks could be read from them."""
    start = start_of(job({"kind": kind}, model={"kind": "mlp", "hidden": [8], "dropout": 0.5}), SHAPE)
    seen = []
    for salt in ("s0", "s1"):
        training = training_of(Supervisor(start), TRAIN, None, PUBLIC)
        plan, keys = training._plan, training._randomness.keys.model_copy(update=keys_of(salt))
        training._randomness = replace(training._randomness, keys=keys)
        parameters = plan.model.init(bytes(range(32)))
        plan.begin_passes(keys, 1)
        seen.append(training._observed(1, Position(0, parameters, plan.optimizer.init(parameters))).state)
    assert any(bool(value.any()) for value in seen[0].values())
    assert all(torch.equal(seen[0][slot], seen[1][slot]) for slot in seen[0])


@pytest.mark.parametrize("kind", ["ada_dps", "pda_dpmd"])
def test_a_replay_is_the_same_bit_for_bit(kind: str) -> None:
    asked = job({"kind": kind, "public_batch_size": 8}, sampling={"kind": "poisson", "expected_batch_size": 16})
    straight = Supervisor(start_of(asked, SHAPE))
    run_direct(straight, TRAIN, None, PUBLIC)
    record = Supervisor(start_of(asked, SHAPE), die_at=STEPS)
    with pytest.raises(ConnectionError):
        run_direct(record, TRAIN, None, PUBLIC)
    record.die_at = None
    run_direct(record, TRAIN, None, PUBLIC)
    assert record.resalts == 0 and record.digests() == straight.digests()


def test_an_attempt_loads_the_public_part(tmp_path: Any) -> None:
    x, y = dense(100, 3)
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80], y[:80]),
        "public": stored_part(tmp_path / "public.npz", PX, PY),
    }
    asked = job({"kind": "ada_dps", "eps": 1e-2})
    record = Supervisor(start_of(asked, SHAPE, parts=parts, output_dir=tmp_path))
    ended = run_thread(record)
    assert isinstance(ended.last, Finished) and ended.last.steps_effective == STEPS
    direct = Supervisor(start_of(asked, SHAPE))
    run_direct(direct, TRAIN, None, PUBLIC)
    assert record.digests() == direct.digests()
