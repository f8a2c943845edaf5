"""Formed gradients in float32: their lengths, and their sums by groups of rows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from core.errors import PrivacyError
from core.privacy.numerics import GROUP, grid_unit, sensitivity_slack
from tests.worker.layers import memory_cost
from tests.worker.test_float32_sums import flat, largest_change, nasty
from worker.clipping import methods, scratch, totals
from worker.clipping.accumulators import LONGEST, Lengths, ParameterAccumulator, bounded
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip, in_float32
from worker.clipping.terms import Dense, Outer, Rows
from worker.clipping.totals import Formed, Grid, GridTotals
from worker.data import lengths
from worker.data.lengths import squared_lengths, squared_lengths_of_rows
from worker.data.records import DenseRecords
from worker.native.flat_steps import STEPS

ROWS, POSITIONS, WIDTH, OUTPUTS = 2 * GROUP + 16, 30, 3, 4


# --- Lengths ---


def numbers_of(kind: str, n: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(n * 10_007 + width)
    found = torch.randn(n, width, generator=generator)
    if kind == "scales":
        found *= 10.0 ** torch.randint(-44, 38, (n, width), generator=generator)
    if kind == "broken":
        found[::2, ::3], found[1::2, ::5] = torch.nan, torch.inf
    return found


def both_ways(of: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Compiled, and by torch."""
    found = of()
    monkeypatch.setattr(lengths, "STEPS", None)
    return found, of()


@pytest.mark.parametrize("kind", ["plain", "scales", "broken"])
@pytest.mark.parametrize("width", [1, 31, 32, 33, 64, 1000, 4097])
def test_lengths_have_the_same_bits_without_the_library(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = numbers_of(kind, 7, width)
    one, two = both_ways(lambda: squared_lengths(numbers), monkeypatch)
    assert torch.equal(torch.isnan(one), torch.isnan(two))
    assert torch.equal(one.nan_to_num().view(torch.int64), two.nan_to_num().view(torch.int64))


def test_columns_first_are_measured_and_added_by_the_library_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient at the outputs of classes lies column by column: torch's loss makes it so."""
    gradients, factors = numbers_of("plain", 10, ROWS).mT, torch.linspace(0.0, 1.0, ROWS)
    if STEPS is not None:
        for module, name in ((lengths, "_by_lanes"), (totals, "in_float32")):
            monkeypatch.setattr(module, name, None)  # nothing else does the work
    made = GridTotals({"b": torch.zeros(10)}, Clip(1.0), Grid(1000, ROWS))
    made.add_formed([Formed("b", gradients, factors, GROUP)])
    assert torch.equal(squared_lengths(gradients), squared_lengths(gradients.contiguous()))
    again = GridTotals({"b": torch.zeros(10)}, Clip(1.0), Grid(1000, ROWS))
    again.add_formed([Formed("b", gradients.contiguous(), factors, GROUP)])
    assert torch.equal(made.finish()["b"], again.finish()["b"])


@pytest.mark.parametrize("kind", ["plain", "scales", "broken"])
@pytest.mark.parametrize(("places", "width"), [(1, 1), (5, 31), (50, 64), (3, 513), (9, 1100)])
def test_lengths_of_rows_have_the_same_bits_without_the_library(
    kind: str, places: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = numbers_of(kind, 6 * places, width).view(6, places, width)
    ids = torch.randint(0, 4, (6, places), generator=torch.Generator().manual_seed(places))
    one, two = both_ways(lambda: squared_lengths_of_rows(ids, values), monkeypatch)
    assert torch.equal(torch.isnan(one), torch.isnan(two))
    assert torch.equal(one.nan_to_num().view(torch.int64), two.nan_to_num().view(torch.int64))


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**31), st.sampled_from(["same", "few", "cancelling"]))
def test_a_bound_of_rows_holds(places: int, width: int, seed: int, kind: str) -> None:
    """Against fractions: one id for all, few ids, and rows that cancel."""
    generator = np.random.default_rng(seed)
    ids = torch.from_numpy(generator.integers(0, 1 if kind == "same" else 3, (1, places)))
    values = generator.normal(size=(1, places, width)) * 10.0 ** generator.integers(-12, 12, (1, places, 1))
    if kind == "cancelling":
        values = np.broadcast_to(values[:, :1], values.shape) * np.where(np.arange(places) % 2, 1, -1)[None, :, None]
    term = Rows(ids, torch.from_numpy(values.astype(np.float32)), 3)
    found = term.squares()
    exact = Fraction(0)
    for row in range(3):
        mine = term.values[0][ids[0] == row].numpy()
        exact += sum((sum(map(Fraction, column.tolist()), Fraction(0)) ** 2 for column in mine.T), Fraction(0))
    assert abs(Fraction(float(found.squares[0])) - exact) <= Fraction(float(found.slack[0]))


@given(st.integers(1, 200), st.integers(0, 2**31), st.booleans())
def test_a_length_s_bound_holds(width: int, seed: int, huge: bool) -> None:
    """Against fractions: huge numbers beside tiny ones, and numbers of one size."""
    generator = np.random.default_rng(seed)
    spread = generator.integers(-40, 38, width) if huge else 0
    numbers = (generator.normal(size=width) * 10.0**spread).astype(np.float32)
    own = ParameterAccumulator([Dense(torch.from_numpy(numbers)[None])], torch.Size([width]))
    squares, slack = (Fraction(float(each[0])) for each in own.squares())
    exact = sum((Fraction(float(each)) ** 2 for each in numbers), Fraction(0))
    assert exact <= squares + slack <= exact * (1 + Fraction(1, 10**9))


# --- Sums of groups ---


def added(gradients: Tensor, factors: Tensor, group: int) -> Tensor:
    sums = GridTotals({"w": torch.zeros(gradients.shape[1])}, Clip(1.0), Grid(1000, 200))
    sums.add_formed([Formed("w", gradients, factors, group)])
    return sums.finish()["w"]


@pytest.mark.parametrize("rows", [1, 3, 48, 49, 96, 115, 200])
@pytest.mark.parametrize("width", [1, 64, 2047, 2049])
def test_groups_are_added_row_by_row(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last group is smaller, and rows with factor 0 are not finite."""
    gradients = numbers_of("plain", rows, width) / width**0.5
    factors = torch.rand(rows, generator=torch.Generator().manual_seed(rows))
    gradients[::4], factors[::4] = torch.nan, 0.0
    gradients[2::4, 0], factors[2::4] = -torch.inf, 0.0
    unit = GridTotals({"w": torch.zeros(1)}, Clip(1.0), Grid(1000, 200))._unit
    wanted = np.zeros(width)
    for first in range(0, rows, GROUP):
        total = np.zeros(width, dtype=np.float32)
        for row, factor in zip(gradients[first : first + GROUP], factors[first : first + GROUP], strict=True):
            if factor:
                total = total + row.numpy() * np.float32(factor)
        wanted += np.round(total.astype(np.float64) / unit) * unit
    for steps in (STEPS, None):
        monkeypatch.setattr(totals, "STEPS", steps)
        assert np.array_equal(added(gradients, factors, GROUP).numpy(), wanted)


@pytest.mark.parametrize("library", [True, False])
def test_a_row_that_counts_must_be_finite(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is not finite makes the whole total so, which no release accepts."""
    monkeypatch.setattr(totals, "STEPS", STEPS if library else None)
    gradients = torch.ones(50, 70)
    gradients[49, 69] = torch.inf
    assert torch.isnan(added(gradients, torch.ones(50), GROUP)).all()


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("units", [2.0**51, -(2.0**51), 2.0**60])
def test_a_sum_beyond_the_grid_makes_the_total_nan(
    units: float, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lowest bits would be no integer: a total that looks right. Clipped records cannot reach it.

    Claim: a total on the grid is the sum
    Now: NaN, which no release accepts
    """
    monkeypatch.setattr(totals, "STEPS", STEPS if library else None)
    unit = grid_unit(1000, 200, 1.0)
    gradients, factors = torch.zeros(3, 5), torch.ones(3)
    gradients[1, 4] = units * unit
    assert torch.isnan(added(gradients, factors, GROUP)).all()
    gradients[1, 4] = units / 2.0 * unit if abs(units) == 2.0**51 else 0.0
    assert torch.equal(added(gradients, factors, GROUP), gradients.sum(dim=0).double())


@pytest.mark.parametrize(
    ("rows", "width", "factors", "group"), [(3, 4, 3, 0), (3, 4, 2, 8), (3, 5, 3, 8), (201, 4, 201, 8)]
)
def test_sizes_that_the_slack_does_not_cover_are_refused(rows: int, width: int, factors: int, group: int) -> None:
    """A pass has 200 rows here. A group of 0 rows never ended."""
    sums = GridTotals({"w": torch.zeros(4)}, Clip(1.0), Grid(1000, 200))
    with pytest.raises(PrivacyError, match=r"rows|groups"):
        sums.add_formed([Formed("w", torch.zeros(rows, width), torch.zeros(factors), group)])


@given(st.integers(1, GROUP), st.integers(0, 2**31))
def test_a_group_errs_by_at_most_what_is_paid(rows: int, seed: int) -> None:
    """Against fractions: cancelling, huge beside tiny, each of length at most 1 after its factor."""
    generator = np.random.default_rng(seed)
    gradients = generator.choice([-1.0, 1.0], (rows, 4)) * generator.random((rows, 4)) ** 20
    scales = 10.0 ** generator.integers(-15, 15, (rows, 1))
    gradients = torch.from_numpy((gradients * scales).astype(np.float32))
    factors = (1.0 / gradients.double().norm(dim=1)).float()
    exact = [
        sum((Fraction(float(f)) * Fraction(float(g)) for f, g in zip(factors, column, strict=True)), Fraction(0))
        for column in gradients.T
    ]
    found = in_float32(gradients, factors)
    error = sum((Fraction(float(a)) - b) ** 2 for a, b in zip(found, exact, strict=True))
    assert error <= (Fraction(sensitivity_slack(1, GROUP, 1, GROUP) - 1) / 2) ** 2


# --- The engine ---


class Positions(nn.Module):
    """A record's numbers as positions, through one layer that sees all of them and one that sees their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(WIDTH, OUTPUTS), nn.Linear(OUTPUTS, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = x.repeat(1, POSITIONS)[:, : POSITIONS * WIDTH].unflatten(1, (POSITIONS, WIDTH))
        found: Tensor = self.last(torch.tanh(self.each(places)).sum(dim=1))
        return found


def losses(module: nn.Module, batch: Any) -> Tensor:
    found = nn.functional.cross_entropy(module(batch.dense(torch.float32)), batch.labels, reduction="none")
    return torch.where(torch.isfinite(batch.private_norms), found, 0.0)


def engine(group: int | None = GROUP, **changes: Any) -> tuple[Bookkeeping[Any], dict[str, Tensor]]:
    torch.manual_seed(3)
    module = Positions()
    parameters = {name: 3.0 * value.detach().double() for name, value in module.named_parameters()}
    how = {"rows": ROWS, "kind": "flat", "max_grad_norm": 1.0, "group": group} | changes
    return Bookkeeping(module, losses, **how), parameters


def test_the_layer_over_positions_is_formed() -> None:
    formed, factored = (
        ParameterAccumulator([Outer(torch.ones(2, t, p), torch.ones(2, t, q))], torch.Size([p, q]), group=GROUP)
        for t, p, q in ((POSITIONS, OUTPUTS, WIDTH), (2, 256, 256))
    )
    assert formed.in_groups and formed.formed
    assert not factored.in_groups and not factored.formed  # products over positions: float64


WAYS: dict[str, dict[str, Any]] = {
    "formed": {},
    "products over positions": memory_cost(10**9),
    "formed twice": {"FEW_BYTES": 0, "LARGER": 0},
}


@pytest.mark.parametrize("kind", ["plain", "scales", "cancelling", "ties", "broken"])
@pytest.mark.parametrize(
    ("norm", "way"),
    [(1.0, "formed"), (1e-6, "formed"), (1e6, "formed"), (1.0, "products over positions"), (1.0, "formed twice")],
)
def test_one_record_changes_the_sum_by_at_most_c(
    kind: str, norm: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some parameters are added in float32 and others, over positions, in float64."""
    for name, value in WAYS[way].items():
        monkeypatch.setattr(methods, name, value)
    generator = np.random.default_rng(7)
    largest = 0.0
    for how in ({"grid": Grid(400, ROWS)}, {}):
        own, parameters = engine(max_grad_norm=norm, **how)
        for n in (1, GROUP, ROWS, 250):
            largest = max(largest, largest_change(own, parameters, nasty(kind, n + 1, generator)) / norm)
    assert largest <= sensitivity_slack(400, ROWS, POSITIONS, GROUP)
    assert kind == "broken" or norm > 1.0 or largest > 0.3


def test_float32_sums_are_those_of_float64_and_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = nasty("plain", 250, np.random.default_rng(1))
    x[0] = 1e38
    batch = DenseRecords(x, y)
    wide, parameters = engine(None)
    exact, found = wide.private_sum(parameters, batch), []
    for steps in (STEPS, None):
        for module in (scratch, totals, lengths):
            monkeypatch.setattr(module, "STEPS", steps)
        found.append(engine(grid=Grid(400, ROWS))[0].private_sum(parameters, batch))
    assert torch.equal(flat(found[0]), flat(found[1]))
    for name, value in exact.items():
        torch.testing.assert_close(found[0][name], value, rtol=0.0, atol=250 * 2.0**-21)
        assert not torch.equal(found[0][name], value)


def test_a_gradient_that_float32_cannot_hold_counts_as_not_finite() -> None:
    gradients = torch.ones(2, 4)
    gradients[0] = LONGEST
    short, long = ParameterAccumulator([Dense(gradients)], torch.Size([4]), group=GROUP).squares()[0].tolist()[::-1]
    assert short == 4.0 and long == float("inf")
    assert torch.isfinite(ParameterAccumulator([Dense(gradients)], torch.Size([4])).squares()[0]).all()


# --- Formed, or Gram matrices ---


@pytest.mark.parametrize(
    ("rows", "positions", "shape", "formed"),
    [
        (8, 20, (64, 64), True),  # reading is cheap where gradients stay in the cache
        (4, 32, (8, 96), True),
        (2, 64, (128, 512), True),
        (8, 4, (256, 512), False),  # few positions: Gram matrices are small
    ],
)
def test_products_over_positions_are_formed_where_that_is_cheaper(
    rows: int, positions: int, shape: tuple[int, int], formed: bool
) -> None:
    """Either way the lengths and the sum are those of autograd's gradients."""
    generator = torch.Generator().manual_seed(positions)
    left, right = (torch.randn(rows, positions, width, generator=generator) for width in shape)
    factors = torch.rand(rows, generator=generator, dtype=torch.float64)
    exact = torch.bmm(left.double().mT, right.double())
    accumulator = ParameterAccumulator([Outer(left, right)], torch.Size(shape), group=GROUP)
    assert accumulator.formed == formed
    squares, slack = accumulator.squares()
    wanted = exact.square().sum(dim=(1, 2))
    assert bool((squares + slack >= wanted * (1 - 1e-5)).all())
    torch.testing.assert_close(squares, wanted, rtol=1e-4, atol=0.0)
    total = torch.zeros(shape, dtype=torch.float64)
    accumulator.add_to(total, factors)
    torch.testing.assert_close(total, torch.einsum("n,npq->pq", factors, exact), rtol=1e-4, atol=1e-4)


def test_what_the_backward_pass_measures_has_the_bits_of_what_is_measured_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parameter's only term is measured where it is made; kept terms are measured once all are known."""
    batch = DenseRecords(*nasty("plain", 250, np.random.default_rng(1)))
    at_once, parameters = engine(grid=Grid(400, ROWS))
    found, run = at_once.private_sum(parameters, batch), Bookkeeping._run

    def without(
        self: Bookkeeping[Any], piece: Any, rows: int | None = None, clip: Clip | None = None, **by: Any
    ) -> Any:
        losses, opened = run(self, piece, rows, **by)
        assert len(opened.terms) == 4 and not opened.measured
        return losses, opened

    monkeypatch.setattr(Bookkeeping, "_run", without)
    after, _ = engine(grid=Grid(400, ROWS))
    assert torch.equal(flat(found), flat(after.private_sum(parameters, batch)))


def test_a_parameter_with_more_terms_than_uses_is_refused() -> None:
    """It would have been measured without its other terms."""
    own, parameters = engine(grid=Grid(400, ROWS))
    batch = DenseRecords(*nasty("plain", 3, np.random.default_rng(1)))
    write = own._write_down
    own._write_down = lambda opened, found: write(opened, [*found, *found])  # type: ignore[method-assign]
    with pytest.raises(PrivacyError, match="more often"):
        own.private_sum(parameters, batch)


def test_parameters_are_bounded_together_as_each_alone() -> None:
    """Norms and squared norms, slack in parts and in numbers, and what float32 adds or does not: in their order."""
    numbers, slack = torch.tensor([3.0, LONGEST**2, 2 * LONGEST**2, torch.nan]).double(), torch.full((4,), 7.0).double()
    measured = [
        Lengths(numbers, 0.5),
        Lengths(numbers, slack, narrow=True),
        Lengths(numbers, 0.25, narrow=True),
        Lengths(numbers, slack),
    ]
    squares, slacks = bounded(measured)
    for at, each in enumerate(measured):
        own = bounded([each])
        torch.testing.assert_close(squares[at], own[0][0], rtol=0.0, atol=0.0, equal_nan=True)
        torch.testing.assert_close(slacks[at], own[1][0], rtol=0.0, atol=0.0, equal_nan=True)
    assert squares[:, 0].tolist() == pytest.approx([3.0] * 4) and slacks[:, 0].tolist() == pytest.approx(
        [1.5, 7.0, 0.75, 7.0]
    )
    assert torch.isinf(squares[:, 2]).tolist() == [False, True, True, False]  # exactly the longest is not too long
    assert torch.isinf(squares[:2, 1]).tolist() == [False, False]
    assert torch.isnan(squares[:, 3]).all() and torch.isfinite(numbers[:3]).all()  # what was measured is unchanged
