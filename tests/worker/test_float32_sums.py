"""Sums in float32: one more record changes one group of rows, and the slack pays for its rounding on either side."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.contracts.job_spec import MlpModel
from core.privacy.numerics import DENSE_GROUP, GROUP, sensitivity_slack
from worker.clipping import scratch, totals
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip
from worker.clipping.linear_clipping import LONGEST, LinearClipping
from worker.clipping.totals import Grid
from worker.data import lengths
from worker.data.passes import EMPTY
from worker.data.records import DenseRecords
from worker.data.secret_slots import Slotted
from worker.models.linear import Linear
from worker.models.networks import Network
from worker.native.flat_steps import STEPS
from worker.noise.secret_places import RandomOrder

KEY = bytes(range(32))
ROWS = 2 * GROUP


# --- The slack ---


def float32_sum(values: NDArray[np.float32]) -> float:
    """Groups one by one in float32, then in float64."""
    total = 0.0
    for at in range(0, len(values), GROUP):
        part = np.float32(0.0)
        for each in values[at : at + GROUP]:
            part = np.float32(part + each)
        total += float(part)
    return total


def lossy(groups: int) -> NDArray[np.float32]:
    """In each group small numbers, then a 1: added to a 1 one by one, each of them would be lost."""
    small = np.full(GROUP, 0.9 * 2.0**-24, dtype=np.float32)
    small[-1] = 1.0
    return np.tile(small, groups)


def test_without_a_row_of_its_own_the_slack_does_not_hold() -> None:
    """A record at the front moves every other one: all groups round otherwise."""
    values = lossy(1000)
    moved = np.append(np.float32(-1.0), values)
    change = abs(Fraction(float32_sum(moved)) - Fraction(float32_sum(values)))
    assert change > Fraction(sensitivity_slack(len(moved), ROWS, 1, GROUP))


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.data())
def test_the_slack_covers_a_group(n: int, seed: int, data: st.DataObject) -> None:
    generator = np.random.default_rng(seed)
    kinds = (
        lambda: lossy(-(-n // GROUP))[:n],
        lambda: generator.choice([-1.0, 1.0], n).astype(np.float32),
        lambda: (generator.choice([-1.0, 1.0], n) * generator.random(n) ** 20).astype(np.float32),
        lambda: np.where(np.arange(n) % 2, np.float32(1.0), np.float32(-1.0 + 2.0**-24)).astype(np.float32),
    )
    values = data.draw(st.sampled_from(kinds))()
    new, place = data.draw(st.floats(-1.0, 1.0, width=32)), data.draw(st.integers(0, n))
    fewer, more = (np.insert(values, place, np.float32(each)) for each in (0.0, new))
    slack = sensitivity_slack(n + 1, ROWS, 1, GROUP)
    assert abs(Fraction(float32_sum(more)) - Fraction(float32_sum(fewer))) <= Fraction(slack)


@pytest.mark.parametrize(("rows", "group"), [(65_520, 48), (4080, 96)])
@pytest.mark.parametrize("records", [10**4, 10**6, 2 * 10**8])
def test_sums_that_fall_back_to_float64_are_paid_for(records: int, rows: int, group: int) -> None:
    """Those of divided gradients, and of a C beyond float32's range: a job in float32 has them, too."""
    assert sensitivity_slack(records, rows, 1, group) > sensitivity_slack(records, rows, 1)


def test_a_slack_in_float32_pays_for_what_stays_in_float64() -> None:
    for positions in (2, 100):
        narrow = [sensitivity_slack(10**6, 480, each, GROUP) for each in (positions, 1)]
        wide = [sensitivity_slack(10**6, 480, each) for each in (positions, 1)]
        assert narrow[0] - narrow[1] == pytest.approx(wide[0] - wide[1])


# --- The engine ---


def engine_of(features: int, outputs: int, **changes: Any) -> LinearClipping:
    model = Linear(features, outputs, bias=True, rows_per_pass=ROWS, dtype=torch.float32)
    return LinearClipping(model, **({"kind": "flat", "max_grad_norm": 1.0, "sums": "float32"} | changes))


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.flatten() for each in tensors.values()])


def largest_change(
    engine: LinearClipping | Bookkeeping[Any],
    parameters: dict[str, torch.Tensor],
    everyone: tuple[torch.Tensor, torch.Tensor],
) -> float:
    """How far the last of these records moves the sum of the others, in the first, the middle and the last rows."""
    records, n, largest = DenseRecords(*everyone), len(everyone[0]) - 1, 0.0
    for place in {0, n // 2, max(0, n - 1), n}:
        one, two = (
            flat(engine.private_sum(parameters, Slotted(records, np.insert(np.arange(n), place, occupant))))
            for occupant in (EMPTY, n)
        )
        largest = max(largest, float((one - two).norm()))
    return largest


def nasty(kind: str, n: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Records whose clipped gradients round as badly as we know, and their classes."""
    x, y = generator.normal(size=(n, 5)), generator.integers(0, 3, n)
    if kind == "scales":
        x *= 10.0 ** generator.integers(-30, 17, (n, 1))
    if kind == "cancelling":
        x, y = np.tile(x[:1], (n, 1)) * np.where(np.arange(n) % 2, 1.0, -1.0)[:, None], np.zeros(n, dtype=np.int64)
    if kind == "ties":
        x = np.full((n, 5), 0.25)
    if kind == "broken":
        x[::3], x[1::3] = np.nan, 1e38
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


@pytest.mark.parametrize("kind", ["plain", "scales", "cancelling", "ties", "broken"])
@pytest.mark.parametrize("norm", [1.0, 1e-6, 1e6])
def test_one_record_changes_the_engine_s_sum_by_at_most_c(kind: str, norm: float) -> None:
    """Claim: sums in float32: one record more changes one group of 48, in its own row
    Now: at most 1.0006 C
    """
    generator = np.random.default_rng(7)
    engine = engine_of(5, 3, max_grad_norm=norm)
    parameters = {"weight": torch.randn(3, 5, dtype=torch.float64), "bias": torch.randn(3, dtype=torch.float64)}
    largest = 0.0
    for n in (1, 2, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP, 2 * GROUP + 1, 200):
        largest = max(largest, largest_change(engine, parameters, nasty(kind, n + 1, generator)) / norm)
    assert largest <= sensitivity_slack(400, ROWS, 1, GROUP)
    assert kind == "broken" or norm > 1.0 or largest > 0.3


def test_float32_sums_are_those_of_float64() -> None:
    generator = np.random.default_rng(1)
    x, y = nasty("plain", 500, generator)
    parameters = {"weight": torch.randn(3, 5, dtype=torch.float64), "bias": torch.zeros(3, dtype=torch.float64)}
    batch = Slotted(DenseRecords(x, y), RandomOrder(KEY).of(1, 500))
    wide = LinearClipping(Linear(5, 3, bias=True, rows_per_pass=ROWS), "flat", 1.0)
    narrow, exact = engine_of(5, 3).private_sum(parameters, batch), wide.private_sum(parameters, batch)
    for name, value in exact.items():
        assert torch.allclose(narrow[name], value, atol=500 * 2.0**-21)
        assert not torch.equal(narrow[name], value)


def test_what_float32_cannot_hold_is_left_out_or_summed_in_float64() -> None:
    generator = np.random.default_rng(3)
    x, y = nasty("plain", 100, generator)
    x[0] = 2.0 * LONGEST
    batch = DenseRecords(x, y)
    others = DenseRecords(x[1:], y[1:])
    parameters = {"weight": torch.zeros(3, 5, dtype=torch.float64), "bias": torch.zeros(3, dtype=torch.float64)}
    wide = LinearClipping(Linear(5, 3, bias=True, rows_per_pass=ROWS), "flat", 1.0)
    with_it, without = (engine_of(5, 3).private_sum(parameters, each)["weight"] for each in (batch, others))
    assert torch.allclose(with_it, without, atol=1e-3)
    for clip in (
        Clip(2.0**-50),
        Clip(2.0**70),
        Clip(1.0, {n: torch.full(p.shape, 1e-10).double() for n, p in parameters.items()}),
    ):
        narrow, exact = (each.private_sum(parameters, others, clip)["weight"] for each in (engine_of(5, 3), wide))
        assert torch.allclose(narrow, exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


# --- Networks of linear layers: groups of 96 ---

NETWORK = Network(5, 3, MlpModel(hidden=[7, 6], activation="relu"), rows_per_pass=2 * DENSE_GROUP + GROUP)


def network_engine(group: int | None = DENSE_GROUP, **changes: Any) -> Bookkeeping[Any]:
    """Passes of two groups and a half."""
    how = {"rows": NETWORK.rows_per_pass, "kind": "flat", "max_grad_norm": 1.0, "group": group} | changes
    return Bookkeeping(NETWORK.module(), NETWORK.record_losses, **how)


@pytest.mark.parametrize("kind", ["plain", "scales", "cancelling", "ties", "broken"])
@pytest.mark.parametrize("norm", [1.0, 1e-6, 1e6])
def test_one_record_changes_a_network_s_sum_by_at_most_c(kind: str, norm: float) -> None:
    """Claim: the same in a network of linear layers, a group of 96
    Now: at most 1.0023 C
    """
    generator, rows = np.random.default_rng(7), NETWORK.rows_per_pass
    grid = Grid(400, rows)
    parameters = {name: 3.0 * value for name, value in NETWORK.init(KEY).items()}
    largest = 0.0
    for how in ({"grid": grid}, {}):
        engine = network_engine(max_grad_norm=norm, **how)
        for n in (1, DENSE_GROUP, rows, 300):
            largest = max(largest, largest_change(engine, parameters, nasty(kind, n + 1, generator)) / norm)
    assert largest <= sensitivity_slack(400, rows, 1, DENSE_GROUP)
    assert kind == "broken" or norm > 1.0 or largest > 0.3


def test_a_network_s_float32_sums_are_those_of_float64() -> None:
    generator = np.random.default_rng(1)
    x, y = nasty("plain", 500, generator)
    x[0] = 2.0 * LONGEST  # counts as not finite where float32 adds
    parameters = NETWORK.init(KEY)
    batch = Slotted(DenseRecords(x, y), RandomOrder(KEY).of(1, 500))
    without = DenseRecords(x[1:], y[1:])
    exact, count = network_engine(None).private_sum_and_count(parameters, without)
    for how in ({"grid": Grid(1064, NETWORK.rows_per_pass)}, {}):
        narrow, counted = network_engine(**how).private_sum_and_count(parameters, batch)
        assert torch.equal(count, counted)
        for name, value in exact.items():
            torch.testing.assert_close(narrow[name], value, rtol=0.0, atol=500 * 2.0**-21)
        assert not torch.equal(narrow["1.weight"], exact["1.weight"])


def test_a_network_takes_float64_where_float32_does_not_hold() -> None:
    generator = np.random.default_rng(3)
    batch = DenseRecords(*nasty("plain", 100, generator))
    parameters = NETWORK.init(KEY)
    divisors = {name: torch.full(value.shape, 1e-3).double() for name, value in parameters.items()}
    for clip in (Clip(2.0**-50), Clip(2.0**70), Clip(1.0, divisors)):
        narrow, wide = (network_engine(group).private_sum(parameters, batch, clip) for group in (DENSE_GROUP, None))
        assert torch.equal(flat(narrow), flat(wide))


def test_a_network_s_sums_have_the_same_bits_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = DenseRecords(*nasty("scales", 300, np.random.default_rng(5)))
    found = []
    for steps in (STEPS, None):
        for module in (scratch, totals, lengths):
            monkeypatch.setattr(module, "STEPS", steps)
        found.append(flat(network_engine(grid=Grid(400, NETWORK.rows_per_pass)).private_sum(NETWORK.init(KEY), batch)))
    assert torch.equal(found[0].view(torch.int64), found[1].view(torch.int64))
