"""Several parts read as one: to the bit the passes, users and models of one part that holds all records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.parts.part_files import save_part
from core.parts.part_pieces import cut, joined, taken
from core.parts.stored_records import StoredPart, Texts
from tests.by_night import but
from tests.worker.support import (
    Supervisor,
    dense,
    records,
    run_child,
    run_direct,
    run_thread,
    spec,
    start_of,
)
from tests.worker.test_extractors import write_extractor
from tests.worker.test_mapped import N, bits, stored
from tests.worker.test_users import user_start
from worker.data.joined import AnyPart, Joined, Loaded, join
from worker.data.loaded_parts import MappedPart, open_stored, records_of, users_of
from worker.data.mapped import MappedRecords
from worker.data.records import clipped_sum
from worker.data.sequence_records import item_counts
from worker.messages import Finished, Part, Shape

CUTS = {"one": [N], "two": [700, N], "three, one empty": [700, 700, N], "empty first": [0, N], "empty last": [N, N]}
KINDS = ["dense", "sparse", "pairs", "sequences"]


def pieces(part: StoredPart, ends: Sequence[int]) -> list[StoredPart]:
    """A part cut at these records."""
    return [cut(part, start, end) for start, end in zip([0, *ends], ends, strict=False)]


def apart(part: StoredPart, ends: Sequence[int], folder: Path | None, shape: Shape) -> AnyPart:
    """The pieces, in memory or in a folder on disk, joined."""
    found: list[AnyPart] = []
    for number, each in enumerate(pieces(part, ends)):
        if folder is None:
            found.append(each)
            continue
        path = folder / str(number)
        found.append(open_stored(Part(path=str(path), sha256=save_part(path, each)), shape))
    return join(found)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_joined_parts_have_the_passes_of_one(tmp_path: Path, on_disk: bool, kind: str, cuts: str) -> None:
    part, sizes = stored(kind)
    shape = Shape.model_validate(sizes)
    one = records_of(part)
    several = records_of(apart(part, CUTS[cuts], tmp_path if on_disk else None, shape))
    assert isinstance(several, MappedRecords) is on_disk and len(several) == len(one) == N
    drawn = np.random.default_rng(1).permutation(N)[:333]
    for a, b in ((one, several), (one.select(drawn), several.select(drawn))):
        for dtype in (torch.float32, torch.float64):
            passes = list(zip(a.passes(480, dtype), b.passes(480, dtype), strict=True))
            assert all(torch.equal(x.present, y.present) and bits(x.records) == bits(y.records) for x, y in passes)
    assert torch.equal(one.select(drawn).labels, several.select(drawn).labels)
    assert len(list(several.select(np.empty(0, dtype=np.int64)).passes(48, torch.float64))) == 0
    if kind == "dense":
        assert torch.equal(clipped_sum(one, 60, 3.0), clipped_sum(several, 60, 3.0))
    if kind == "sequences":
        assert torch.equal(item_counts(one, 60, 5), item_counts(several, 60, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_memory_and_on_disk_join(tmp_path: Path, kind: str) -> None:
    """A part of an earlier release is always in memory."""
    part, sizes = stored(kind)
    first, second = pieces(part, [700, N])
    path = tmp_path / "second"
    mapped = open_stored(Part(path=str(path), sha256=save_part(path, second)), Shape.model_validate(sizes))
    assert isinstance(mapped, MappedPart)
    passes = zip(
        records_of(part).passes(96, torch.float64),
        records_of(join([first, mapped])).passes(96, torch.float64),
        strict=True,
    )
    assert all(bits(one.records) == bits(other.records) for one, other in passes)


def test_a_row_beyond_the_last_part_is_an_error() -> None:
    part, _ = stored("dense")
    several = Joined([Loaded(part), Loaded(cut(part, 0, 0))])
    for wrong in ([N], [3, N]):
        with pytest.raises(IndexError):
            several.rows(np.array(wrong))


def test_records_are_taken_in_any_order_and_more_than_once() -> None:
    numbers = np.array([5, 2, 5, 1499, 0])
    for kind in KINDS:
        part, _ = stored(kind)
        expected = joined([cut(part, at, at + 1) for at in numbers.tolist()])
        for one, other in ((taken(part, numbers), expected), (taken(part, numbers[:0]), cut(part, 0, 0))):
            passes = zip(
                records_of(one).passes(2, torch.float64), records_of(other).passes(2, torch.float64), strict=True
            )
            assert all(bits(a.records) == bits(b.records) for a, b in passes)
            assert (one.user is None) or one.user.tolist() == other.user.tolist()  # type: ignore[union-attr]
    texts = StoredPart(Texts.of(["a", "", "bcd"]), np.arange(3))
    found = taken(texts, np.array([2, 0, 2])).x
    assert isinstance(found, Texts) and list(found.texts()) == ["bcd", "a", "bcd"]


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_users_of_two_parts_stay_apart(tmp_path: Path, on_disk: bool) -> None:
    """Each part numbers its own users from 0 on. No user is in two parts."""
    part, sizes = stored("dense")
    shape, whole = Shape.model_validate(sizes), np.arange(N) // 3
    own = np.concatenate([whole[:600], whole[600:] - whole[600]])
    several = users_of(apart(replace(part, user=own), [600, 600, N], tmp_path if on_disk else None, shape), None)
    one = users_of(replace(part, user=whole), None)
    assert one is not None and several is not None and len(one) == len(several) == N // 3
    everyone = np.arange(N // 3)
    assert several.records(everyone).tolist() == one.records(everyone).tolist()


SHAPE = {"records_train": 400, "records_holdout": 100, "features": 5, "outputs": 3, "sparse": False}
POISSON = {
    "sampling": {"kind": "poisson", "expected_batch_size": 64},
    "optimizer": {"kind": "dp_sgd", "learning_rate": 0.5},
}
JOBS: dict[str, dict[str, Any]] = {
    "full batch": {},
    "poisson": POISSON,
    "cyclic": {"sampling": {"kind": "cyclic", "batches": 5}, "optimizer": POISSON["optimizer"]},
    "mlp": {"model": {"kind": "mlp", "hidden": [4]}},
}


def named(folder: Path, parts: Sequence[StoredPart]) -> list[dict[str, str]]:
    folder.mkdir()
    return [
        {"path": str(folder / str(number)), "sha256": save_part(folder / str(number), each)}
        for number, each in enumerate(parts)
    ]


def attempt(folder: Path, start: dict[str, Any], train: Sequence[StoredPart], held: Sequence[StoredPart]) -> Supervisor:
    """An attempt that reads these parts."""
    folder.mkdir()
    parts = {"train": named(folder / "train", train), "holdout": named(folder / "holdout", held)}
    return Supervisor(start | {"parts": parts, "output_dir": str(folder)})


@pytest.mark.parametrize("job", but(list(JOBS), lambda job: job in ("cyclic", "mlp")))
def test_two_parts_train_the_model_of_one(tmp_path: Path, job: str) -> None:
    """Every digest, score and byte of the model is the same; also where a replay continues with the other shape."""
    x, y = dense(500, 5, 3)
    part, held = StoredPart(x[:400], y[:400]), StoredPart(x[400:], y[400:])
    start = start_of(spec(**JOBS[job]), SHAPE)
    found = []
    for name, ends in (("one", [400]), ("three", [150, 150, 400])):
        supervisor = attempt(tmp_path / name, start, pieces(part, ends), pieces(held, [e // 4 for e in ends]))
        ended = run_thread(supervisor)
        assert isinstance(ended.last, Finished)
        model = (tmp_path / name / "model.safetensors").read_bytes()
        found.append((supervisor.digests(), supervisor.metrics, model))
    assert found[0] == found[1] and found[0][1]
    again = Supervisor(supervisor.start, segments=supervisor.segments, started=supervisor.started)
    again.start = again.start | {"parts": attempt(tmp_path / "again", start, [part], [held]).start["parts"]}
    assert isinstance(run_thread(again).last, Finished) and again.resalts == 0, "the replay repeats every bit"


def test_users_of_two_parts_train_the_model_of_one(tmp_path: Path) -> None:
    x, y = dense(150, 5, 3)
    owners = np.repeat(np.arange(50), 3)
    start = user_start(sampling={"kind": "poisson", "expected_batch_size": 8}, length={"steps": 20})
    found = []
    for name, ends in (("one", [120]), ("two", [60, 120])):
        parts = [
            replace(each, user=each.user - each.user[0])  # type: ignore[operator,index]
            for each in pieces(StoredPart(x[:120], y[:120], owners[:120]), ends)
        ]
        supervisor = attempt(tmp_path / name, start, parts, [StoredPart(x[120:], y[120:], owners[120:])])
        assert isinstance(run_thread(supervisor).last, Finished)
        found.append((supervisor.digests(), supervisor.metrics))
    assert found[0] == found[1]


def test_ranks_read_joined_parts_inside_their_sandbox(tmp_path: Path) -> None:
    """Two processes on three parts repeat the digests of one process on one part."""
    x, y = dense(500, 5, 3)
    part, held = StoredPart(x[:400], y[:400]), StoredPart(x[400:], y[400:])
    alone = Supervisor(start_of(spec(**POISSON), SHAPE))
    run_direct(alone, records(part.x, part.y), records(held.x, held.y))  # type: ignore[arg-type]
    start = start_of(spec(**POISSON, runtime={"processes": 2}), SHAPE) | {"processes": 2}
    together = attempt(tmp_path / "ranks", start, pieces(part, [1, 150, 400]), pieces(held, [0, 100]))
    ended = run_child(together)
    assert isinstance(ended.last, Finished) and ended.printed == b""
    assert together.digests() == alone.digests()


def test_features_are_cached_for_each_part_where_it_says(tmp_path: Path) -> None:
    """A block's features lie in its own folder, and go with it."""
    texts = ["a good film" if i % 2 else "bad films" for i in range(20)]
    whole = StoredPart(Texts.of(texts), np.arange(20) % 2)
    shape = {"records_train": 20, "records_holdout": 0, "features": 1, "outputs": 2, "sparse": False}
    extractor = {"name": "tiny", "sha256": write_extractor(tmp_path / "e"), "features": 8}
    start = start_of(spec(model={"kind": "linear", "extractor": extractor}, evaluation=None), shape)
    start |= {"features": {"kind": "text", "column": "t"}, "extractor_dir": str(tmp_path / "e")}
    digests = []
    for name, ends in (("one", [20]), ("two", [7, 20])):
        supervisor = attempt(tmp_path / name, start, pieces(whole, ends), [])
        for number, each in enumerate(supervisor.start["parts"]["train"]):
            each["cache_dir"] = str(tmp_path / name / f"features {number}")
        assert isinstance(run_child(supervisor).last, Finished)
        assert all(len(list((tmp_path / name / f"features {k}").glob("*.arrow"))) == 1 for k in range(len(ends)))
        digests.append(supervisor.digests())
    assert digests[0] == digests[1]
