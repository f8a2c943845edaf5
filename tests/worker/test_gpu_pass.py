"""A pass on a GPU: lengths, clip factors, and sums with the processor's bits. The kernels run here on the processor.

On a whole engine: test_gpu_engine.py. What NVRTC makes of it: test_noise_on_device.py.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.errors import PrivacyError
from tests.by_night import but
from tests.worker.native import KERNELS, gpu_kernels
from worker.clipping import factors, gpu_check
from worker.clipping.accumulators import LONGEST, Lengths
from worker.clipping.engine import ClippingKind
from worker.native import gpu, gpu_pass
from worker.native.flat_steps import STEPS
from worker.native.gpu_pass import LENGTHS, MATRICES, PARTS, Part, add_sums, row_squares

INVERSE = 2.0**20


@dataclass
class Kernel:
    """The kernel on the processor, and how often it ran."""

    library: ctypes.CDLL
    blocks: int = 3
    calls: int = 0

    def launch(self, name: str, sums: ctypes.Structure, _items: int, _device: torch.device) -> None:
        self.calls += 1
        self.library.run(name.encode(), ctypes.addressof(sums), self.blocks)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return gpu_kernels()


@pytest.fixture
def kernel(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel(library)
    monkeypatch.setattr(gpu, "launch", found.launch)
    return found


def random(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * 10.0 ** torch.randint(-12, 4, shape, generator=generator)


def part_of(seed: int, rows: int, width: int, group: int) -> Part:
    """Gradients of records, of which every third is empty or not finite."""
    gradients, factors = random(seed, rows, width), random(seed + 1, rows).abs().clamp_(max=1.0)
    factors[::3], gradients[::6], gradients[3::6] = 0.0, torch.nan, torch.inf
    return Part(random(seed + 2, width).long(), gradients, factors, group)


def by_processor(part: Part) -> Tensor:
    totals, gradients, factors, group = part
    expected = totals.clone()
    if factors is None:
        assert STEPS is not None and all(STEPS.add_on_grid(expected, sums, INVERSE) for sums in gradients)
    else:
        assert STEPS is not None and STEPS.add_formed([(expected, gradients, factors, group)], INVERSE)
    return expected


def require_same(*parts: Part) -> None:
    expected, broken = [by_processor(each) for each in parts], torch.zeros(1, dtype=torch.int64)
    add_sums(parts, INVERSE, broken)
    assert all(torch.equal(one, part.totals) for one, part in zip(expected, parts, strict=True))
    assert int(broken) == 0


# --- Lengths ---


@settings(max_examples=60)
@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(1, 70), st.integers(1, 6000)), min_size=1, max_size=5),
    st.integers(1, 7),
)
def test_rows_have_their_lengths(library: ctypes.CDLL, seed: int, shapes: list[tuple[int, int]], blocks: int) -> None:
    """A sum of squares loses less than the slack pays for, whatever the shapes of a call."""
    matrices = [random(seed + at, *shape) for at, shape in enumerate(shapes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "launch", Kernel(library, blocks).launch)
        found = row_squares(matrices)
    for numbers, squares in zip(matrices, found, strict=True):
        exact = torch.tensor([math.fsum(row) for row in numbers.double().square().tolist()], dtype=torch.float64)
        assert ((squares - exact).abs() <= numbers.shape[1] * 2.0**-52 * exact).all()


def test_a_row_that_is_not_finite_has_no_length(kernel: Kernel) -> None:
    numbers = torch.ones(40, 700)
    numbers[3, 699], numbers[5, 0], numbers[7] = math.nan, -math.inf, 3e38
    (squares,) = row_squares([numbers])
    assert not squares[[3, 5]].isfinite().any() and float(squares[7]) == pytest.approx(700 * 9e76)
    others = [at for at in range(40) if at not in (3, 5, 7)]
    assert (squares[others] == 700.0).all()


def test_lengths_of_many_parameters_are_a_few_calls(kernel: Kernel) -> None:
    matrices = [random(at, 3 + at % 5, 1 + 97 * at % 900) for at in range(MATRICES + 1)]
    together = row_squares([*matrices, matrices[0].T.contiguous().T])
    assert kernel.calls == 2
    assert all(torch.equal(one, row_squares([each])[0]) for one, each in zip(together, matrices, strict=False))
    assert torch.equal(together[-1], together[0]) and row_squares([]) == []


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3).double(), torch.zeros(3), torch.zeros(2, 3, device="meta")])
def test_other_numbers_have_no_lengths(kernel: Kernel, wrong: Tensor) -> None:
    with pytest.raises(PrivacyError, match="do not fit"):
        row_squares([torch.zeros(2, 3), wrong])


# --- Clip factors ---

ROWS = 2000  # more than three blocks' threads


def lengths_of(seed: int, parameters: int) -> list[Lengths]:
    """Of all kinds: slack in parts and in numbers, squares that cancelled, records that are not finite or too long."""
    found = []
    for at in range(parameters):
        squares = random(seed + at, ROWS).abs().double()
        squares[6 + at % 3], squares[9] = math.nan, math.inf
        squares[5] = 0.25 if at else -1e-12
        squares[10 + at % 2] = 2 * LONGEST**2
        slack = 1e-9 * squares.abs() if at % 2 else 1e-9
        found.append(Lengths(squares, slack, narrow=at % 3 == 0))
    return found


@pytest.mark.parametrize("kind", ["flat", "automatic", "per_layer"])
@pytest.mark.parametrize("parameters", [1, 5, LENGTHS + 3])
def test_factors_are_the_processor_s(kernel: Kernel, kind: ClippingKind, parameters: int) -> None:
    groups = [lengths_of(1, parameters)] if kind != "per_layer" else [lengths_of(1, parameters), lengths_of(40, 3)]
    weights = torch.ones(ROWS, dtype=torch.float64)
    weights[::7] = 0.0
    expected, within = factors._by_torch(groups, kind, 0.7, weights)
    found, halves = factors._on_gpu(groups, kind, 0.7, weights)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one.wide, other.wide, rtol=1e-13, atol=0.0)
        assert torch.equal(other.narrow, other.wide.float())
        assert (other.wide[::7] == 0.0).all() and (other.wide[[6, 9]] == 0.0).all() and (other.wide > 0.0).any()
    assert torch.equal(within, halves) and halves.shape == (1,)


def test_a_clipped_record_is_at_most_c_long(kernel: Kernel) -> None:
    """Of one parameter with one number: at C's edge, in exact arithmetic."""
    edge = torch.tensor([0.7, math.nextafter(0.7, 1), math.nextafter(0.7, 0), 1e-150, 1e150], dtype=torch.float64)
    found, _ = factors._on_gpu([[Lengths(edge.square(), 2.0**-52)]], "flat", 0.7, torch.ones(5, dtype=torch.float64))
    products = [Fraction(float(one)) * Fraction(float(f)) for one, f in zip(edge, found[0].wide, strict=True)]
    assert all(each <= Fraction(0.7) for each in products)
    assert [float(each) for each in products[:3]] == pytest.approx([0.7] * 3, rel=1e-14)


@pytest.mark.parametrize(
    "wrong",
    [
        Lengths(torch.ones(4), 0.0),
        Lengths(torch.ones(5, dtype=torch.float64), 0.0),
        Lengths(torch.ones(4, dtype=torch.float64), torch.ones(4)),
        Lengths(torch.ones(8, dtype=torch.float64)[::2], 0.0),
    ],
)
def test_lengths_that_do_not_fit_are_refused(kernel: Kernel, wrong: Lengths) -> None:
    with pytest.raises(PrivacyError, match="do not fit"):
        factors._on_gpu([[wrong]], "flat", 1.0, torch.ones(4, dtype=torch.float64))
    assert kernel.calls == 0


# --- What a launch leaves out ---


@pytest.mark.parametrize("left_out", range(4))
def test_what_no_thread_reached_adds_nothing(kernel: Kernel, left_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches for lengths of gradients and two for bounds: one of them does nothing, where long records were."""
    long, launches = [torch.full((8, 3), 1e6) for _ in range(LENGTHS + 1)], count()

    def launch(name: str, *of: Any) -> None:
        if name == "scrimp_clip_factors" or next(launches) != left_out:
            kernel.launch(name, *of)

    monkeypatch.setattr(gpu, "launch", launch)
    measured = [Lengths(squares, 1e-12) for squares in row_squares(long)]
    ((wide, narrow),), within = factors._on_gpu([measured], "flat", 1.0, torch.ones(8, dtype=torch.float64))
    assert next(launches) == 4 and wide.tolist() == narrow.tolist() == [0.0] * 8 and within.tolist() == [0.0]


# --- The comparison before a GPU's totals count a record ---


def test_the_kernels_pass_the_comparison(kernel: Kernel) -> None:
    kernel.blocks = 2
    gpu_check.require_same.__wrapped__(torch.device("cpu"))


FAULTS = {
    "a square in float": ("const double number = (double)matrix", "const float number = matrix"),
    "a sum too few": ("int by = lanes / 2; by; by /= 2", "int by = lanes / 2; by > 1; by /= 2"),
    "a column too few": ("j < matrix->width; j += lanes", "j < matrix->width - 1; j += lanes"),
    "rows beyond the blocks": ("tile < of.tiles; tile += blocks", "tile < of.tiles; tile += of.tiles"),
    "slack that is left out": ("(most < 0.0 ? 0.0 : most) + slack", "(most < 0.0 ? 0.0 : most)"),
    "a negative square": ("(most < 0.0 ? 0.0 : most) + slack", "most + slack"),
    "what is too long": ("squares > length->longest ? INFINITE : squares", "squares"),
    "another group": ("length->group * to.rows + row", "row"),
    "rows beyond the threads": (
        "row < to.rows; row += (int64_t)blocks * THREADS",
        "row < to.rows; row += to.rows",
    ),
    "a root in float": ("= SQUARE_ROOT(by.bounds[at] + SMALLEST)", "= (float)SQUARE_ROOT(by.bounds[at] + SMALLEST)"),
    "a group that is not finite": ("finite &= fabs(norm)", "finite = fabs(norm)"),
    "weights": (": 0.0) * by.weights[row]", ": 0.0)"),
    "half counts": ("2 * (int64_t)(first >= 1.0) - 1", "2 * (int64_t)(first > 1.0) - 1"),
    "a row with factor 0": ("product.bits &= -(uint32_t)(factor != 0.0f);", ""),
    "sums in double": ("float sum = 0.0f;", "double sum = 0.0;"),
    "truncation": ("(int64_t)((inside + NEAREST) - NEAREST)", "(int64_t)inside"),
    "the last group's rows": (
        "part->rows - first < part->group ? part->rows : first + part->group",
        "first + part->group - 1",
    ),
    "tiles beyond the blocks": ("tile < sums.tiles; tile += blocks", "tile < sums.tiles; tile += sums.tiles"),
    "a flag that is turned back": ("*broken += !in_range", "*broken = !in_range"),
    "a flag that is left out": ("if (broken) add_to(sums.broken, broken);", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", but(FAULTS, lambda fault: list(FAULTS).index(fault) % 4 > 0))
def test_the_comparison_finds(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = gpu.TEXTS["clipping_pass.h"]
    assert text.count(FAULTS[fault][0]) == 1
    source = tmp_path / "faulty.c"
    include = '#include "clipping_pass.h"'
    source.write_text(KERNELS.read_text().replace(include, text.replace(*FAULTS[fault])))
    monkeypatch.setattr(gpu, "launch", Kernel(gpu_kernels("-O1", source=source), blocks=2).launch)
    with pytest.raises(PrivacyError, match="clips otherwise"):
        gpu_check.require_same.__wrapped__(torch.device("cpu"))


# --- Sums ---

needs_library = pytest.mark.skipif(STEPS is None, reason="there is no compiled library to compare with")


@needs_library
@settings(max_examples=60)
@given(st.integers(0, 1000), st.integers(1, 200), st.integers(1, 1500), st.integers(1, 100), st.integers(1, 7))
def test_formed_gradients_have_the_processor_s_bits(
    library: ctypes.CDLL, seed: int, rows: int, width: int, group: int, blocks: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "launch", Kernel(library, blocks).launch)
        require_same(part_of(seed, rows, width, group), part_of(seed + 3, rows, 1, group))


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 1025), (7, 512), (60, 3)])
def test_sums_are_rounded_one_by_one(kernel: Kernel, dtype: torch.dtype, rows: int, width: int) -> None:
    sums = (random(5, rows, width).to(dtype) * math.pi).to(dtype)
    require_same(Part(torch.zeros(width, dtype=torch.int64), sums))
    ties = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 2.0**51 - 0.5]], dtype=torch.float64) / INVERSE
    require_same(Part(torch.zeros(6, dtype=torch.int64), ties))


@needs_library
def test_a_pass_is_a_few_calls(kernel: Kernel) -> None:
    """Parameters of all kinds, in a row."""
    parts = [part_of(at, 1 + at % 70, 1 + 37 * at % 600, 1 + at % 20) for at in range(2 * PARTS)]
    parts += [Part(torch.zeros(9, dtype=torch.int64), random(3, 4, 9))]
    require_same(*parts)
    assert kernel.calls == 3


def test_of_no_numbers_nothing_is_launched(kernel: Kernel) -> None:
    nothing = Part(torch.zeros(0, dtype=torch.int64), torch.zeros(3, 0))
    add_sums([nothing], INVERSE, torch.zeros(1, dtype=torch.int64))
    add_sums([], INVERSE, torch.zeros(1, dtype=torch.int64))
    assert kernel.calls == 0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2.0**51, -(2.0**51), 1e300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at", [0, 599])
def test_a_sum_out_of_range_breaks_the_totals(kernel: Kernel, number: float, dtype: torch.dtype, at: int) -> None:
    kernel.blocks = 1
    sums, broken = torch.zeros(2, 600, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    sums[0, at], sums[1, 1] = number, 2.0**50
    totals = torch.zeros(600, dtype=torch.int64)
    add_sums([Part(totals, sums.to(dtype))], 1.0, broken)
    assert int(broken) == 1
    assert totals.tolist() == [0, 2**50] + [0] * 598


def test_gradients_that_add_up_out_of_range_break_them(kernel: Kernel) -> None:
    broken = torch.zeros(1, dtype=torch.int64)
    gradients = torch.full((2, 1), 3e38)
    add_sums([Part(torch.zeros(1, dtype=torch.int64), gradients, torch.ones(2), 2)], 1.0, broken)
    assert int(broken) == 1


M = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    "part",
    [
        Part(M.int(), torch.zeros(2, 4)),
        Part(M, torch.zeros(2, 5)),
        Part(torch.zeros(8, dtype=torch.int64)[::2], torch.zeros(2, 4)),
        Part(M, torch.zeros(2, 4, dtype=torch.bfloat16)),
        Part(M, torch.zeros(2, 4, dtype=torch.float64), torch.ones(2)),
        Part(M, torch.zeros(2, 4), torch.ones(3)),
        Part(M, torch.zeros(2, 4), torch.ones(2, dtype=torch.float64)),
        Part(M, torch.zeros(2, 4), torch.ones(4)[::2]),
        Part(M, torch.zeros(2, 4), torch.ones(2), 0),
        Part(M, torch.zeros(2, 4, device="meta")),
    ],
)
def test_what_does_not_fit_is_refused(kernel: Kernel, part: Part) -> None:
    with pytest.raises(PrivacyError, match="do not fit"):
        add_sums([part], INVERSE, torch.zeros(1, dtype=torch.int64))
    assert kernel.calls == 0


@needs_library
def test_a_view_is_read_in_its_order(kernel: Kernel) -> None:
    part = part_of(1, 40, 30, 6)
    assert part.factors is not None
    turned = part._replace(numbers=part.numbers.T.contiguous().T, totals=part.totals.clone())
    require_same(part)
    add_sums([turned], INVERSE, torch.zeros(1, dtype=torch.int64))
    assert torch.equal(part.totals, turned.totals)


def test_both_sides_have_one_layout(library: ctypes.CDLL) -> None:
    structures = (gpu_pass._Squares, gpu_pass._Bounds, gpu_pass._Factors, gpu_pass._Sums)
    sizes = [ctypes.sizeof(each) for each in structures]
    assert max(sizes) <= 4096  # a kernel's arguments
    assert [library.sizes(at) for at in range(7)] == [*sizes, MATRICES, LENGTHS, PARTS]
