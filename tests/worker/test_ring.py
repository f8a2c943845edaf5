"""Ranks on several machines: the same model as one process, to the bit, and an end that reaches every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.worker.gang import Ends, ring, shared, together, trained
from tests.worker.support import Supervisor
from tests.worker.test_ranks import JOBS, TRAIN, same, start
from worker.attempt.exchange import MESSAGE_BYTES
from worker.data.ranks import Ranks, RanksError

SIZES = (2, 3, 5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_sums_are_exact_in_every_rank(size: int, count: int) -> None:
    """Also of fewer numbers than ranks, and of several pieces with a rest."""
    parts = torch.randint(-(2**60), 2**60, (size, count), generator=torch.Generator().manual_seed(size))

    def work(ranks: Ranks) -> list[torch.Tensor]:
        total, share = parts[ranks.rank].clone(), parts[ranks.rank].clone()
        ranks.add_up(total)
        ranks.add_up_at(size - 1, share)
        return [total, *([share] if ranks.rank == size - 1 else [])]

    wanted = parts.sum(0)
    found = [each for of in together(size, work, piece_bytes=64, ends=ring) for each in of]
    assert len(found) == size + 1 and all(torch.equal(each, wanted) for each in found)


def test_float_sums_have_the_same_bits_in_every_rank() -> None:
    parts = torch.randn(3, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def work(ranks: Ranks) -> torch.Tensor:
        total = parts[ranks.rank].clone()
        ranks.add_up(total)
        return total

    first, *others = together(3, work, piece_bytes=64, ends=ring)
    assert all(torch.equal(each, first) for each in others)
    assert torch.allclose(first, parts.sum(0))


@pytest.mark.parametrize("size", SIZES)
def test_what_one_rank_says_reaches_all(size: int) -> None:
    said = bytes(range(256)) * 3

    def work(ranks: Ranks) -> tuple[object, ...]:
        numbers = torch.full((50,), ranks.rank)
        ranks.from_rank(size - 1, numbers)
        same, differ = ranks.agree(b"a" * 32), ranks.agree(bytes([ranks.rank]) * 32)
        return (
            ranks.from_first(said),
            ranks.from_first(),
            set(numbers.tolist()),
            ranks.least(9 - ranks.rank),
            same,
            differ,
        )

    assert together(size, work, piece_bytes=64, ends=ring) == [(said, b"", {size - 1}, 10 - size, True, False)] * size


@pytest.mark.parametrize("ends", [ring, shared])
def test_a_length_that_rank_0_announces_is_bounded(ends: Callable[[int, int], Sequence[Ends]]) -> None:
    def work(ranks: Ranks) -> str:
        with pytest.raises(RanksError) as refused:
            ranks.from_first(bytes(MESSAGE_BYTES + 1))
        return str(refused.value)

    assert together(2, work, ends=ends) == ["rank 0 announces a message of 65,537 bytes"] * 2


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_rank_that_ends_ends_all(gone: int) -> None:
    """None waits for ever, and none goes on with fewer."""
    ended = []

    def work(ranks: Ranks) -> None:
        if ranks.rank == gone:
            return
        try:
            ranks.add_up(torch.ones(10, dtype=torch.int64))
        except RanksError:
            ended.append(ranks.rank)

    together(3, work, ends=ring)
    assert sorted(ended) == sorted({0, 1, 2} - {gone})


@pytest.mark.parametrize("name", ["DP-SGD, network with dropout", "DP-Adam", "adaptive clipping", "few records"])
def test_a_ring_of_any_size_gives_the_model_of_one_process(name: str) -> None:
    known = Supervisor(start(name))
    wanted = trained(known, TRAIN, 1)[0].parameters
    for size in SIZES:
        record = Supervisor(start(name))
        assert all(same(each.parameters, wanted) for each in trained(record, TRAIN, size, ends=ring))
        assert record.digests() == known.digests() and record.started == known.started


def test_a_sharded_job_on_a_ring_too() -> None:
    """Each rank owns parameters, and alone gets their totals."""
    shard = {"physical_batch_size": 48, "processes": 3, "shard": "optimizer"}
    known = Supervisor(start("DP-Adam"))
    wanted = trained(known, TRAIN, 1)[0].parameters
    record = Supervisor(start(JOBS["DP-Adam"] | {"runtime": shard}))
    assert all(same(each.parameters, wanted) for each in trained(record, TRAIN, 3, ends=ring))
    assert record.digests() == known.digests()
