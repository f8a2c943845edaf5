"""The synthetic long-tailed set: its size, its tail, and an order that can be learnt."""

from __future__ import annotations

import numpy as np

from benchmarks.long_tail import ITEMS, LEAST, MEAN_LENGTH, USERS, histories, popularity
from worker.data.sequence_records import SequenceRecords


def rows_of(some: SequenceRecords) -> list[np.ndarray]:
    return [some._items[a:b] for a, b in zip(some._starts, some._ends, strict=True)]


def test_it_has_movielens_1m_s_size_and_a_long_tail() -> None:
    some = histories()
    lengths = some._ends - some._starts
    assert len(some) == USERS and lengths.min() >= LEAST and abs(lengths.mean() - MEAN_LENGTH) < 5
    counts = np.bincount(some._items, minlength=ITEMS)
    assert counts.sum() == len(some._items) == lengths.sum() and len(counts) == ITEMS and counts.min() > 0
    assert counts[: ITEMS // 10].sum() > 0.5 * counts.sum() and np.median(counts) < 0.5 * counts.mean()
    assert abs(popularity().sum() - 1.0) < 1e-12


def test_a_seed_gives_one_set() -> None:
    one, same, other = (histories(50, 100, seed) for seed in (1, 1, 2))
    assert np.array_equal(one._items, same._items) and not np.array_equal(one._items[:99], other._items[:99])


def test_what_comes_next_follows_from_what_was_last() -> None:
    """For rare items too: half of the time it is one of three successors."""
    items = 200
    rows = rows_of(histories(600, items))
    seen = np.zeros((items, items))
    for each in rows[:300]:
        np.add.at(seen, (each[:-1], each[1:]), 1)
    after, popular = np.argsort(-seen, axis=1)[:, :3], np.argsort(-seen.sum(axis=0))[:3]
    before, then = (np.concatenate(parts) for parts in zip(*((r[:-1], r[1:]) for r in rows[300:]), strict=True))
    follows = (after[before] == then[:, None]).any(axis=1)
    rare = before >= items // 2
    assert follows.mean() > 0.45 and follows[rare].mean() > 0.45 and np.isin(then, popular).mean() < 0.1
