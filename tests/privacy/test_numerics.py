"""Shapes and types of passes: public, cheap to fill up, and the slack that sums over records are paid for with."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from app.contracts.dataset_spec import Features
from app.contracts.job_spec import JobSpec
from app.privacy.numerics import (
    FEW_ROWS,
    IN_MEMORY_BYTES,
    Numerics,
    PublicSizes,
    _expected_passes,
    in_memory,
    numerics_of,
    records_bound,
    sensitivity_slack,
)

TENSOR = TypeAdapter(Features).validate_python({"kind": "tensor", "array": "x"})
ITEMS: Any = TypeAdapter(Features).validate_python(
    {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": 3416, "first": 1}}
)

JOB: dict[str, Any] = {
    "dataset": "ds_1",
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
    "privacy": {"target_epsilon": 1.0},
    "length": {"steps": 10},
}


def numerics(
    batch: int | None = None, records: int = 20_000, features: int = 784, of: Any = TENSOR, **changes: Any
) -> Numerics:
    sampling = {"kind": "poisson", "expected_batch_size": batch} if batch else {"kind": "full_batch"}
    spec = JobSpec.model_validate(JOB | {"sampling": sampling} | changes)
    return numerics_of(spec, PublicSizes(records, 1, features, 10, sparse=False), of)


MLP = {"kind": "mlp", "hidden": [512, 256]}


@pytest.mark.parametrize("batch", [48, 64, 256, 512, 1000, 4096, None])
@pytest.mark.parametrize("model", [MLP, {"kind": "linear"}, {"kind": "cnn", "preset": "conv2"}])
def test_rows_are_whole_units_and_filling_costs_little(batch: int | None, model: dict[str, Any]) -> None:
    found = numerics(batch, model=model)
    assert found.rows_per_pass % 48 == 0
    assert found.filling < (0.5 if (batch or 20_000) < 100 else 0.2 if (batch or 20_000) < 500 else 0.13)


def test_the_expected_filling_is_what_draws_need() -> None:
    generator = np.random.default_rng(0)
    for batch in (64, 512, 3000):
        found = numerics(batch, model=MLP)
        rows = found.rows_per_pass
        drawn = generator.binomial(20_000, batch / 20_000, 20_000)
        computed = np.maximum(1, np.ceil(drawn / rows)) * rows
        assert found.filling == pytest.approx(1 - drawn.mean() / computed.mean(), abs=0.01)


@given(st.integers(1, 3000), st.floats(1.0, 1e5), st.floats(0.0, 300.0))
@example(3, 1.0, 32.0)  # a spread far above the mean
def test_expected_passes_are_at_least_what_the_mean_needs(rows: int, expected: float, spread: float) -> None:
    found = _expected_passes(rows, expected, spread)
    assert max(1.0, expected / rows) - 1e-9 <= found <= expected / rows + 1.0 + spread / rows


def test_a_physical_batch_is_bounded_by_what_fits() -> None:
    assert numerics(512, model=MLP, runtime={"physical_batch_size": 7}).rows_per_pass == 48
    assert numerics(512, model=MLP, runtime={"physical_batch_size": 100}).rows_per_pass in (48, 96, 144)
    assert numerics(model=MLP, runtime={"physical_batch_size": 10**9}).rows_per_pass <= 4080


@pytest.mark.parametrize(("batch", "rows"), [(1, 8), (4, 8), (5, 8), (6, 16), (12, 16), (14, 48), (47, 48)])
def test_a_network_s_small_steps_are_one_small_pass(batch: int, rows: int) -> None:
    assert numerics(batch, model=MLP).rows_per_pass == rows
    assert numerics(batch, model={"kind": "cnn", "preset": "conv5"}, features=3072).rows_per_pass == rows
    assert numerics(batch, model={"kind": "linear"}).rows_per_pass == 48
    asked = numerics(batch, model=MLP, runtime={"physical_batch_size": 7})
    assert asked.rows_per_pass == min(48, rows)


def test_a_large_language_model_gets_few_rows() -> None:
    model = {"kind": "hf", "path": "m", "max_length": 128, "architecture": "llama", "vocabulary": 49_152}
    assert numerics(64, model=model | {"pass_numbers": 84_000_000}).rows_per_pass == 1
    assert numerics(64, model=model | {"pass_numbers": 5_000_000}).rows_per_pass in FEW_ROWS
    few = numerics(64, model=model | {"pass_numbers": 5_000_000}, runtime={"physical_batch_size": 4})
    assert few.rows_per_pass in (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("model", "dtype", "wanted"),
    [
        ({"kind": "linear"}, "auto", "float32"),
        ({"kind": "linear"}, "float64", "float64"),
        (MLP | {"activation": "relu"}, "auto", "float32"),
        (MLP, "float64", "float64"),
        ({"kind": "cnn", "preset": "conv2"}, "auto", "float32"),
    ],
)
def test_types_of_passes(model: dict[str, Any], dtype: str, wanted: str) -> None:
    assert numerics(model=model, runtime={"dtype": dtype}).passes == wanted


@pytest.mark.parametrize(
    ("changes", "sizes", "wanted"),
    [
        ({}, {}, "float32"),
        ({"runtime": {"dtype": "float64"}}, {}, "float64"),
        ({"clipping": {"engine": "opacus"}}, {}, "float64"),
        ({"model": MLP}, {}, "float32"),
        ({"model": MLP, "privacy": None}, {}, "float64"),
        ({"model": {"kind": "cnn", "preset": "conv2"}}, {}, "float32"),
        ({"model": {"kind": "cnn", "preset": "conv2"}, "privacy": None}, {}, "float64"),
        ({"model": {"kind": "cnn", "preset": "conv2"}}, {"records_per_unit": 2}, "float64"),
        ({}, {"records_per_unit": 2}, "float64"),
        ({}, {"sparse": True}, "float64"),
        ({}, {"features": 10**7}, "float64"),  # a pass holds less than a group
    ],
)
def test_types_of_sums(changes: dict[str, Any], sizes: dict[str, Any], wanted: str) -> None:
    known = PublicSizes(
        **({"records": 20_000, "records_per_unit": 1, "features": 784, "outputs": 10, "sparse": False} | sizes)
    )
    found = numerics_of(JobSpec.model_validate(JOB | changes), known, TENSOR)
    assert found.sums == wanted
    assert found.of_one_record().sums == "float64"
    if wanted == "float64":
        with pytest.raises(ValidationError, match=r"slack|groups"):
            Numerics.model_validate(found.model_dump() | {"sums": "float32", "arithmetic": 1})


def test_jobs_stored_before_keep_their_arithmetic() -> None:
    """They had float32 sums of one position alone, in passes of whole groups."""
    found = numerics(256, 6040, 3416, ITEMS, model={"kind": "transformer_rec", "max_length": 50})
    assert (found.arithmetic, found.sums, found.group) == (2, "float32", 48)
    before = found.model_dump(exclude={"arithmetic"})
    with pytest.raises(ValidationError, match="one position"):
        Numerics.model_validate(before)
    assert Numerics.model_validate(before | {"sums": "float64"}).arithmetic == 1


def test_slack_is_small_and_grows_with_what_is_summed() -> None:
    wide = {"runtime": {"dtype": "float64"}, "model": {"kind": "linear"}}
    assert numerics(**wide).sensitivity_slack < 1 + 1e-7
    assert 1 + 5e-4 < numerics(model={"kind": "linear"}).sensitivity_slack < 1 + 6e-4
    assert 1 + 2.2e-3 < numerics(model=MLP).sensitivity_slack < 1 + 2.4e-3  # groups of 96
    assert sensitivity_slack(2 * 10**7, 4080, 1, "float32") < 1.03
    recommender = {"kind": "transformer_rec", "max_length": 50}
    one = numerics(256, 6040, 3416, ITEMS, model=recommender).sensitivity_slack
    assert 1 + 5e-4 < one < 1 + 7e-4  # groups of 48, and float64 for products over positions
    assert one > sensitivity_slack(12_144, 288, 1, "float32")
    assert one < numerics(256, 10**6, 3416, ITEMS, model=recommender).sensitivity_slack < 1.02
    assert sensitivity_slack(2 * 10**7, 2592, 1) < 1.001


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_slack_covers_the_worst_order_of_additions(records: int, rows: int, seed: int) -> None:
    """Sums of numbers of any signs, added within passes and then pass by pass, against fractions."""
    generator = np.random.default_rng(seed)
    values = generator.choice([-1.0, 1.0], records) * generator.random(records) ** 20

    def computed(some: np.ndarray) -> float:
        total = 0.0
        for at in range(0, len(some), rows):
            part = 0.0
            for each in some[at : at + rows]:
                part += float(each)
            total += part
        return total

    exact = sum(map(Fraction, values.tolist()), Fraction(0))
    slack = Fraction(sensitivity_slack(records, rows, 1)) - 1
    assert abs(Fraction(computed(values)) - exact) <= slack / 2
    fewer = np.delete(values, records // 2)
    assert abs(Fraction(computed(values)) - Fraction(computed(fewer))) <= 1 + slack


def test_numerics_that_promise_too_little_are_refused() -> None:
    found = numerics(model=MLP)
    with pytest.raises(ValidationError):
        Numerics.model_validate(found.model_dump() | {"sensitivity_slack": 1.0})
    one = found.of_one_record()
    assert one.rows_per_pass == 1 and Numerics.model_validate(one.model_dump()) == one


@pytest.mark.parametrize(("rows", "sums"), [(480, "float32"), (48, "float32"), (24, "float64")])
def test_fewer_rows_where_a_pass_does_not_fit(rows: int, sums: str) -> None:
    """The slack covers more passes; passes that are not whole groups add in float64."""
    found = numerics(model={"kind": "linear"})
    fewer = found.of_rows(rows)
    assert found.sums == "float32" and (fewer.rows_per_pass, fewer.sums) == (rows, sums)
    assert fewer.sensitivity_slack >= found.sensitivity_slack and Numerics.model_validate(fewer.model_dump()) == fewer


def test_a_part_holds_at_most_twice_what_is_declared() -> None:
    assert records_bound(100) == 264 and math.isclose(records_bound(10**6) / 10**6, 2.0, rel_tol=1e-3)


def test_a_network_s_groups_are_not_added_to_float64_totals() -> None:
    """Each of N/96 additions to a running total rounds by up to u N C. At such sizes no slack has paid for that."""
    records = 10**8
    found = numerics(480, records, model=MLP)
    assert found.sums == "float32" and found.group == 96
    small, large = found.of_numbers(1000), found.of_numbers(10**7)
    assert (small.sums, small.totals) == ("float32", "integers")
    assert (large.sums, large.totals) == ("float64", "float64")
    bound, rows = found.records_bound, found.rows_per_pass
    assert large.sensitivity_slack >= max(found.sensitivity_slack, sensitivity_slack(bound, rows, 1))


@pytest.mark.parametrize("model", [MLP, {"kind": "linear"}])
def test_canaries_count_where_a_full_batch_s_order_must_fit_in_memory(model: dict[str, Any]) -> None:
    """An attempt decides by the whole bound if records stay on disk; there no order of all of them is drawn."""
    records = (IN_MEMORY_BYTES // (4 * 784) - 64) // 2
    plain = numerics(None, records, model=model)
    audited = numerics(None, records, model=model, audit={"canaries": 1000, "kind": "records"})
    for each in (plain, audited):
        assert (each.sums == "float32") == in_memory(each.records_bound, 4 * 784)
    assert (plain.sums, audited.sums) == ("float32", "float64")
