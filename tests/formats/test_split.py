"""The hold-out split: a function of each record's own content and of the key, and of nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.parts.digests import Messages, in_holdout, record_digests, text_contents
from core.parts.sorted_digests import Ascending, squares
from tests.formats.files import TEXT, dense, number_rows, parsed, spec, write

contents = st.lists(st.binary(max_size=8), max_size=40)
keys = st.binary(min_size=16, max_size=32)
fractions = st.floats(0.01, 0.99)


def side(records: list[bytes], key: bytes, fraction: float) -> list[bool]:
    return list(map(bool, in_holdout(record_digests(Messages.joined(records), key), fraction)))


@given(contents, keys, fractions, st.randoms(use_true_random=False))
def test_a_records_side_does_not_depend_on_the_others(
    records: list[bytes], key: bytes, fraction: float, random: object
) -> None:
    sides = dict(zip(records, side(records, key, fraction), strict=True))
    shuffled = records + records[:3]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert side(shuffled, key, fraction) == [sides[record] for record in shuffled], "duplicates fall on one side"
    if records:
        assert side(records[:1], key, fraction) == [sides[records[0]]]


@given(contents, keys, fractions, fractions)
def test_a_larger_fraction_only_adds_to_the_holdout(records: list[bytes], key: bytes, one: float, other: float) -> None:
    small, large = side(records, key, min(one, other)), side(records, key, max(one, other))
    assert all(b for a, b in zip(small, large, strict=True) if a)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_the_fraction_is_met_up_to_chance(fraction: float) -> None:
    n = 20_000
    share = np.mean(side([str(i).encode() for i in range(n)], b"k" * 32, fraction))
    assert abs(share - fraction) < 5 * math.sqrt(fraction * (1 - fraction) / n)


def test_a_side_spreads_by_the_squares_of_classes() -> None:
    """f (1 − f) Σ (class size)², over 400 keys: without the squares it would be four times too small."""
    records = [bytes([i]) for i in range(30) for _ in range(1 + i % 6)]
    counts = [sum(side(records, bytes([i // 256, i % 256]) * 8, 0.2)) for i in range(400)]
    content = record_digests(Messages.joined(records), bytes(32))
    squared = squares([Ascending.of(content)])
    assert squared == 5 * sum(n * n for n in range(1, 7)) and squares([Ascending.of(content[:0])]) == 0
    assert 0.8 < np.var(counts) / (0.2 * 0.8 * squared) < 1.2


def test_another_key_splits_otherwise() -> None:
    records = [str(i).encode() for i in range(400)]
    first, second = side(records, b"1" * 32, 0.5), side(records, b"2" * 32, 0.5)
    assert 140 < sum(a != b for a, b in zip(first, second, strict=True)) < 260


def test_text_and_label_can_not_be_moved_into_each_other() -> None:
    assert len(set(text_contents(["ab", "a", "", "abc"], [b"c", b"bc", b"abc", b""]))) == 4


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=10)
@given(st.integers(0, 2**20), st.permutations(range(40)))
def test_the_parts_are_disjoint_and_whole_in_any_order(tmp_path: Path, seed: int, order: list[int]) -> None:
    rows = number_rows(40, seed)
    rows += rows[:5]
    file = tmp_path / "d"
    document = spec(holdout={"kind": "split", "fraction": 0.3})
    _, straight = parsed(tmp_path, document, write(file, "csv", rows))
    _, shuffled = parsed(tmp_path, document, write(file, "csv", [rows[i] for i in (*order, *range(40, 45))]))

    def records(parts: dict, name: str) -> list[tuple[float, ...]]:
        return sorted((*map(float, x), float(y)) for x, y in zip(parts[name].x, parts[name].y, strict=True))

    assert all(records(straight, name) == records(shuffled, name) for name in ("train", "holdout"))
    train, holdout = (records(straight, name) for name in ("train", "holdout"))
    assert not set(train) & set(holdout)
    whole = [(float(np.float32(r["a"])), float(np.float32(r["b"])), r["y"]) for r in rows]
    assert sorted(train + holdout) == sorted(whole)


def test_a_sparse_split_keeps_every_row_whole(tmp_path: Path) -> None:
    rows = [{"t": f"word{i} " * (i % 4) + f"tail{i % 7}", "y": i % 2} for i in range(60)]
    file = write(tmp_path / "d", "csv", rows)
    _, whole = parsed(tmp_path, spec(features=TEXT, classes=[0, 1]), file)
    _, parts = parsed(tmp_path, spec(features=TEXT, classes=[0, 1], holdout={"kind": "split", "fraction": 0.4}), file)
    rejoined = np.vstack([dense(parts["train"]), dense(parts["holdout"])])
    labels = np.concatenate([parts["train"].y, parts["holdout"].y])
    expected = np.column_stack([dense(whole["train"]), whole["train"].y])
    found = np.column_stack([rejoined, labels])
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))
    assert 0 < len(parts["holdout"].y) < 60
