"""Shapes and types of passes: public, cheap to fill up, and the slack that sums over rows are paid for with."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from core.contracts.dataset_spec import Features
from core.contracts.job_spec import JobSpec
from core.contracts.slots import PartSlots
from core.privacy.numerics import (
    NETWORK_ROWS,
    Numerics,
    PublicSizes,
    grid_unit,
    most_rows,
    numerics_of,
    sensitivity_slack,
)
from core.privacy.slot_numbers import default_slots, rows_of_step

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


def sizes_of(**changes: Any) -> PublicSizes:
    """Public sizes of a data set with the slots that its registration states by default."""
    known = {"records": 20_000, "records_per_unit": 1, "features": 784, "outputs": 10, "sparse": False} | changes
    units = default_slots(known["records"])
    return PublicSizes(**known, slots=PartSlots(units=units, rows=known["records_per_unit"] * units))


def numerics(
    batch: int | None = None, records: int = 20_000, features: int = 784, of: Any = TENSOR, **changes: Any
) -> Numerics:
    sampling = {"kind": "poisson", "expected_batch_size": batch} if batch else {"kind": "full_batch"}
    spec = JobSpec.model_validate(JOB | {"sampling": sampling} | changes)
    return numerics_of(spec, sizes_of(records=records, features=features), of)


MLP = {"kind": "mlp", "hidden": [512, 256]}
RATE = {"learning_rate": 0.5}
DELAYED = {"kind": "dp2_rmsprop", "learning_rate_adaptive": 0.1, "max_grad_norm_adaptive": 3.0, "delay": 3}


@pytest.mark.parametrize("batch", [48, 64, 256, 512, 1000, 4096, None])
@pytest.mark.parametrize("model", [MLP, {"kind": "linear"}, {"kind": "cnn", "preset": "conv2"}])
def test_rows_are_whole_tiles_and_the_last_pass_fills_up_cheaply(batch: int | None, model: dict[str, Any]) -> None:
    found = numerics(batch, model=model)
    assert found.rows_per_step is not None
    assert found.rows_per_pass % (48 if model["kind"] == "linear" else 16 if found.rows_per_pass >= 96 else 4) == 0
    computed = -(-found.rows_per_step // found.rows_per_pass) * found.rows_per_pass
    assert found.rows_per_step <= computed <= found.rows_per_step * (1.25 if (batch or 20_000) < 100 else 1.03)


@pytest.mark.parametrize(("batch", "wanted"), [(64, 0.6), (256, 0.41), (1000, 0.27), (4096, 0.16), (None, 0.06)])
def test_empty_rows_are_the_margin_and_what_no_draw_exceeds(batch: int | None, wanted: float) -> None:
    assert numerics(batch, model=MLP).filling == pytest.approx(wanted, abs=0.01)


def test_the_expected_filling_is_what_draws_need() -> None:
    generator = np.random.default_rng(0)
    for batch in (64, 512, 3000):
        found = numerics(batch, model=MLP)
        assert found.rows_per_step is not None
        rows = found.rows_per_pass
        drawn = generator.binomial(20_000, batch / 20_000, 20_000)
        assert drawn.max() < found.rows_per_step
        computed = -(-found.rows_per_step // rows) * rows
        assert found.filling == pytest.approx(1 - drawn.mean() / computed, abs=0.01)


def test_a_step_has_the_rows_of_its_kind_of_batches() -> None:
    """R of a Poisson draw; all slots; a cycle's share of them; without privacy what a step takes."""
    slots = default_slots(20_000)
    assert slots == 21_064
    assert numerics().rows_per_step == slots
    assert numerics(sampling={"kind": "cyclic", "batches": 10}).rows_per_step == -(-slots // 10)
    assert numerics(256).rows_per_step == rows_of_step(PartSlots(units=slots, rows=slots), 256 / 20_000)
    largest = {"kind": "poisson", "expected_batch_size": 256, "largest_batch": 300}
    assert numerics(sampling=largest).rows_per_step == 300
    assert numerics(256, privacy=None).rows_per_step == 256
    spec = JobSpec.model_validate(JOB | {"sampling": largest})
    assert numerics_of(spec, sizes_of(records_per_unit=3), TENSOR).rows_per_step == 900


def test_a_physical_batch_is_bounded_by_what_fits() -> None:
    """Claim: `physical_batch_size` is bounded by the automatic size
    Now: bounded
    """
    assert numerics(512, model=MLP, runtime={"physical_batch_size": 7}).rows_per_pass == 6
    assert numerics(512, model=MLP, runtime={"physical_batch_size": 100}).rows_per_pass == 96
    assert numerics(model=MLP, runtime={"physical_batch_size": 10**9}).rows_per_pass <= 4080


WRN = {"kind": "cnn", "preset": "wrn16_4"}


def test_passes_have_the_size_of_the_device_that_a_job_names() -> None:
    """A processor's cache holds six images of WRN-16-4; a GPU is fast on hundreds at once. `auto` is a processor's."""
    of: dict[str, Any] = {"batch": 4096, "records": 50_000, "features": 3072, "model": WRN}
    cpu, auto, cuda = (numerics(**of, runtime={"device": each}) for each in ("cpu", "auto", "cuda"))
    assert cpu == auto and cpu.rows_per_pass == 6 and cuda.rows_per_pass == 288
    assert numerics(64, model=MLP, runtime={"device": "cuda"}).rows_per_pass == numerics(64, model=MLP).rows_per_pass
    linear = numerics(runtime={"device": "cuda"}, model={"kind": "linear"})
    assert linear.rows_per_pass > numerics(model={"kind": "linear"}).rows_per_pass
    few = {"device": "cuda", "physical_batch_size": 32}
    assert numerics(**of, runtime=few).rows_per_pass == 32


@pytest.mark.parametrize(("batch", "rows"), [(1, 24), (4, 36), (6, 44), (12, 60), (14, 64), (47, 128)])
def test_a_network_s_small_steps_are_few_small_passes(batch: int, rows: int) -> None:
    """Those of R = 21, 35, 41, 58, 62 and 127 rows: whole fours, with eight more for each pass. Of conv5 64 fit."""
    assert numerics(batch, model=MLP).rows_per_pass == rows
    assert numerics(batch, model={"kind": "cnn", "preset": "conv5"}, features=3072).rows_per_pass == min(64, rows)
    assert numerics(batch, model={"kind": "linear"}).rows_per_pass in (48, 96, 144)
    asked = numerics(batch, model=MLP, runtime={"physical_batch_size": 7})
    assert asked.rows_per_pass in (4, 6)


def test_a_large_language_model_gets_few_rows() -> None:
    model = {"kind": "hf", "path": "m", "max_length": 128, "architecture": "llama", "vocabulary": 49_152}
    assert numerics(64, model=model | {"pass_numbers": 84_000_000}).rows_per_pass == 1
    assert numerics(64, model=model | {"pass_numbers": 5_000_000}).rows_per_pass in NETWORK_ROWS
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
        ({"model": {"kind": "cnn", "preset": "conv2"}}, {"records_per_unit": 2}, "float32"),
        ({}, {"records_per_unit": 2}, "float32"),
        ({"model": MLP, "optimizer": RATE | {"kind": "scale_then_privatize"}}, {}, "float64"),  # divides every gradient
        ({"model": MLP, "optimizer": RATE | {"kind": "ada_dps", "public_dataset": "ds_2"}}, {}, "float64"),
        ({"model": MLP, "optimizer": RATE | DELAYED}, {}, "float32"),  # divides some
        ({}, {"sparse": True}, "float64"),
        ({}, {"features": 10**7}, "float32"),  # a pass of one row is a group
    ],
)
def test_types_of_sums(changes: dict[str, Any], sizes: dict[str, Any], wanted: str) -> None:
    found = numerics_of(JobSpec.model_validate(JOB | changes), sizes_of(**sizes), TENSOR)
    assert found.sums == found.of_rows(1).sums == wanted


@pytest.mark.parametrize("old", [{}, {"arithmetic": 1}, {"arithmetic": 2, "draw": "gaps"}])
def test_documents_of_earlier_releases_are_read(old: dict[str, Any]) -> None:
    """This release runs none of them: their records would have no places."""
    before = numerics(256).model_dump(exclude={"arithmetic", "rows_per_step"}) | {"records_bound": 40_064} | old
    found = Numerics.model_validate(before)
    assert found.arithmetic == old.get("arithmetic", 1) and found.rows_per_step is None
    assert not {"records_bound", "draw"} & found.model_dump().keys()
    for now in ({"arithmetic": 3}, {"arithmetic": 3, "rows_per_step": 512}):
        with pytest.raises(ValidationError):
            Numerics.model_validate(before | now)


@pytest.mark.parametrize("changes", [{}, {"model": MLP}, {"runtime": {"dtype": "float64"}}, {"privacy": None}])
def test_a_slack_that_is_too_small_for_its_own_numbers_is_refused(changes: dict[str, Any]) -> None:
    """As stored: the noise would be too small. The exact number, and one float less."""
    stored = numerics(256, **changes)
    document = stored.model_dump()
    least = sensitivity_slack(
        document["rows_per_step"],
        document["rows_per_pass"],
        document["positions"],
        document["group"] if document["sums"] == "float32" else None,
    )
    assert Numerics.model_validate(document | {"sensitivity_slack": least}).sensitivity_slack == least
    for less in ({"sensitivity_slack": math.nextafter(least, 0.0)}, {"rows_per_pass": 2 * document["rows_per_pass"]}):
        with pytest.raises(ValidationError, match="must cover the rounding"):
            Numerics.model_validate(document | {"sensitivity_slack": least} | less)


def test_slack_is_small_and_does_not_grow_with_the_records() -> None:
    wide = {"runtime": {"dtype": "float64"}, "model": {"kind": "linear"}}
    assert numerics(**wide).sensitivity_slack < 1 + 1e-7
    linear, dense = 2 * 48 * 52 * 2.0**-24, 2 * 96 * 100 * 2.0**-24  # a group in float32 on either side
    assert numerics(model={"kind": "linear"}).sensitivity_slack == pytest.approx(1 + linear, abs=1e-7)
    assert numerics(model=MLP).sensitivity_slack == pytest.approx(1 + dense, abs=1e-6)
    recommender = {"kind": "transformer_rec", "max_length": 50}
    one = numerics(256, 6040, 3416, ITEMS, model=recommender)  # groups of 48, and float64 for products over positions
    assert one.positions == 100 and one.sensitivity_slack == pytest.approx(1 + linear, abs=1e-7)
    assert one.sensitivity_slack > sensitivity_slack(431, one.rows_per_pass, 1, 48)
    assert numerics(256, 10**6, 3416, ITEMS, model=recommender).sensitivity_slack < one.sensitivity_slack + 1e-12
    assert sensitivity_slack(2 * 10**9, 4080, 1, 48) - sensitivity_slack(2000, 4080, 1, 48) < 1e-6
    assert sensitivity_slack(2 * 10**7, 2592, 1) < 1 + 1e-8


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_slack_covers_the_worst_order_of_additions(records: int, rows: int, seed: int) -> None:
    """Numbers of any signs, added within passes; passes exactly, as integers are. One row is emptied. In fractions."""
    generator = np.random.default_rng(seed)
    values = generator.choice([-1.0, 1.0], records) * generator.random(records) ** 20

    def added(some: np.ndarray) -> Fraction:
        part = 0.0
        for each in some:
            part += float(each)
        return Fraction(part)

    def computed(some: np.ndarray) -> Fraction:
        return Fraction(float(sum((added(some[at : at + rows]) for at in range(0, len(some), rows)), Fraction(0))))

    slack = Fraction(sensitivity_slack(records, rows, 1)) - 1
    exact = sum(map(Fraction, values[:rows].tolist()), Fraction(0))
    assert abs(added(values[:rows]) - exact) <= slack / 2
    fewer = values.copy()
    fewer[records // 2] = 0.0
    assert abs(computed(values) - computed(fewer)) <= 1 + slack


@pytest.mark.parametrize("rows", [480, 48, 24, 1])
def test_fewer_rows_where_a_pass_does_not_fit(rows: int) -> None:
    """Their sums round less: the slack covers them."""
    found = numerics(model={"kind": "linear"})
    fewer = found.of_rows(rows)
    assert fewer == found.model_copy(update={"rows_per_pass": rows})
    assert found.sensitivity_slack >= sensitivity_slack(21_064, rows, 1, 48)
    with pytest.raises(ValueError, match="at most"):
        found.of_rows(found.rows_per_pass + 1)


@pytest.mark.parametrize("records_per_unit", [1, 3])
def test_a_private_job_s_grid_is_paid_for(records_per_unit: int) -> None:
    """k groups on either side, each off by at most half a unit in each of p numbers; a unit of C = 1 may double."""
    spec, sizes = JobSpec.model_validate(JOB), sizes_of(records_per_unit=records_per_unit)
    found = numerics_of(spec, sizes, TENSOR)
    most = most_rows(spec, sizes)
    assert most == sizes.slots.rows == records_per_unit * 21_064
    paid = found.of_numbers(10**6, most, records_per_unit).sensitivity_slack - found.sensitivity_slack
    assert paid == pytest.approx(records_per_unit * 10**3 * 2 * grid_unit(most, found.rows_per_pass, 1.0), rel=1e-6)
    public = numerics_of(JobSpec.model_validate(JOB | {"privacy": None}), sizes, TENSOR)
    assert public.totals == "float64" and public.of_numbers(10**6, most, records_per_unit) == public


def test_canaries_count_in_what_sums_round() -> None:
    """They have passes of their own, and their total is added to the records': that rounds both once more."""
    audit = {"audit": {"canaries": 1000, "kind": "records"}}
    for changes, rows in (({}, 21_064), ({"sampling": {"kind": "poisson", "expected_batch_size": 256}}, 432)):
        plain, audited = (JobSpec.model_validate(JOB | changes | more) for more in ({}, audit))
        assert most_rows(plain, sizes_of()) == rows
        assert audited.audit is not None and most_rows(audited, sizes_of()) == 2 * rows + audited.audit.trained
