"""DP-ZO: one noised slope a step, along a public direction. Its bound, its noise, its reference and its places."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.numerics import grid_slack, sensitivity_slack
from tests.bound.worst import CASES, MORE, MOST, C, Case, drawn, largest_change, slotted
from tests.worker.support import Supervisor, dense, keys_of, plan_of, records, run_direct, spec, start_of
from worker.clipping.build import unclipped_engine
from worker.clipping.engine import Clip
from worker.clipping.totals import Grid
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.data.records import DenseRecords
from worker.data.secret_slots import Slotted
from worker.messages import Segment
from worker.models.linear import Linear
from worker.noise.directions import ALONG, PIECE, Directions
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_zo import DpZo
from worker.training import self_test

CPU = torch.device("cpu")
KEYS = Segment.model_validate({"from_step": 1, **keys_of("x")})
ZO: dict[str, Any] = {"kind": "dp_zo", "learning_rate": 0.05, "phi": 1e-3, "direction_seed": 5}
SHAPE = {"records_train": 90, "records_holdout": 0, "features": 4, "outputs": 3, "sparse": False}
TRAIN = records(*dense(90, 4, 3))


def private(**changes: Any) -> dict[str, Any]:
    """The start message of a private job."""
    return start_of(spec(**({"optimizer": ZO, "evaluation": None} | changes)), SHAPE)


BY_DAY = ("deep tanh", "conv2", "transformer, last", "graph", "linear", "linear, sparse", "regression", "ratings")
ALL = {name: case for name, case in (CASES | MORE).items() if not case.divided and case.views is None}


def engine(case: Case, kind: Any = "flat", *, grid: bool = True, phi: float = 1e-3) -> ZerothOrder:
    rows = MOST * case.per_unit + 1
    over = Grid(rows, case.model.rows_per_pass) if grid else None
    return ZerothOrder(case.model, Slope(phi, kind, C, case.per_unit), Directions(7), over)


# --- Directions ---


def signs(directions: Directions, step: int = 1, tensor: int = 0, count: int = 3 * PIECE + 5) -> Tensor:
    return torch.cat([z for _, z in directions.signs(step, tensor, count, CPU)])


def test_a_direction_is_fair_signs_of_seed_step_and_place() -> None:
    z = signs(Directions(1))
    assert set(z.tolist()) == {-1.0, 1.0} and z.dtype == torch.float64
    assert abs(float(z.sum())) < 5 * math.sqrt(len(z))
    assert torch.equal(z, signs(Directions(1))) and torch.equal(z[:70], signs(Directions(1), count=70))
    others = [signs(Directions(2)), signs(Directions(1), step=2), signs(Directions(1), tensor=1)]
    for other in (*others, z.roll(1), z.roll(64)):
        assert abs(float(z @ other)) < 5 * math.sqrt(len(z))


def test_a_direction_is_the_same_on_every_machine() -> None:
    """Bits of AES alone: no function of a machine's library is between the seed and the signs."""
    found = "".join("+" if each > 0 else "-" for each in signs(Directions(0), 3, 2, 24).tolist())
    assert found == "-++++-+--+------+-+++-+-"


# --- The bound ---


@pytest.mark.parametrize("kind", ["flat", "automatic"])
@pytest.mark.parametrize("name", BY_DAY)
def test_a_unit_more_or_less_moves_the_sum_by_at_most_c(name: str, kind: str) -> None:
    case = ALL[name]
    parameters, everyone = drawn(case)
    rows = MOST * case.per_unit + 1
    slack = sensitivity_slack(rows, case.model.rows_per_pass, 1) + grid_slack(rows, case.model.rows_per_pass, 1, 1)
    found = largest_change(case, engine(case, kind), parameters, everyone, case.numbers[:4])
    assert 0.1 < found <= slack


@pytest.mark.parametrize("name", ["users, linear", "users, deep tanh"])
def test_a_user_moves_the_sum_by_at_most_c(name: str) -> None:
    case = ALL[name]
    parameters, everyone = drawn(case)
    assert 0.1 < largest_change(case, engine(case), parameters, everyone, (1, 2, 4)) <= 1.0 + 1e-9
    planted = replace(case, per_unit=1)  # each record to C, as if it were alone
    assert largest_change(case, engine(planted), parameters, everyone, tuple(range(1, 12))) > 1.01


def test_the_brute_force_finds_a_sum_that_is_not_clipped() -> None:
    case = ALL["linear"]
    parameters, everyone = drawn(case)
    assert largest_change(case, engine(case, None, grid=False), parameters, everyone, (2, 4)) > 1.01


def test_whatever_a_record_holds_its_part_is_at_most_c_and_finite() -> None:
    """Each record alone: NaN, infinities, and numbers near the largest."""
    case = Case(Linear(3, 2, bias=True, dtype=torch.float64))
    worst = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320, 0.0, 1e30]
    x = torch.tensor([[each, 1.0, -each] for each in worst], dtype=torch.float64)
    some = DenseRecords(x, torch.arange(len(worst)) % 2)
    parameters = drawn(case)[0]
    for kind in ("flat", "automatic"):
        for at in range(len(worst)):
            alone = slotted(some, np.array([at]))
            (found,) = engine(case, kind).private_sum(parameters, alone)[ALONG].tolist()
            assert abs(found) <= C
    slope = Slope(1e-3, "flat", C)
    slopes = torch.tensor([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.1], dtype=torch.float64)
    assert slope.clipped(slopes, C).tolist() == [0.0, 0.0, 0.0, C, -C, 0.1]


def test_a_slope_has_no_divisors_and_no_other_clipping() -> None:
    case = ALL["linear"]
    parameters, everyone = drawn(case)
    with pytest.raises(PrivacyError, match="divided"):
        engine(case).private_sum(parameters, everyone, Clip(C, parameters))
    with pytest.raises(PrivacyError, match="flat or automatic"):
        engine(case, "per_layer")


def test_a_layer_that_mixes_records_is_refused() -> None:
    case = ALL["deep tanh"]
    mixes = torch.nn.Sequential(torch.nn.Linear(33, 4), torch.nn.BatchNorm1d(4))
    model = replace(case.model)  # type: ignore[type-var]
    object.__setattr__(model, "module", lambda: mixes)
    with pytest.raises(PrivacyError, match="mixes records"):
        ZerothOrder(model, Slope(1e-3, "flat", C), Directions(1))


# --- What it computes ---


def linear_losses(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    logits = x @ w.T
    peak = logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits - peak).sum(axis=1)) + peak[:, 0] - logits[np.arange(len(y)), y]


def test_without_noise_it_is_plain_finite_differences() -> None:
    """A public job's model after twenty steps, against NumPy: one record's losses at a time."""
    job = spec(optimizer=ZO, privacy=None, evaluation=None, length={"steps": 20}, runtime={"dtype": "float64"})
    job |= {"model": {"kind": "linear", "bias": False}}
    found = run_direct(Supervisor(start_of(job, SHAPE, public=True)), TRAIN, None)[0].parameters["weight"].numpy()
    x, y = dense(90, 4, 3)
    w, phi, eta = np.zeros((3, 4)), ZO["phi"], ZO["learning_rate"]
    directions = Directions(ZO["direction_seed"])
    for step in range(1, 21):
        z = signs(directions, step, 0, w.size).numpy().reshape(w.shape)
        slopes = [
            (linear_losses(w + phi * z, x[[at]], y[[at]]) - linear_losses(w - phi * z, x[[at]], y[[at]]))[0] / (2 * phi)
            for at in range(90)
        ]
        w -= eta * np.mean(slopes) * z
    assert np.abs(found - w).max() < 1e-9 and np.abs(w).max() > 0.1
    assert linear_losses(w, x, y).mean() < math.log(3) - 0.05  # it learns


@pytest.mark.parametrize("name", [name for name in BY_DAY if name != "graph"])
def test_a_small_phi_s_slope_is_the_gradient_s(name: str) -> None:
    """Beside autograd: Σ_i ⟨g_i, z⟩ of the model's own losses, in float64, without clipping."""
    case = ALL[name]
    model = replace(case.model, dtype=torch.float64)  # type: ignore[type-var]
    parameters = model.init(bytes(range(32)))
    some = self_test.random_records(model, 5, torch.Generator().manual_seed(2), sparse=case.sparse)
    gradient = unclipped_engine(model).private_sum(parameters, some)
    directions = Directions(7)
    along = sum(
        float(gradient[each].flatten() @ signs(directions, 4, number, parameters[each].numel()))
        for number, each in enumerate(parameters)
    )
    zeroth = ZerothOrder(model, Slope(1e-7), directions)
    zeroth.begin(4)
    (found,) = zeroth.private_sum(parameters, some)[ALONG].tolist()
    assert found == pytest.approx(along, rel=1e-3, abs=1e-5)


def test_dropout_is_off_and_clipping_a_record_s_own() -> None:
    """The plan's engine on a network with dropout: Σ clip of the slopes that the trace shows, in any order of rows."""
    start = private(model={"kind": "mlp", "hidden": [5], "dropout": 0.5}, clipping={"max_grad_norm": 0.01})
    plan = plan_of(start)
    parameters = plan.initial(KEYS)
    assert isinstance(plan.engine, ZerothOrder)
    slopes = plan.engine.trace(parameters, TRAIN)[1]
    wanted = float(slopes.clamp(-0.01, 0.01).sum())
    assert float((slopes.abs() > 0.01).double().mean()) > 0.1
    (found,) = plan.engine.private_sum(parameters, TRAIN)[ALONG].tolist()
    assert found == pytest.approx(wanted, abs=1e-9)
    backwards = Slotted(TRAIN, np.arange(90)[::-1].copy())
    (other,) = plan.engine.private_sum(parameters, backwards)[ALONG].tolist()
    assert other == pytest.approx(wanted, rel=1e-5)


def test_an_update_moves_along_the_step_s_direction_alone() -> None:
    parameters = {"a": torch.zeros(3, 5, dtype=torch.float64), "b": torch.zeros(7, dtype=torch.float64)}
    made, slope = DpZo(Descent(0.5), 7), {ALONG: torch.tensor([-3.0], dtype=torch.float64)}
    made.update(NoisedGradient(slope), {}, parameters, StepInfo(9, 1.0))
    for number, value in enumerate(parameters.values()):
        assert torch.equal(value.flatten(), 1.5 * signs(Directions(7), 9, number, value.numel()))


# --- The noise ---


@pytest.mark.parametrize(("planted", "fine"), [(1.0, True), (0.85, False), (1.15, False)])
def test_the_noise_is_that_of_one_number(planted: float, fine: bool) -> None:
    """What the plan's release adds to a sum, over four thousand steps: N(0, (σC · slack/L)²), by KS."""
    start = private(clipping={"max_grad_norm": 0.25}, length={"steps": 4000})
    plan = plan_of(start)
    release = plan.gradient_release(KEYS)
    std = planted * 0.25 * plan.numerics.sensitivity_slack / plan.expected_batch_size
    found, parameters = [], plan.initial(KEYS)
    for step in range(1, 4001):
        release.prepare(plan.summed(parameters), step)
        noised = release.release({ALONG: torch.full((1,), 17.0, dtype=torch.float64)}, step)
        found.append(float(noised[ALONG]) - 17.0 / plan.expected_batch_size)
    assert release.noise_variance(0.25) == pytest.approx((std / planted) ** 2)
    assert bool(scipy.stats.kstest(found, "norm", (0.0, std)).pvalue > 1e-2) is fine


# --- Places ---


@pytest.mark.parametrize(
    "model", [{"kind": "linear", "bias": True}, {"kind": "mlp", "hidden": [16, 16]}, {"kind": "mlp", "hidden": [8] * 4}]
)
def test_a_record_s_losses_do_not_depend_on_others(model: dict[str, Any]) -> None:
    start = private(model=model)
    assert self_test.holds(plan_of(start)) and self_test.holds(plan_of(start, rows=1))


def by_mean(linear: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mixed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x - x.nan_to_num().mean(dim=0), weight, bias)

    return mixed


def test_the_self_test_finds_losses_that_depend_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(private(model={"kind": "mlp", "hidden": [16, 16]}))
    monkeypatch.setattr(torch.nn.functional, "linear", by_mean(torch.nn.functional.linear))
    assert "neighbours" in set(self_test.failures(plan))
