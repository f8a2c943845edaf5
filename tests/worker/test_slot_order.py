"""Parts in the order of their slots: the sums of the same injection, joined with other parts, read in order."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.part_files import save_part
from core.parts.part_pieces import taken
from core.parts.part_reader import PartFile
from core.parts.sealed import WRAP_BYTES, DataKey
from core.parts.stored_records import SlotColumn, StoredPart
from core.privacy.slot_numbers import unstated_slots
from tests.by_night import but
from tests.worker.support import Supervisor, dense, run_child, run_thread, spec, start_of
from tests.worker.test_mapped import bits, stored
from tests.worker.test_ranks import At
from worker.data.joined import AnyPart, join
from worker.data.loaded_parts import block_of, load_stored, open_stored, records_of, users_of
from worker.data.passes import EMPTY
from worker.data.ranks import own_rows
from worker.data.secret_slots import Block, SlotOrder, Slotted, joined_slots
from worker.messages import Failed, Finished, Part, Shape
from worker.noise.secret_places import WHOLE_DATA, RandomOrder
from worker.training.batches import Batches

KEY = DataKey(bytes(range(32)), b"w" * WRAP_BYTES)
KINDS = ["dense", "sparse", "pairs", "sequences"]
SHAPE = {"records_train": 200, "records_holdout": 60, "features": 5, "outputs": 3, "sparse": False}
ROWS = unstated_slots(200)
N = 1500


def in_slots(part: StoredPart, order: NDArray[np.int64], rows: int) -> StoredPart:
    """The part, stored in the order of slots: record i in slot order[i]."""
    slots = order[: len(part.y)]
    numbers = np.argsort(slots)
    return replace(taken(part, numbers), slot=SlotColumn(slots[numbers], rows))


def on_disk(path: Path, part: StoredPart, shape: Shape, key: DataKey | None = None) -> AnyPart:
    """The part, written and opened."""
    seal = None if key is None else {"key": key.key.hex(), "wrap": key.wrap.hex()}
    document = {"path": str(path), "sha256": save_part(path, part, key), "seal": seal}
    return open_stored(Part.model_validate(document), shape)


def dense_rows(order: SlotOrder) -> list[int]:
    return list(order[:].tolist())


# --- Rows ---


@pytest.mark.parametrize("with_numbers", [False, True])
@pytest.mark.parametrize("n", [0, 1, 30, 50])
def test_slices_are_those_of_an_array(n: int, with_numbers: bool) -> None:
    """Of rows in order, and of a rank's own."""
    rng = np.random.default_rng(n)
    slots = np.sort(rng.permutation(50)[:n])
    numbers = rng.permutation(n) if with_numbers else np.arange(n)
    wanted = np.full(50, EMPTY)
    wanted[slots] = numbers
    order = SlotOrder(slots, numbers if with_numbers else None, rows=50)
    assert len(order) == 50 and dense_rows(order) == wanted.tolist()
    for start in range(0, 50, 7):
        assert order[start : start + 7].tolist() == wanted[start : start + 7].tolist()
    for rows in (1, 7, 16, 50, 60):
        for size in (2, 3, 9):
            for rank in range(size):
                own = order.own(rows, At(rank, size))
                assert dense_rows(own) == wanted[own_rows(50, rows, At(rank, size))].tolist()


def test_no_array_of_all_rows_is_made() -> None:
    """1,000 records in 525 million rows: a pass takes its own rows."""
    slots = np.sort(np.random.default_rng(0).choice(525_000_000, 1000, replace=False))
    tracemalloc.start()
    order = SlotOrder(slots, None, rows=525_000_000)
    for each in (order, order.own(4080, At(1, 2))):
        start = len(each) // 2
        assert len(each[start : start + 4080]) == 4080
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**18


def test_a_joined_record_in_the_order_of_the_file_has_a_uniform_row_of_its_block() -> None:
    """Behind a part with slots of its own: chi-square over keys, and no row of the other part."""
    fixed = np.array([1, 3, 8])
    counts, key = np.zeros(12, dtype=np.int64), np.random.default_rng(1)
    for _ in range(1200):
        order = RandomOrder(key.bytes(32))
        blocks = [Block(3, 9, lambda: fixed), Block(2, 12, None)]
        rows = joined_slots(blocks, partial(_ordered, order))[:]
        assert len(rows) == 21 and rows[:9].tolist() == [EMPTY, 0, EMPTY, 1, *[EMPTY] * 4, 2]
        counts[int(np.flatnonzero(rows == 4)[0]) - 9] += 1
    assert stats.chisquare(counts).pvalue > 1e-6


def _ordered(order: RandomOrder, rows: int, block: int) -> NDArray[np.int64]:
    return order.of(WHOLE_DATA, rows, 0, block)


def test_joined_blocks_have_orders_of_their_own() -> None:
    made: list[tuple[int, int]] = []

    def order(rows: int, block: int) -> NDArray[np.int64]:
        made.append((rows, block))
        return RandomOrder(bytes(range(32))).of(WHOLE_DATA, rows, 0, block)

    blocks = [Block(5, 40, None), Block(2, 9, lambda: np.array([0, 4])), Block(5, 40, None)]
    rows = joined_slots(blocks, order)[:]
    assert made == [(40, 0), (40, 2)] and sorted(rows[rows != EMPTY].tolist()) == list(range(12))
    assert rows[40] == 5 and rows[44] == 6
    first, last = (np.flatnonzero(part != EMPTY).tolist() for part in (rows[:40], rows[49:]))
    assert first != last
    with pytest.raises(PrivacyError, match="more records than slots"):
        joined_slots([Block(41, 40, None), *blocks], order)
    with pytest.raises(PrivacyError, match="unknown"):
        joined_slots([Block(1, None, None), *blocks], order)


# --- Passes ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["loaded", "on disk", "sealed"])
def test_passes_are_those_of_the_same_injection(tmp_path: Path, kind: str, how: str) -> None:
    """To the bit: what stands in a row, and what it is, do not depend on the order of the file."""
    part, sizes = stored(kind)
    shape = Shape.model_validate(sizes)
    order = np.random.default_rng(5).permutation(2 * N)
    part = part if part.user is None else replace(part, user=np.arange(N))
    unsorted = Slotted.injected(records_of(part), order, 2 * N)
    sorted_part: AnyPart = in_slots(part, order, 2 * N)
    if how != "loaded":
        sorted_part = on_disk(tmp_path / "p", in_slots(part, order, 2 * N), shape, KEY if how == "sealed" else None)
    rows = joined_slots([block_of(sorted_part, None)], _no_order)
    passes = list(
        zip(
            unsorted.passes(96, torch.float64),
            Slotted(records_of(sorted_part), rows).passes(96, torch.float64),
            strict=True,
        )
    )
    assert len(passes) == -(-2 * N // 96)
    for one, other in passes:
        assert torch.equal(one.present, other.present) and bits(one.records) == bits(other.records)


def test_parts_with_and_without_slots_are_joined(tmp_path: Path) -> None:
    part, sizes = stored("dense")
    shape, order = Shape.model_validate(sizes), np.random.default_rng(6).permutation(2 * N)
    first = on_disk(tmp_path / "p", in_slots(part, order, 2 * N), shape)
    for others in ([part], [in_slots(part, order, 2 * N), part], [on_disk(tmp_path / "q", part, shape)]):
        parts: list[AnyPart] = [first, *others]
        loaded: list[AnyPart] = [in_slots(part, order, 2 * N), *others]
        for each in (parts, loaded):
            whole = records_of(join(each))
            rows = joined_slots([block_of(one, 2 * N) for one in each], lambda rows, block: order)
            labels = torch.cat([p.records.labels for p in Slotted(whole, rows).passes(100, torch.float64)])
            block = torch.zeros(2 * N, dtype=torch.int64)
            block[order[:N]] = torch.from_numpy(part.y)
            assert torch.equal(labels, block.repeat(len(each)))


def test_a_pass_reads_neighbours_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, sizes = stored("dense")
    order = np.random.default_rng(7).permutation(2 * N)
    opened = on_disk(tmp_path / "p", in_slots(part, order, 2 * N), Shape.model_validate(sizes))
    read: list[int] = []
    rows_of = PartFile.rows

    def noted(file: PartFile, numbers: NDArray[np.int64]) -> StoredPart:
        read.extend(numbers.tolist())
        return rows_of(file, numbers)

    monkeypatch.setattr(PartFile, "rows", noted)
    batch = Slotted(records_of(opened), joined_slots([block_of(opened, None)], _no_order))
    list(batch.passes(96, torch.float64))
    assert read == list(range(N))


@pytest.mark.parametrize("numbers", [[1, 1], [3, 2], [-1, 2], [2, 9]])
def test_slots_that_do_not_ascend_are_damage(tmp_path: Path, numbers: list[int]) -> None:
    x, y = dense(2, 5, 3)
    part = StoredPart(x, y, slot=SlotColumn(np.array(numbers), 9))
    for each in (part, on_disk(tmp_path / "p", part, Shape.model_validate(SHAPE))):
        with pytest.raises(DataDamagedError):
            joined_slots([block_of(each, None)], _no_order)


def test_slots_of_a_part_on_disk_are_read_when_they_are_needed(tmp_path: Path) -> None:
    """A Poisson job without scores on the part needs none of them."""
    x, y = dense(50, 5, 3)
    opened = on_disk(tmp_path / "p", StoredPart(x, y, slot=SlotColumn(np.arange(50), 60)), Shape.model_validate(SHAPE))
    (tmp_path / "p").write_bytes(bytes((tmp_path / "p").stat().st_size))
    block = block_of(opened, None)
    assert (block.records, block.rows) == (50, 60)
    with pytest.raises(DataDamagedError):
        joined_slots([block], _no_order)


def _no_order(rows: int, block: int) -> NDArray[np.int64]:
    raise AssertionError("the part has slots of its own")


# --- Attempts ---

JOBS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mlp": {"model": {"kind": "mlp", "hidden": [4]}},
}


def attempt(folder: Path, start: dict[str, Any], **parts: Sequence[tuple[StoredPart, int | None]]) -> Supervisor:
    """An attempt that reads these parts, each with the rows that its block declares."""
    folder.mkdir()
    documents = {
        name: [
            {"path": str(folder / f"{name}{i}"), "sha256": save_part(folder / f"{name}{i}", part), "rows": rows}
            for i, (part, rows) in enumerate(each)
        ]
        for name, each in parts.items()
    }
    return Supervisor(start | {"parts": documents, "output_dir": str(folder)})


def told(supervisor: Supervisor) -> tuple[Any, ...]:
    assert isinstance(run_thread(supervisor).last, Finished)
    return supervisor.digests(), supervisor.metrics


@pytest.mark.parametrize("job", but(list(JOBS), lambda job: job == "mlp"))
def test_an_attempt_on_a_sorted_part_repeats_one_with_the_same_injection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """Every digest and score, to the bit: the job's own orders are set to those that the parts were stored with."""
    x, y = dense(260, 5, 3)
    train, held = StoredPart(x[:200], y[:200]), StoredPart(x[200:], y[200:])
    held_rows = unstated_slots(60)
    orders = {
        ROWS: np.random.default_rng(8).permutation(ROWS),
        held_rows: np.random.default_rng(9).permutation(held_rows),
    }
    monkeypatch.setattr(RandomOrder, "of", lambda self, step, count, part=0, block=0: orders[count])
    start = start_of(spec(**JOBS[job], sampling={"kind": "full_batch"}), SHAPE)
    one = told(attempt(tmp_path / "one", start, train=[(train, ROWS)], holdout=[(held, held_rows)]))
    monkeypatch.setattr(RandomOrder, "of", _fails)
    slots = {"train": [(in_slots(train, orders[ROWS], ROWS), ROWS)]}
    slots["holdout"] = [(in_slots(held, orders[held_rows], held_rows), held_rows)]
    assert told(attempt(tmp_path / "two", start, **slots)) == one


def _fails(*args: Any, **more: Any) -> NDArray[np.int64]:
    raise AssertionError("a part with slots of its own needs no order")


def test_a_sorted_part_keeps_the_rows_that_it_was_stored_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner stated other slots since: the part has more rows, and the job's bounds hold for the records."""
    x, y = dense(200, 5, 3)
    part, rows = StoredPart(x, y), ROWS + 500
    seen: list[int] = []
    use = Batches._use

    def noted(self: Batches, train: Any) -> None:
        use(self, train)
        seen.append(len(self._full))

    monkeypatch.setattr(Batches, "_use", noted)
    start = start_of(spec(evaluation=None, sampling={"kind": "full_batch"}), SHAPE | {"records_holdout": 0})
    order = np.random.default_rng(1).permutation(rows)
    told(attempt(tmp_path / "a", start, train=[(in_slots(part, order, rows), ROWS)]))
    assert seen == [rows]


def test_a_sorted_and_an_unsorted_block_train_in_the_sandbox(tmp_path: Path) -> None:
    """Also by two processes, which reach the same states."""
    x, y = dense(200, 5, 3)
    first, second = StoredPart(x[:120], y[:120]), StoredPart(x[120:], y[120:])
    sorted_part = in_slots(first, np.random.default_rng(2).permutation(300), 300)
    digests = []
    for processes in (1, 2):
        job = spec(evaluation=None, sampling={"kind": "full_batch"}, runtime={"processes": processes})
        start = start_of(job, SHAPE | {"records_holdout": 0}) | {"processes": processes}
        supervisor = attempt(tmp_path / str(processes), start, train=[(sorted_part, 300), (second, ROWS - 300)])
        ended = run_child(supervisor)
        assert isinstance(ended.last, Finished) and ended.printed == b""
        digests.append(supervisor.digests())
    assert digests[0] == digests[1]
    missing = attempt(tmp_path / "missing", start, train=[(sorted_part, 300), (second, None)])
    ended = run_thread(missing)
    assert isinstance(ended.last, Failed) and ended.last.code == "privacy-invariant"


def test_users_and_poisson_batches_do_not_depend_on_slots(tmp_path: Path) -> None:
    """Users have the numbers that they had in the file."""
    part, _ = stored("dense")
    part = replace(part, user=np.arange(N) // 3)
    order = np.random.default_rng(3).permutation(2 * N)
    sorted_part = in_slots(part, order, 2 * N)
    users = users_of(sorted_part, None)
    assert users is not None and len(users) == N // 3
    assert sorted_part.user is not None and set(sorted_part.user[users.records(np.array([7]))].tolist()) == {7}
    named = Part(path=str(tmp_path / "p"), sha256=save_part(tmp_path / "p", sorted_part))
    shape = Shape.model_validate(stored("dense")[1])
    for load in (load_stored, partial(open_stored, again=True)):
        again = users_of(load(named, shape), None)
        assert again is not None and np.array_equal(again.records(np.arange(500)), users.records(np.arange(500)))


def test_each_part_and_block_has_an_order_of_its_own() -> None:
    """Addresses of orders differ: of the training part, the hold-out, and each of their blocks."""
    order = RandomOrder(bytes(range(32)))
    found = {order.of(WHOLE_DATA, 40, part, block).tobytes() for part in (0, 1) for block in range(4)}
    assert len(found) == 8
