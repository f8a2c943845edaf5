"""The compiled copies, sums and sorts of a registration give what numpy gives, to the bit."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from core.native import ascending, build, record_columns
from core.native.ascending import by_numpy
from core.native.library import Library, load
from tests.worker.native import built

NAN, MOST = float("nan"), float(np.finfo(np.float32).max)
ODD = [NAN, np.inf, -np.inf, np.nextafter(MOST, np.inf), -np.nextafter(MOST, np.inf)]
EVEN = [-0.0, 0.0, 5e-324, -5e-324, MOST, -MOST, 1.0]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    found = load(build.LIBRARY, "plain") or load(built(tmp_path_factory.mktemp("records")), "plain")
    if found is None:
        pytest.skip("there is no library")
    return found


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, library: Library) -> str:
    """Both ways of core.native.record_columns."""
    monkeypatch.setattr(
        record_columns, "COMPILED", record_columns.Compiled(library) if request.param == "compiled" else None
    )
    return str(request.param)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("width", [1, 2, 33, 70])
def test_columns_are_stacked(way: str, count: int, width: int) -> None:
    rng = np.random.default_rng(count * width)
    columns = [rng.choice([*EVEN, *rng.normal(size=9)], size=count) for _ in range(width)]
    rows, odd = record_columns.stacked(columns)
    assert rows.shape == (count, width) and rows.flags.c_contiguous and not odd.any()
    assert rows.tobytes() == (np.array(columns).T + 0.0).tobytes()


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("row", [0, 31, 32, 40])
def test_a_column_with_one_odd_cell_is_named(way: str, value: float, row: int) -> None:
    columns = [np.array(EVEN * 6) for _ in range(40)]
    columns[35][row] = value
    rows, odd = record_columns.stacked(columns)
    assert odd.tolist() == [place == 35 for place in range(40)]
    assert np.array_equal(rows[row, 35], value, equal_nan=True)


def test_columns_with_strides_are_read_as_what_they_show(way: str) -> None:
    whole = np.arange(120.0)
    rows, _ = record_columns.stacked([whole[::2], whole[1::2], whole[::-2]])
    assert np.array_equal(rows, np.column_stack([whole[::2], whole[1::2], whole[::-2]]))


@pytest.mark.parametrize("columns", [[], [np.zeros(3), np.zeros(4)], [np.zeros(3, dtype=np.float32)]])
def test_columns_that_do_not_fit_are_refused(way: str, columns: list[np.ndarray]) -> None:
    with pytest.raises(ValueError, match="columns are float64"):
        record_columns.stacked(columns)


@pytest.mark.parametrize("of", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 50])
@pytest.mark.parametrize("longest", [0, 1, 9, 200])
def test_contents_are_those_of_each_record(way: str, of: type, count: int, longest: int) -> None:
    rng = np.random.default_rng(longest)
    numbers = rng.choice([*EVEN, NAN, *rng.normal(size=9)], size=(count, 7)).astype(of)
    order, labels = rng.permutation(7), rng.integers(0, 256, (count, longest), dtype=np.uint8)
    lengths = rng.integers(0, longest + 1, count)
    found, ends = record_columns.contents(numbers, order, b"begin", labels, lengths)
    expected = [
        b"begin" + (row[order].astype("<f8") + 0.0).tobytes() + label[:length].tobytes()
        for row, label, length in zip(numbers, labels, lengths.tolist(), strict=True)
    ]
    assert ends.tolist() == np.cumsum([len(each) for each in expected], dtype=np.int64).tolist()
    assert found.tobytes() == b"".join(expected)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("order", "lengths", "of"),
    [
        ([0, 0], [1, 1], np.float64),
        ([0, 2], [1, 1], np.float64),
        ([-1, 0], [1, 1], np.float64),
        ([0], [1, 1], np.float64),
        ([0, 1], [1, 5], np.float64),
        ([0, 1], [-1, 1], np.float64),
        ([0, 1], [1], np.float64),
        ([0, 1], [1, 1], np.int64),
    ],
)
def test_what_would_read_beyond_a_record_is_refused(way: str, order: list[int], lengths: list[int], of: type) -> None:
    numbers, labels = np.zeros((2, 2), dtype=of), np.zeros((2, 4), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"order|label"):
        record_columns.contents(numbers, np.array(order), b"", labels, np.array(lengths))


@pytest.mark.parametrize("count", [0, 1, 3, 500])
def test_large_numbers_are_added_modulo_2_to_the_512(way: str, count: int) -> None:
    numbers = np.random.default_rng(count).integers(0, 256, (count, 64), dtype=np.uint8)
    numbers[::2] = 255  # every word carries
    wanted = sum(int.from_bytes(each.tobytes(), "little") for each in numbers) % 2**512
    assert record_columns.sum_512(numbers) == wanted


def digests(kind: str) -> np.ndarray:
    """Digests (n, 2) in an order of chance."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**64, (20_000, 2), dtype=np.uint64)
    match kind:
        case "none":
            return words[:0]
        case "one":
            return words[:1]
        case "few":
            return words[:5]
        case "repeated":
            return words[:300][rng.integers(0, 300, 20_000)]
        case "one repeated":
            return np.repeat(words[:1], 20_000, axis=0)
        case "equal first words":
            words[:, 0] = words[0, 0]
        case "ends of the range":
            words[:, 0] = rng.choice(np.array([0, 2**64 - 1], dtype=np.uint64), 20_000)
        case "a narrow range":
            words[:, 0] = words[:, 0] >> np.uint64(50)
        case "all but one in one bucket":
            words[1:, 0] = words[1:, 0] >> np.uint64(30)
            words[0, 0] = 2**64 - 1
    return words


SORTED = (
    "none", "one", "few", "any", "repeated", "one repeated", "equal first words", "ends of the range", "a narrow range",
    "all but one in one bucket",
)  # fmt: skip


@pytest.mark.parametrize("kind", SORTED)
@pytest.mark.parametrize("counted", [False, True])
def test_digests_are_sorted_and_counted(library: Library, kind: str, counted: bool) -> None:
    words = digests(kind)
    counts = np.random.default_rng(4).integers(1, 9, len(words)) if counted else None
    found = ascending.Compiled(library).ascending(words, counts)
    wanted = Counter[tuple[int, ...]]()
    for row, times in zip(map(tuple, words.tolist()), np.ones(len(words)) if counts is None else counts, strict=True):
        wanted[row] += int(times)
    rows = list(map(tuple, found[0].tolist()))
    assert dict(zip(rows, found[1].tolist(), strict=True)) == wanted
    assert all(one < other for one, other in pairwise(rows))
    for one, other in zip(found, by_numpy(words, counts), strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (np.zeros((3, 2), dtype=np.int64), None),
        (np.zeros((3, 3), dtype=np.uint64), None),
        (np.zeros((3, 2), dtype=np.uint64), np.ones(2, dtype=np.int64)),
        (np.zeros((3, 2), dtype=np.uint64), np.ones(3)),
    ],
)
def test_what_is_no_digest_is_refused(words: np.ndarray, counts: np.ndarray | None) -> None:
    with pytest.raises(ValueError, match="digest has"):
        ascending.ascending(words, counts)
