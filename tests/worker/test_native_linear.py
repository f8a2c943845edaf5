"""The compiled parts of a linear model's step have the bits of their definitions, on every path of the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from core.contracts.dataset_spec import HashedText
from core.contracts.job_spec import JobSpec
from core.native.library import PATHS
from core.parts.damage import DataDamagedError
from core.parts.hashing import hashed
from core.privacy.numerics import GROUP, SumType
from tests.worker.native import opened
from tests.worker.support import prepared
from worker.clipping import residuals
from worker.clipping.engine import Clip, ClippingKind, clip_factors
from worker.clipping.linear_clipping import LinearClipping, LinearGradient
from worker.clipping.residuals import LOWEST, Query, clipped_residuals, exponential
from worker.clipping.totals import Grid
from worker.data import records as records_of
from worker.data import sparse_entries as entries_of
from worker.data.norms import norm_bound, product_bound
from worker.data.records import DenseRecords, SparseRecords, added
from worker.data.sparse_entries import Entries, by_column
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.native.linear_steps import LinearSteps
from worker.training.plan import Plan

ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-300, -1e300, 5e-324]
WIDTH, ROWS = 37, 2 * GROUP


@pytest.fixture(scope="module", params=PATHS)
def steps(request: pytest.FixtureRequest) -> LinearSteps:
    return LinearSteps(opened(request.param))


@pytest.fixture
def both(steps: LinearSteps, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Calls something with the compiled parts and without them."""

    def found(call: Any) -> tuple[Any, Any]:
        made = []
        for each in (steps, None):
            for module in (residuals, entries_of, records_of):
                monkeypatch.setattr(module, "LINEAR", each)
            made.append(call())
        return made[0], made[1]

    threads = torch.get_num_threads()
    yield found
    torch.set_num_threads(threads)


def same(one: Tensor, other: Tensor) -> bool:
    """To the bit, but any NaN is like another."""
    ok = (one.view(torch.int64) == other.view(torch.int64)) | (one.isnan() & other.isnan())
    return one.shape == other.shape and bool(ok.all())


def numbers(*shape: int, odd: bool = False, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    made = torch.randn(shape, generator=generator, dtype=torch.float64) * 3.0
    if odd:
        made.view(-1)[:: max(1, made.numel() // 29)] = 0.0
        made.view(-1)[: len(ODD)] = torch.tensor(ODD, dtype=torch.float64)[: made.numel()]
    return made.to(dtype)


def matrix(rows: int = ROWS, seed: int = 0) -> Any:
    """Rows of 0 to 30 entries in columns that come in any order, one of them in most rows; numbers of float32."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 30, rows)
    columns = [np.unique(np.append(rng.permutation(WIDTH)[:size], 5))[::-1] for size in sizes]
    columns[rows // 2] = columns[rows // 2][:0]
    ends = np.append(0, np.cumsum([len(each) for each in columns]))
    values = rng.normal(size=ends[-1]).astype(np.float32)
    return scipy.sparse.csr_matrix((values, np.concatenate(columns), ends), shape=(rows, WIDTH))


# --- Products ---


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outputs", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("narrow", [True, False])
def test_products_of_sparse_rows(both: Any, narrow: bool, outputs: int, threads: int) -> None:
    torch.set_num_threads(threads)
    of = matrix().astype(np.float64)
    rows, columns = Entries.of(of, narrow=narrow), Entries.of(of.T.tocsr(), narrow=narrow)
    table, back = numbers(WIDTH, outputs, odd=True), numbers(ROWS, outputs, odd=True)
    assert rows.columns.itemsize == (2 if narrow else 4)
    forward, backward, scattered = (
        both(call)
        for call in (lambda: rows.product(table), lambda: columns.product(back), lambda: rows.scattered(back))
    )
    assert all(same(*each) for each in (forward, backward, scattered))
    table, back = numbers(WIDTH, outputs), numbers(ROWS, outputs)
    torch.testing.assert_close(rows.product(table), torch.from_numpy((of @ table.numpy()).T))
    torch.testing.assert_close(rows.scattered(back), torch.from_numpy((of.T @ back.numpy()).T))


def even_matrix(rows: int = ROWS) -> Any:
    """The same places with one number a row, as hashed presence has."""
    of = matrix(rows)
    of.data = np.repeat(np.linspace(0.1, 2.0, rows), np.diff(of.indptr)).astype(np.float32)
    return of


@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_rows_of_one_value_have_the_bits_of_any(both: Any, outputs: int) -> None:
    of = even_matrix().astype(np.float64)
    rows, even = Entries.of(of, narrow=True), Entries.of(of, narrow=True, even=True)
    assert even.values.shape == (ROWS,)
    columns, of_even = (each.transposed(of, narrow=True) for each in (rows, even))
    table, back = numbers(WIDTH, outputs, odd=True), numbers(ROWS, outputs, odd=True)
    expected = rows.product(table), columns.product(back)
    for found in both(lambda: (even.product(table), of_even.product(even.scaled(back)))):
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    columns_of_rows = rows.scattered(back)
    assert all(same(each, columns_of_rows) for each in both(lambda: even.scattered(back)))


def test_records_with_two_values_are_no_presence() -> None:
    labels = torch.arange(ROWS) % 3
    kept: Any = prepared(SparseRecords(even_matrix(), labels).even(), ROWS)
    plain: Any = prepared(SparseRecords(even_matrix(), labels), ROWS)
    made = engine(True)
    one, other = (made.private_sum(parameters(), each) for each in (kept, plain))
    assert all(same(one[name], other[name]) for name in one)
    with pytest.raises(DataDamagedError):
        SparseRecords(matrix(), labels).even()


@pytest.mark.parametrize("binary", [True, False])
def test_a_data_set_declares_whether_words_are_present_or_counted(binary: bool) -> None:
    job = {
        "dataset": "ds_1",
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 1},
        "model": {"kind": "linear"},
    }
    features = HashedText(column="text", binary=binary)
    planned: Any = SimpleNamespace(spec=JobSpec.model_validate(job), job=SimpleNamespace(features=features))
    assert Plan.even_rows.fget(planned) == binary  # type: ignore[attr-defined]
    found = hashed(["one two two", "", "three"], HashedText(column="text", binary=binary))
    of = SparseRecords(scipy.sparse.csr_matrix((found.data, found.indices, found.indptr), found.shape), torch.zeros(3))
    if binary:
        assert len(of.even()) == 3
    else:
        with pytest.raises(DataDamagedError):
            of.even()


def test_a_product_adds_every_fourth_entry(both: Any) -> None:
    of, table = matrix().astype(np.float64), numbers(WIDTH, 2)
    expected = torch.zeros(2, ROWS, dtype=torch.float64)
    for row in range(ROWS):
        sums = torch.zeros(4, 2, dtype=torch.float64)
        for place, at in enumerate(range(of.indptr[row], of.indptr[row + 1])):
            sums[place % 4] += table[of.indices[at]] * of.data[at]
        expected[:, row] = (sums[0] + sums[1]) + (sums[2] + sums[3])
    for found in both(lambda: Entries.of(of, narrow=True).product(table)):
        assert same(found, expected)


def test_sizes_beyond_two_bytes_keep_four(both: Any) -> None:
    of = scipy.sparse.csr_matrix(([1.5, 2.0], [70_000, 3], [0, 1, 2]), shape=(2, 70_001))
    made = Entries.of(of, narrow=True)
    assert made.columns.dtype == np.int32
    table = numbers(70_001, 2)
    one, other = both(lambda: made.product(table))
    assert same(one, other)
    assert torch.equal(one, torch.stack([1.5 * table[70_000], 2.0 * table[3]], dim=1))


def test_a_table_by_column() -> None:
    weight = numbers(3, 11)
    table = by_column(weight)
    assert torch.equal(table, weight.T)
    assert table.is_contiguous()


@pytest.mark.parametrize("shape", [(1, 2, 3), (47, 10, 77), (3, 1, 1025)])
def test_groups_are_added_in_their_order(both: Any, shape: tuple[int, ...]) -> None:
    groups = numbers(*shape, odd=True, dtype=torch.float32)
    one, other = both(lambda: added(groups))
    assert same(one, other)
    torch.testing.assert_close(one, groups.sum(dim=0, dtype=torch.float64), equal_nan=True)


# --- Residuals ---

EVERYONE = torch.ones(ROWS, dtype=torch.bool)


def case(outputs: int, dtype: torch.dtype, rows: int, odd: bool) -> tuple[Tensor, Tensor, Tensor]:
    f = numbers(rows, outputs, odd=odd, dtype=dtype).T
    labels = torch.arange(rows) % outputs if outputs > 1 else numbers(rows)
    lengths = numbers(rows).abs()
    lengths[rows // 2 :: 7], lengths[rows // 3], lengths[0] = math.inf, 0.0, 1e20
    return f, labels, lengths


@pytest.mark.parametrize("kind", [None, "flat", "automatic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [1, 2, 3, 10])
def test_residuals(both: Any, outputs: int, dtype: torch.dtype, kind: ClippingKind | None) -> None:
    for rows, odd, bias in [(ROWS, True, True), (ROWS, False, False), (1, False, True), (129, True, False)]:
        f, labels, lengths = case(outputs, dtype, rows, odd)
        query, present = Query(kind, 0.7, bias, 2.0**60), torch.arange(rows) % 5 != 3
        for of in (f, f.contiguous()):
            (one, norms), (other, others) = both(partial(clipped_residuals, of, labels, lengths, present, query))
            assert same(one.contiguous(), other.contiguous())
            assert same(norms, others)
            assert one.stride() == other.stride() == (1, outputs)
            assert not one[:, ~present].nan_to_num().any(), "empty rows add nothing"


def test_residuals_are_torchs(both: Any) -> None:
    f, labels, lengths = case(10, torch.float64, ROWS, odd=False)
    expected = torch.softmax(f, dim=0).scatter_add_(0, labels[None], torch.full((1, ROWS), -1.0, dtype=torch.float64))
    plain, _ = both(lambda: clipped_residuals(f, labels, lengths, EVERYONE, Query(None)))[0]
    torch.testing.assert_close(plain, expected, rtol=1e-13, atol=1e-15)
    clipped, norms = both(lambda: clipped_residuals(f, labels, lengths, EVERYONE, Query("flat", 0.5)))[0]
    bounds = product_bound(norm_bound(expected, dim=0), lengths)
    torch.testing.assert_close(norms, bounds, rtol=1e-13, atol=0.0)
    factors = clip_factors(bounds, "flat", 0.5)
    torch.testing.assert_close(clipped, torch.where(factors > 0.0, expected * factors, 0.0), rtol=1e-12, atol=1e-15)


def test_a_norm_is_never_too_small(both: Any) -> None:
    """‖scaled residual ⊗ (x, 1)‖ ≤ C in exact arithmetic."""
    for outputs in (1, 2, 10):
        f, labels, lengths = case(outputs, torch.float64, ROWS, odd=False)
        lengths[lengths.isinf()] = 2.5
        C, query = Fraction(1, 8), Query("flat", 0.125, bias=True)
        found, _ = both(partial(clipped_residuals, f, labels, lengths, EVERYONE, query))[0]
        for row, length in zip(found.T.tolist(), lengths.tolist(), strict=True):
            squares = sum(Fraction(each) ** 2 for each in row) * (Fraction(length) ** 2 + 1)
            assert squares <= C**2 * (1 + Fraction(2) ** -40)


def test_a_row_does_not_depend_on_its_place(both: Any) -> None:
    f, labels, lengths = case(3, torch.float64, ROWS, odd=True)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    query = Query("flat", 0.7)
    for one, norms in both(lambda: clipped_residuals(f, labels, lengths, EVERYONE, query)):
        again, moved = clipped_residuals(f[:, order], labels[order], lengths[order], EVERYONE, query)
        assert same(one[:, order].contiguous(), again.contiguous())
        assert same(norms[order], moved)


def test_the_exponential_is_within_a_few_roundings() -> None:
    generator = torch.Generator().manual_seed(0)
    x = -torch.rand(3000, generator=generator, dtype=torch.float64) * 710.0
    x[:1000] /= 710.0
    edges = torch.tensor([0.0, -0.0, LOWEST, -709.0, -math.log(2) / 2, -1e-320, -math.inf], dtype=torch.float64)
    x = torch.cat([x, edges])
    with mpmath.workprec(120):
        for at, value in zip(x.tolist(), exponential(x).tolist(), strict=True):
            exact = mpmath.exp(max(at, LOWEST))
            assert abs(value - exact) <= exact * 2.0**-51
    assert bool(exponential(torch.tensor([math.nan], dtype=torch.float64)).isnan())


def test_a_label_that_is_no_class_is_refused(steps: LinearSteps, both: Any) -> None:
    f, labels, lengths = case(3, torch.float64, ROWS, odd=False)
    for wrong in (-1, 3):
        labels[4] = wrong
        with pytest.raises(IndexError):
            both(lambda: clipped_residuals(f, labels, lengths, EVERYONE, Query("flat")))


# --- The engine ---


def records(sparse: bool) -> Any:
    labels = torch.arange(130) % 3
    return SparseRecords(matrix(130), labels) if sparse else DenseRecords(numbers(130, WIDTH).float(), labels)


def engine(sparse: bool) -> LinearClipping:
    model = Linear(WIDTH, 3, bias=True, rows_per_pass=ROWS, dtype=torch.float64 if sparse else torch.float32)
    sums: SumType = "float64" if sparse else "float32"
    return LinearClipping(model, "flat", 0.5, sums=sums, grid=Grid(500, ROWS))


def parameters() -> Parameters:
    return {"weight": numbers(3, WIDTH), "bias": numbers(3)}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_query_has_the_same_bits_without_the_library(both: Any, sparse: bool, kept: bool) -> None:
    of, made = records(sparse), engine(sparse)

    def query() -> tuple[Parameters, Tensor]:
        batch: Any = prepared(of, ROWS, made.model.dtype) if kept else of
        return made.private_sum_and_count(parameters(), batch)

    (one, count), (other, counted) = both(query)
    assert all(same(one[name], other[name]) for name in one)
    assert torch.equal(count, counted)


@pytest.mark.parametrize("rows", [4, 36, ROWS])
@pytest.mark.parametrize("kept", [True, False])
def test_factors_in_float32_are_added_in_float64(both: Any, kept: bool, rows: int) -> None:
    """Read as float64 they were another sum, and half of it lay behind their end."""
    labels, by = torch.zeros(rows, dtype=torch.int64), numbers(3, rows, dtype=torch.float32)

    def adjoints() -> tuple[Tensor, Tensor]:
        of: Any = SparseRecords(matrix(rows), labels)
        (part,) = prepared(of, rows).passes(rows, torch.float64) if kept else of.passes(rows, torch.float64)
        return part.records.adjoint(by), part.records.adjoint(by.double())

    for narrow, wide in both(adjoints):
        assert same(narrow, wide)


def test_kept_passes_have_the_same_sum_up_to_rounding() -> None:
    of, made = records(True), engine(True)
    one, other = (made.private_sum(parameters(), batch) for batch in (of, prepared(of, ROWS)))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sparse", [True, False])
def test_without_noise_steps_are_those_of_torchs_sgd(sparse: bool) -> None:
    of = records(sparse)
    model = Linear(WIDTH, 3, rows_per_pass=ROWS)
    ours = {"weight": torch.zeros(3, WIDTH, dtype=torch.float64)}
    layer = torch.nn.Linear(WIDTH, 3, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)
    optimizer, gradient = torch.optim.SGD(layer.parameters(), lr=0.05), LinearGradient(model)
    for _ in range(20):
        ours["weight"] -= 0.05 * gradient.private_sum(ours, of)["weight"] / len(of)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(of.dense(torch.float64)), of.labels).backward()
        optimizer.step()
    torch.testing.assert_close(ours["weight"], layer.weight.detach(), rtol=1e-10, atol=1e-12)


def test_divided_gradients_and_counts_take_the_other_path() -> None:
    of, made = records(True), engine(True)
    ones = Clip(0.5, {name: torch.ones_like(each) for name, each in parameters().items()})
    one, other = (made.private_sum(parameters(), of, clip) for clip in (Clip(0.5), ones))
    assert all(torch.allclose(one[name], other[name], rtol=1e-9, atol=1e-9) for name in one)
