"""The clipping engine: exact against one record at a time, and never more than C from any record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.support import dense, prepared, records
from worker.clipping.engine import Clip, clip_factors
from worker.clipping.linear_clipping import LinearClipping, LinearGradient
from worker.data.norms import norm_bound
from worker.data.records import Records
from worker.models.base import Parameters
from worker.models.linear import Linear


def randomized(model: Linear, scale: float = 0.3) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    return {
        name: scale * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in model.init().items()
    }


def gradient_of_one(model: Linear, parameters: Parameters, x: Tensor, y: Tensor) -> list[Tensor]:
    """Autograd, float64, one record."""
    leaves = [value.clone().requires_grad_() for value in parameters.values()]
    outputs = torch.nn.functional.linear(x[None].double(), *leaves)
    if model.classification:
        loss = torch.nn.functional.cross_entropy(outputs, y[None])
    else:
        loss = 0.5 * (outputs[0, 0] - y) ** 2
    return list(torch.autograd.grad(loss, leaves))


def clipped_one_by_one(
    model: Linear,
    parameters: Parameters,
    x: np.ndarray,
    y: np.ndarray,
    kind: str,
    C: float,
    divisors: Parameters | None = None,
) -> list[Tensor]:
    total = [torch.zeros_like(value) for value in parameters.values()]
    for row, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        gradient = gradient_of_one(model, parameters, row, label)
        if divisors is not None:
            gradient = [each / D for each, D in zip(gradient, divisors.values(), strict=True)]
        norm = float(torch.cat([each.flatten() for each in gradient]).norm())
        factor = 1 / max(1.0, norm / C) if kind == "flat" else C / (norm + 0.01)
        if np.isfinite(norm):
            total = [each + factor * part for each, part in zip(total, gradient, strict=True)]
    return total


def summed(
    model: Linear, parameters: Parameters, batch: Records, kind: Any, C: float, split: int | None = None
) -> list[Tensor]:
    rows = split or model.rows_per_pass
    passes = prepared(batch, rows)
    return list(LinearClipping(replace(model, rows_per_pass=rows), kind, C).private_sum(parameters, passes).values())


def assert_close(got: list[Tensor], wanted: list[Tensor], rtol: float = 1e-10) -> None:
    got_flat, wanted_flat = (torch.cat([each.flatten() for each in parts]) for parts in (got, wanted))
    assert float((got_flat - wanted_flat).norm()) <= rtol * float(wanted_flat.norm())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize(("kind", "C"), [("flat", 1.0), ("flat", 100.0), ("automatic", 0.7)])
def test_the_sum_is_that_of_gradients_clipped_one_at_a_time(
    sparse: bool, bias: bool, classes: int, kind: str, C: float
) -> None:
    x, y = dense(40, 12, classes)
    x[np.random.default_rng(1).random(x.shape) < 0.5] = 0.0
    x *= np.logspace(-2, 2, 40, dtype=np.float32)[:, None]
    model = Linear(12, classes, bias=bias)
    parameters = randomized(model)
    wanted = clipped_one_by_one(model, parameters, x, y, kind, C)
    assert_close(summed(model, parameters, records(x, y, sparse=sparse), kind, C), wanted)


def divisors_of(model: Linear, seed: int = 0) -> Parameters:
    """Over eight orders of magnitude, as preconditioners are."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 10 ** (8 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 6)
        for name, value in model.init().items()
    }


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize(("kind", "C"), [("flat", 10.0), ("flat", 1e9), ("automatic", 0.7)])
def test_gradients_are_divided_before_they_are_clipped(
    sparse: bool, bias: bool, classes: int, kind: Any, C: float
) -> None:
    x, y = dense(40, 12, classes)
    x[np.random.default_rng(1).random(x.shape) < 0.5] = 0.0
    x[3, 2] = np.nan
    model = Linear(12, classes, bias=bias)
    parameters, divisors = randomized(model), divisors_of(model)
    wanted = clipped_one_by_one(model, parameters, np.delete(x, 3, 0), np.delete(y, 3), kind, C, divisors)
    batch = records(x, y, sparse=sparse)
    got = LinearClipping(model, kind, 3.0).private_sum(parameters, batch, Clip(C, divisors))
    assert_close(list(got.values()), wanted)


def test_public_gradients_are_divided_too() -> None:
    x, y = dense(30, 6, 3)
    model = Linear(6, 3, bias=True)
    divisors = divisors_of(model)
    wanted = clipped_one_by_one(model, randomized(model), x, y, "flat", 1e30, divisors)
    got = LinearGradient(model).private_sum(randomized(model), records(x, y), Clip(1.0, divisors))
    assert_close(list(got.values()), wanted)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("split", [1, 7, 40, 1000])
def test_the_rows_of_passes_do_not_change_the_sum(sparse: bool, split: int) -> None:
    x, y = dense(40, 12, 3)
    model = Linear(12, 3, bias=True)
    batch = records(x, y, sparse=sparse)
    whole = summed(model, randomized(model), batch, "flat", 0.5)
    assert_close(summed(model, randomized(model), batch, "flat", 0.5, split), whole, 1e-14)
    chosen = batch.select(np.arange(0, 40, 3))
    part = clipped_one_by_one(model, randomized(model), x[::3], y[::3], "flat", 0.5)
    of_passes = LinearClipping(replace(model, rows_per_pass=split), "flat", 0.5)
    assert_close(list(of_passes.private_sum(randomized(model), chosen).values()), part)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("kind", ["flat", "automatic"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_contributes_zero(sparse: bool, classes: int, kind: str, bad: float) -> None:
    """Not an oracle for its presence: the sum is that of the others, and finite."""
    x, y = dense(20, 6, classes)
    model = Linear(6, classes, bias=True)
    parameters = randomized(model)
    others = summed(model, parameters, records(np.delete(x, 7, 0), np.delete(y, 7), sparse=sparse), kind, 1.0)
    x[7, 2] = bad
    got = summed(model, parameters, records(x, y, sparse=sparse), kind, 1.0)
    assert all(bool(torch.isfinite(each).all()) for each in got)
    assert_close(got, others, 1e-13)


@pytest.mark.parametrize("kind", ["flat", "automatic"])
def test_a_target_that_is_not_finite_contributes_zero(kind: str) -> None:
    x, y = dense(20, 6, 1)
    model = Linear(6, 1)
    others = summed(model, randomized(model), records(np.delete(x, 7, 0), np.delete(y, 7)), kind, 1.0)
    y[7] = np.nan
    assert_close(summed(model, randomized(model), records(x, y), kind, 1.0), others, 1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_parameters_that_are_not_finite_give_bounded_sums_not_errors(bad: float) -> None:
    x, y = dense(20, 6, 3)
    model = Linear(6, 3, bias=True)
    parameters = randomized(model)
    parameters["weight"][0, 0] = bad
    total = torch.cat([each.flatten() for each in summed(model, parameters, records(x, y), "flat", 1.0)])
    assert float(total.norm()) <= 20 * (1 + 1e-6)  # what is not finite contributed nothing


@pytest.mark.parametrize("sparse", [False, True])
def test_no_records_give_zeros(sparse: bool) -> None:
    x, y = dense(5, 6, 3)
    model = Linear(6, 3, bias=True)
    empty = records(x, y, sparse=sparse).select(np.empty(0, dtype=np.int64))
    for batch in (empty, prepared(records(x[:0], y[:0], sparse=sparse), 48)):
        total = LinearClipping(model, "flat", 1.0).private_sum(randomized(model), batch)
        assert all(bool((each == 0).all()) for each in total.values())


def test_a_column_that_is_stored_twice_counts_once() -> None:
    """‖x‖ is that of the row that the product sees: 3 + 4 in one column is 7, not 5."""
    import scipy.sparse

    from worker.data.records import SparseRecords

    matrix = scipy.sparse.csr_matrix((np.float32([3, 4]), np.int32([1, 1]), np.int64([0, 2])), shape=(1, 4))
    batch = SparseRecords(matrix, torch.tensor([0]))
    assert 7.0 <= float(batch.private_norms[0]) < 7.0 + 1e-12


def test_public_gradients_are_not_clipped() -> None:
    x, y = dense(30, 6, 3)
    model = Linear(6, 3, bias=True)
    wanted = clipped_one_by_one(model, randomized(model), 100 * x, y, "flat", 1e30)
    got = LinearGradient(model).private_sum(randomized(model), records(100 * x, y))
    assert_close(list(got.values()), wanted)


# --- The one property that the noise stands on ---

floats32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
scales = st.sampled_from([1e-45, 1e-30, 1e-10, 1e-3, 1.0, 1e3, 1e10, 1e30])


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    n, d, classes = draw(st.integers(1, 7)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3]))
    row = st.lists(floats32 | st.sampled_from([0.0, 1.0, -1.0]), min_size=d, max_size=d)
    x = np.array(draw(st.lists(row, min_size=n, max_size=n)), dtype=np.float32)
    wide = st.floats(-1e15, 1e15) | st.sampled_from([np.nan, np.inf, 1e300])
    labels = st.integers(0, classes - 1) if classes > 1 else wide
    y = np.array(draw(st.lists(labels, min_size=n, max_size=n)), dtype=np.int64 if classes > 1 else np.float64)
    return {
        "x": x * np.float32(draw(scales)) if draw(st.booleans()) else x,
        "y": y,
        "classes": classes,
        "bias": draw(st.booleans()),
        "sparse": draw(st.booleans()),
        "kind": draw(st.sampled_from(["flat", "automatic"])),
        "C": draw(st.sampled_from([1e-6, 0.1, 1.0, 50.0, 1e6])),
        "scale": draw(st.sampled_from([0.0, 1e-3, 1.0, 1e3])),
        "split": draw(st.sampled_from([None, 1, 2, 3])),
        "index": draw(st.integers(0, n - 1)),
        "divided": draw(st.booleans()),
    }


TIED = {"classes": 2, "bias": False, "sparse": False, "scale": 1.0, "split": None, "index": 0, "divided": False}


@settings(max_examples=120)
@given(situations())
@example(TIED | {"x": np.full((2, 1), 3e38, np.float32), "y": np.array([0, 1]), "kind": "automatic", "C": 1.0})
@example(TIED | {"x": np.full((1, 3), 1e-45, np.float32), "y": np.array([1]), "kind": "automatic", "C": 1.0})
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_record_changes_the_sum_by_at_most_c(case: dict[str, Any]) -> None:
    """Whatever the record, its neighbours, the split and the parameters: at most C(1 + 10⁻⁶)."""
    model = Linear(case["x"].shape[1], case["classes"], bias=case["bias"])
    parameters = randomized(model, case["scale"])
    clip = Clip(case["C"], divisors_of(model)) if case["divided"] else None

    def of(x: np.ndarray, y: np.ndarray) -> Tensor:
        batch = records(x, y, sparse=case["sparse"])
        shaped = replace(model, rows_per_pass=case["split"] or 48)
        total = LinearClipping(shaped, case["kind"], case["C"]).private_sum(parameters, batch, clip)
        return torch.cat([each.flatten() for each in total.values()])

    whole = of(case["x"], case["y"])
    without = of(np.delete(case["x"], case["index"], 0), np.delete(case["y"], case["index"]))
    assert float((whole - without).norm()) <= case["C"] * (1 + 1e-6)


@given(st.lists(st.floats(-1e150, 1e150) | st.floats(-1e-150, 1e-150), min_size=1, max_size=30))
def test_a_norm_bound_is_never_below_the_norm(values: list[float]) -> None:
    import mpmath

    with mpmath.workprec(2000):
        exact = mpmath.sqrt(sum(mpmath.mpf(value) ** 2 for value in values))
        bound = float(norm_bound(torch.tensor([values], dtype=torch.float64), dim=1)[0])
        assert bound >= exact
        assert bound <= exact * (1 + mpmath.mpf(1e-13)) + 2e-154


def test_factors() -> None:
    norms = torch.tensor([0.0, 0.5, 1.0, 4.0, torch.inf, torch.nan], dtype=torch.float64)
    assert clip_factors(norms, "flat", 1.0).tolist() == [1.0, 1.0, 1.0, 0.25, 0.0, 0.0]
    automatic = clip_factors(norms, "automatic", 2.0)
    torch.testing.assert_close(automatic[:3], 2.0 / (norms[:3] + 0.01))
    assert automatic[4:].tolist() == [0.0, 0.0]
