"""The compiled elementwise parts of a step have the bits of torch, on every path of the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from core.errors import PrivacyError
from core.native.library import PATHS
from tests.worker.native import opened
from worker.clipping import accumulators, factors, scratch, totals
from worker.clipping.accumulators import Lengths, ParameterAccumulator
from worker.clipping.engine import Clip, ClippingKind
from worker.clipping.factors import PassFactors
from worker.clipping.scratch import Scratch
from worker.clipping.terms import Outer
from worker.clipping.totals import Formed, Grid, GridTotals
from worker.data import passes
from worker.native.flat_steps import Steps
from worker.noise.gaussian import NoisedGradient
from worker.optimizers import descent, dp_adam
from worker.optimizers.base import State, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adam import DpAdam
from worker.optimizers.pieces import flattened

ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.1754944e-38]


@pytest.fixture(scope="module", params=PATHS)
def steps(request: pytest.FixtureRequest) -> Steps:
    return Steps(opened(request.param))


def wild(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of all sizes, with odd ones among them."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    made = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-20, 20, shape, generator=generator)
    made.view(-1)[: len(ODD)] = torch.tensor(ODD)[: made.numel()]
    return made.to(dtype)


def same(one: Tensor, other: Tensor) -> bool:
    """To the bit, the sign of 0 too."""
    return torch.equal(one.view(torch.int64), other.view(torch.int64))


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (48, 33), (5, 2, 9), (17, 1024)])
def test_widened_numbers(steps: Steps, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = wild(*shape)
    by = torch.linspace(0.0, 3.0, shape[0], dtype=torch.float64)
    made: dict[bool, list[Tensor]] = {}
    for compiled in (True, False):
        monkeypatch.setattr(scratch, "STEPS", steps if compiled else None)
        memory = Scratch()
        made[compiled] = [memory.finite("a", numbers, torch.float64), memory.scaled("b", numbers, by)]
    assert steps.widen(torch.empty(shape, dtype=torch.float64), numbers, by), "it does this one"
    assert all(same(one, other) for one, other in zip(made[True], made[False], strict=True))
    assert all(bool(torch.isfinite(each).all()) for each in made[True])


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (48, 33), (17, 1024)])
def test_scaled_numbers_in_float32(steps: Steps, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors below and above what float32 holds; a row with factor 0 is 0, whatever it was."""
    numbers = wild(*shape)
    by = 10.0 ** torch.linspace(-60.0, 60.0, shape[0], dtype=torch.float64)
    by[0] = 0.0
    made = []
    for compiled in (steps, None):
        monkeypatch.setattr(scratch, "STEPS", compiled)
        made.append(Scratch().narrowed("a", numbers, by))
    assert steps.narrow(torch.empty(shape), numbers, by), "it does this one"
    assert torch.equal(made[0].view(torch.int32), made[1].view(torch.int32))
    assert not bool(made[0][0].any())


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (48, 33, 100), (700, 65, 129)])
def test_factors_of_products(steps: Steps, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, and scaled: whatever the numbers are, and where a record has factor 0."""
    rows, *widths = shape
    left, right = (wild(rows, width) for width in widths)
    by = 10.0 ** torch.linspace(-60.0, 60.0, rows, dtype=torch.float64)
    by[0] = 0.0
    outer = Outer(left[:, None], right[:, None])
    found: list[list[Tensor]] = []
    for compiled in (steps, None):
        monkeypatch.setattr(scratch, "STEPS", compiled)
        monkeypatch.setattr(accumulators, "STEPS", compiled)
        made = [Scratch().of_products(left, right, by)]
        for group in (48, None):
            made.append(ParameterAccumulator([outer], torch.Size(widths), group=group).squares())
        found.append([each.clone() for pair in made for each in pair])
    assert steps.squares_of_products(left, right, (0.1, 0.2), 3.0) is not None, "it does this one"
    assert steps.scaled([torch.empty_like(left), torch.empty_like(right)], left, right, by), "it does this one"
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        known, wanted = (torch.where(each.isnan(), 0.0, each).numpy().tobytes() for each in (one, other))
        assert known == wanted


@pytest.mark.parametrize("kind", ["flat", "automatic", "per_layer"])
@pytest.mark.parametrize("parameters", [1, 2, 15, 16, 17, 40, 257, 300])
@pytest.mark.parametrize("rows", [2, 3, 8, 12, 28, 48, 67])
def test_clip_factors(
    steps: Steps, kind: ClippingKind, parameters: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths of all sizes, some of which cancelled, are too long or not finite; torch's order of additions."""
    generator = torch.Generator().manual_seed(rows)
    measured: dict[str, Lengths] = {}
    for at in range(parameters):
        squares = torch.randn(rows, generator=generator, dtype=torch.float64).exp()
        squares[at % rows] = [1.0, -0.5, math.inf, 2.0**130, math.nan, 0.0, 1e-310][at if at < 7 else 0]
        slack = 1e-15 if at % 2 else squares.abs() * 1e-6
        measured[f"{at // 2}.{at % 2}"] = Lengths(squares, slack, narrow=at % 3 == 0)
    weights = torch.ones(rows, dtype=torch.float64)
    weights[1] = 0.0
    found: list[PassFactors] = []
    for compiled in (steps, None):
        monkeypatch.setattr(factors, "STEPS", compiled)
        found.append(factors.pass_factors(measured, [*measured, "other.0"], kind, 1.5, weights))
    one, other = found
    assert torch.equal(one.within, other.within)
    assert list(one.of) == list(other.of) == list(measured)
    for name, of in one.of.items():
        assert same(of.wide, other.of[name].wide)
        assert torch.equal(of.narrow.view(torch.int32), other.of[name].narrow.view(torch.int32))
    assert len(set(map(id, one.of.values()))) == ((parameters + 1) // 2 if kind == "per_layer" else 1)


@pytest.mark.parametrize("values", [torch.arange(70).view(10, 7), wild(10, 3, 5), wild(10, dtype=torch.float64)])
def test_gathered_rows(steps: Steps, values: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is zeros where nobody is, and where its record may not be read."""
    rows = torch.tensor([9, -1, 0, 0, 5])
    absent = torch.tensor([False, True, False, True, False])
    found = []
    for compiled in (steps, None):
        monkeypatch.setattr(passes, "STEPS", compiled)
        found.append(passes.taken(values, rows, absent))
    assert steps.gather(values, rows, absent) is not None, "it does this one"
    assert found[0].dtype == values.dtype and found[0].shape == found[1].shape == (5, *values.shape[1:])
    assert found[0].numpy().tobytes() == found[1].numpy().tobytes()
    assert not bool(found[0][[1, 3]].any())


@pytest.mark.parametrize("place", [-1, 10, 2**40, -(2**62)])
def test_a_place_that_no_record_has_is_not_read(steps: Steps, place: int) -> None:
    """Beyond the records lies other memory."""
    values, rows = torch.arange(70.0).view(10, 7), torch.tensor([3, place])
    with pytest.raises(PrivacyError, match="no record has"):
        steps.gather(values, rows, torch.tensor([False, False]))
    found = steps.gather(values, rows, torch.tensor([False, True]))
    assert found is not None and torch.equal(found[0], values[3]) and not bool(found[1].any())


def test_formed_gradients_of_all_parameters_are_added_in_one_call(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one by one, and by torch; a parameter that comes twice would race with itself."""
    shapes = {"w": (70, 1001), "b": (3,), "v": (5, 513)}
    by = torch.randn(130, generator=torch.Generator().manual_seed(0))
    parts = [Formed(name, of_sizes(130, math.prod(shape)), by, 48) for name, shape in shapes.items()]
    found: list[dict[str, Tensor]] = []
    for compiled, at_once in ((steps, True), (steps, False), (None, True)):
        monkeypatch.setattr(totals, "STEPS", compiled)
        made = GridTotals({name: torch.zeros(shape) for name, shape in shapes.items()}, Clip(1.0), Grid(1000, 240))
        for each in [parts] if at_once else [[part] for part in parts]:
            made.add_formed(each)
        found.append(made.finish())
    for name in shapes:
        assert same(found[0][name], found[1][name]) and same(found[0][name], found[2][name])
    with pytest.raises(PrivacyError, match="once"):
        made.add_formed([parts[0], parts[0]])


@pytest.mark.parametrize("size", [1, 31, 1024, 1025, 70_001])
def test_totals(steps: Steps, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of a unit, which go to the even neighbour, and sums up to 2⁵¹ units, over several passes."""
    grid, clip = Grid(1000, 48), Clip(1.0)
    found: list[Tensor] = []
    for compiled in (steps, None):
        monkeypatch.setattr(totals, "STEPS", compiled)
        made = GridTotals({"w": torch.zeros(size), "b": torch.zeros(1)}, clip, grid)
        for number in range(3):
            of_pass = torch.linspace(-48.0, 48.0, size, dtype=torch.float64) / (number + 1)
            of_pass[::2] = (torch.arange(len(of_pass[::2])) + 0.5) * made._unit
            made.add("w", of_pass)
            made.add("b", torch.ones(1, dtype=torch.float64))
        found.append(made.finish()["w"])
    assert steps.add_on_grid(torch.zeros(size, dtype=torch.int64), torch.zeros(size).double(), 1.0), "it does this one"
    assert same(*found)


@pytest.mark.parametrize("shape", [(1, 1), (48, 33), (70, 1001), (600, 260)])
@pytest.mark.parametrize("records", [1, 96, 230])
def test_totals_of_products(
    steps: Steps, shape: tuple[int, int], records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups in float32, some of whose sums are near halves of a unit."""
    found: list[Tensor] = []
    left, right = (of_sizes(records, size) for size in shape)
    for compiled in (steps, None):
        monkeypatch.setattr(totals, "STEPS", compiled)
        made = GridTotals({"b": torch.zeros(3), "w": torch.zeros(shape)}, Clip(1.0), Grid(1000, 240))
        for _ in range(2):
            made.add_products("w", left, right, 96)
        found.append(made.finish()["w"])
    added = steps.add_products(torch.zeros(math.prod(shape), dtype=torch.int64), left, right, 96, 32, 1.0)
    assert added, "it does this one"
    assert same(*found)
    monkeypatch.setattr(totals, "STEPS", steps)
    broken = GridTotals({"w": torch.zeros(shape)}, Clip(1.0), Grid(1000, 240))
    broken.add_products("w", left * torch.inf, right, 96)
    assert bool(torch.isnan(broken.finish()["w"]).all())


@pytest.mark.parametrize("rows", [(9, 8, 1), (8, 8, 0), (241, 241, 96)])
def test_products_of_other_sizes_are_refused(rows: tuple[int, int, int]) -> None:
    """Of unequal factors, of no group, and of more rows than the slack covers."""
    made = GridTotals({"w": torch.zeros(3, 2)}, Clip(1.0), Grid(1000, 240))
    with pytest.raises(PrivacyError):
        made.add_products("w", torch.zeros(rows[0], 3), torch.zeros(rows[1], 2), rows[2])


def of_sizes(records: int, width: int) -> Tensor:
    """Factors whose products are small multiples of a quarter of the unit, and others."""
    generator = torch.Generator().manual_seed(records * 1009 + width)
    made = torch.randn(records, width, generator=generator)
    made[::2] = torch.randint(-3, 4, made[::2].shape, generator=generator) * 2.0**-21
    return made


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1023, 1500])
def test_a_sum_that_is_not_finite_breaks_the_total(
    steps: Steps, bad: float, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "STEPS", steps)
    made = GridTotals({"w": torch.zeros(1501)}, Clip(1.0), Grid(100, 10))
    of_pass = torch.zeros(1501, dtype=torch.float64)
    made.add("w", of_pass.clone())
    of_pass[at] = bad
    for _ in range(4):  # more than 64 bits hold
        made.add("w", of_pass)
    made.add("w", torch.zeros(1501, dtype=torch.float64))
    assert bool(made.finish()["w"].isnan().all())


@pytest.mark.parametrize("unit", [2.0**-40, 3.0 * 2.0**-7, math.nan])
def test_totals_become_floats(steps: Steps, unit: float) -> None:
    """Integers beyond what a float holds are rounded to the even neighbour, as torch rounds."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(-(2**62), 2**62, (1009,), generator=generator)
    cells[:6] = torch.tensor([0, 1, -1, 2**53 + 1, 2**53 + 3, -(2**62)])
    expected = cells.double() * unit
    assert steps.from_grid(cells, unit)
    assert same(cells, expected)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("size", [1, 31, 1025])
def test_descent(steps: Steps, size: int, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    direction, found = wild(size, dtype=torch.float64).nan_to_num(), []
    for compiled in (steps, None):
        monkeypatch.setattr(descent, "STEPS", compiled)
        parameters = torch.linspace(-2.0, 2.0, size, dtype=torch.float64)
        Descent(0.1, weight_decay=decay).move(parameters, direction, 1)
        found.append(parameters)
    assert steps.descend(parameters, direction, 1.0, 0.0), "it does this one"
    assert same(*found)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("shapes", [[(3,)], [(7, 11), (5,)], [(300, 301)]])
def test_updates_by_adam(
    steps: Steps, shapes: list[tuple[int, ...]], decay: float, coupled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = DpAdam(Descent(0.1, weight_decay=decay, coupled=coupled), betas=(0.9, 0.99), eps=1e-8)
    ends: list[dict[str, Tensor]] = []
    for compiled in (steps, None):
        monkeypatch.setattr(dp_adam, "STEPS", compiled)
        generator = torch.Generator().manual_seed(1)
        parameters = flattened(
            {str(at): torch.randn(shape, generator=generator).double() for at, shape in enumerate(shapes)}
        )
        state: State = optimizer.init(parameters)
        for step in range(1, 4):
            noised = {name: torch.randn(p.shape, generator=generator).double() for name, p in parameters.items()}
            noised["0"].view(-1)[:2] = torch.tensor([0.0, -0.0])
            parameters, state = optimizer.update(NoisedGradient(noised), state, parameters, StepInfo(step, 0.01))
        ends.append(parameters | state)
    flat = torch.zeros(9, dtype=torch.float64)
    assert steps.adam(flat, flat.clone(), flat.clone(), flat.clone(), optimizer._numbers(1)), "it does this one"
    assert all(same(ends[0][name].contiguous(), ends[1][name].contiguous()) for name in ends[0])


def test_it_leaves_to_torch_what_it_cannot_read(steps: Steps) -> None:
    """Other types, other devices, and numbers that do not lie one after another."""
    wide, narrow = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, 4)
    assert not steps.widen(wide, wide, None)
    assert not steps.widen(wide, narrow.mT, None)
    assert not steps.widen(wide[:2], narrow, None)
    assert not steps.widen(wide, narrow, torch.ones(3, dtype=torch.float64))
    assert not steps.widen(wide.to("meta"), narrow.to("meta"), None)
    assert steps.add_on_grid(torch.zeros(4, dtype=torch.int64), torch.zeros(3, dtype=torch.float64), 1.0) is None
    assert not steps.narrow(wide, narrow, torch.ones(4, dtype=torch.float64))
    assert not steps.narrow(narrow, narrow, torch.ones(4))
    assert not steps.from_grid(wide, 1.0)
    assert not steps.descend(wide, narrow, 1.0, 1.0)
    assert not steps.descend(wide, wide[:2], 1.0, 1.0)
