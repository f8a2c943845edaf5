"""Records that stay on disk: to the bit the same passes, sums and models as of records in memory."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from core.contracts import memory
from core.contracts.memory import in_memory
from core.contracts.table import TableFeatures
from core.errors import PrivacyError
from core.parts import read_ahead
from core.parts.damage import DataDamagedError
from core.parts.layout import Index
from core.parts.part_files import load_part, save_part
from core.parts.part_reader import PartFile
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart
from core.parts.table_cells import scaled
from core.privacy.slot_numbers import unstated_slots
from tests.by_night import but
from tests.worker.support import (
    Supervisor,
    dense,
    plan_of,
    run_child,
    run_direct,
    run_thread,
    spec,
    start_of,
    stored_part,
)
from worker.attempt import part_loading
from worker.data.joined import join
from worker.data.loaded_parts import open_stored, records_of, users_of
from worker.data.mapped import MappedDense, MappedRecords
from worker.data.records import DenseRecords, clipped_sum
from worker.data.sequence_records import SequenceRecords, item_counts
from worker.messages import Failed, Finished, Part, Shape

OLD = Path(__file__).parents[1] / "formats" / "old_parts"
N = 1500
LARGE = 1_130_000  # declared records: with these the parts stay on disk, however many there are


def stored(kind: str, seed: int = 0) -> tuple[StoredPart, dict[str, Any]]:
    """A part of a kind with its public shape; some records are not finite."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, N)
    ends, total = np.cumsum(lengths, dtype=np.int64), int(lengths.sum())
    shape = {"records_train": N, "records_holdout": 0, "features": 60, "outputs": 3, "sparse": kind != "dense"}
    y = rng.integers(0, 3, N)
    if kind == "dense":
        x = rng.standard_normal((N, 60)).astype(np.float32)
        x[7, 3], x[1400, 0] = np.nan, np.inf
        return StoredPart(x, y), shape
    if kind == "sparse":
        columns, values = rng.integers(0, 60, total).astype(np.int32), rng.standard_normal(total).astype(np.float32)
        values[5] = np.nan
        return StoredPart(Csr(np.append(0, ends), columns, values, (N, 60)), y), shape
    if kind == "pairs":
        users, items = (rng.integers(0, size, N).astype(np.int32) for size in (20, 40))
        return StoredPart(Pairs(users, items, (20, 40)), rng.uniform(1, 5, N)), shape | {"outputs": 1}
    items = rng.integers(0, 60, total).astype(np.int32)
    return StoredPart(Sequences(items, ends, 60), np.zeros(N), np.arange(N)), shape | {"outputs": 1}


def saved(path: Path, kind: str) -> tuple[Part, Shape]:
    """A part of a kind, on disk."""
    part, shape = stored(kind)
    return Part(path=str(path), sha256=save_part(path, part)), Shape.model_validate(shape)


def both(folder: Path, kind: str) -> tuple[Any, Any]:
    """The same part, on disk and in memory."""
    named, shape = saved(folder / kind, kind)
    mapped = records_of(open_stored(named, shape))
    assert isinstance(mapped, MappedRecords)
    return mapped, records_of(load_part(named.path, named.sha256))


def bits(piece: Any) -> list[bytes]:
    """All numbers of a pass's records."""
    if isinstance(piece, SequenceRecords):
        tensors = [*piece.windows(4), piece.padded(7), piece.labels]
    elif hasattr(piece, "users"):
        tensors = list(piece.tensors)
    else:
        tensors = [piece.dense(torch.float64), piece.private_norms, piece.labels]
    return [bytes(str((each.dtype, each.shape)), "ascii") + each.numpy().tobytes() for each in tensors]


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs", "sequences"])
@pytest.mark.parametrize("rows", but([1, 48, 480], lambda rows: rows > 1))
def test_passes_from_disk_are_those_from_memory(tmp_path: Path, kind: str, rows: int) -> None:
    mapped, loaded = both(tmp_path, kind)
    drawn = np.random.default_rng(1).permutation(N)[:333]
    for one, other in ((mapped, loaded), (mapped.select(drawn), loaded.select(drawn))):
        assert len(one) == len(other)
        for dtype in (torch.float32, torch.float64):
            passes = list(zip(one.passes(rows, dtype), other.passes(rows, dtype), strict=True))
            assert all(
                torch.equal(a.present, b.present) and bits(a.records) == bits(b.records) for a, b in passes[-40:]
            )
    assert torch.equal(mapped.select(drawn).labels, loaded.select(drawn).labels)
    assert len(list(mapped.select(np.empty(0, dtype=np.int64)).passes(rows, torch.float64))) == 0


@pytest.mark.parametrize("features", [1, 3, 17, 64, 700])
@pytest.mark.parametrize("rows", [1, 48, 144])
def test_a_norm_does_not_depend_on_the_records_that_it_is_computed_with(features: int, rows: int) -> None:
    x = torch.from_numpy(np.random.default_rng(features).standard_normal((200, features)).astype(np.float32))
    mean = torch.linspace(-1, 1, features, dtype=torch.float64)
    for m in (None, mean):
        whole = DenseRecords(x, torch.zeros(200), m).private_norms
        pieces = [DenseRecords(each, torch.zeros(len(each)), m).private_norms for each in x.split(rows)]
        assert torch.equal(torch.cat(pieces), whole)


def test_what_precedes_the_first_step_is_the_same(tmp_path: Path) -> None:
    mapped, loaded = both(tmp_path, "dense")
    assert isinstance(mapped, MappedDense)
    assert torch.equal(clipped_sum(mapped, 60, 3.0), clipped_sum(loaded, 60, 3.0))
    mean = torch.linspace(-1, 1, 60, dtype=torch.float64)
    pairs = zip(mapped.less(mean).passes(96, torch.float32), loaded.less(mean).passes(96, torch.float32), strict=True)
    assert all(bits(one.records) == bits(other.records) for one, other in pairs)
    sequences, in_memory_too = both(tmp_path, "sequences")
    assert torch.equal(item_counts(sequences, 60, 5), item_counts(in_memory_too, 60, 5))


def test_a_tables_cells_become_the_same_features(tmp_path: Path) -> None:
    columns = [
        {"name": "a", "kind": "number", "range": [-1, 1], "missing": "flag"},
        {"name": "b", "kind": "category", "values": ["u", "v"], "unknown": "other"},
    ]
    features = TableFeatures.model_validate({"kind": "table", "columns": columns})
    cells = np.random.default_rng(0).uniform(-2, 2, (N, 2)).astype(np.float32).round(1)
    cells[:, 1] = np.arange(N) % 3 - 1  # -1 is a value that is not declared
    cells[3, 0] = np.nan
    part = StoredPart(cells, np.zeros(N))
    named = Part(path=str(tmp_path / "p"), sha256=save_part(tmp_path / "p", part))
    sizes = {"features": features.width, "outputs": 1, "sparse": False}
    shape = Shape.model_validate({"records_train": N, "records_holdout": 0} | sizes)
    mapped = records_of(open_stored(named, shape, lambda found: scaled(found, features)))
    loaded = records_of(scaled(part, features))
    pairs = zip(mapped.passes(96, torch.float64), loaded.passes(96, torch.float64), strict=True)
    assert all(bits(one.records) == bits(other.records) for one, other in pairs)
    assert isinstance(mapped, MappedDense) and isinstance(loaded, DenseRecords)
    assert torch.equal(clipped_sum(mapped, features.width, 1.0), clipped_sum(loaded, features.width, 1.0))


POISSON = {
    "sampling": {"kind": "poisson", "expected_batch_size": 64},
    "optimizer": {"kind": "dp_sgd", "learning_rate": 0.5},
}
SHAPE = {"records_train": 400, "records_holdout": 100, "features": 5, "outputs": 3, "sparse": False}


@pytest.mark.parametrize("changes", [{}, POISSON], ids=["full batch", "poisson"])
@pytest.mark.parametrize(
    ("model", "sparse"),
    [("linear", False), ("linear", True), ("mlp", False)],
    ids=["linear, dense", "linear, sparse", "mlp, dense"],
)
def test_a_model_trained_from_disk_is_the_same(
    tmp_path: Path, changes: dict[str, Any], sparse: bool, model: str
) -> None:
    """Digests of every state are equal. Sparse full batches use another product where passes are kept: those agree
    within rounding."""
    job = spec(**changes, **({"model": {"kind": "mlp", "hidden": [4]}} if model == "mlp" else {}))
    start = start_of(job, SHAPE | {"sparse": sparse})
    x, y = dense(500, 5, 3)
    named = {
        name: Part.model_validate(stored_part(tmp_path / name, x[at], y[at], sparse=sparse))
        for name, at in (("train", slice(400)), ("holdout", slice(400, 500)))
    }
    shape, digests, scores, models = Shape.model_validate(start["shape"]), [], [], []
    for opened in (open_stored, lambda part, _: load_part(part.path, part.sha256)):
        supervisor = Supervisor(start)
        outcome, _ = run_direct(supervisor, *(records_of(opened(named[name], shape)) for name in ("train", "holdout")))
        models.append(outcome.parameters)
        digests.append(supervisor.digests())
        scores.append(supervisor.metrics)
    if sparse and not changes:  # the order of additions differs in the last bit
        assert digests[0].keys() == digests[1].keys() and scores[0] == scores[1]
        for name, one in models[0].items():
            assert torch.allclose(one, models[1][name], rtol=1e-9, atol=1e-12)
    else:
        assert digests[0] == digests[1] and scores[0] == scores[1]


def large(folder: Path, job: dict[str, Any], declared: int = LARGE) -> Supervisor:
    """An attempt on 500 records, of which this many are declared."""
    x, y = dense(500, 60, 3)
    parts = {
        "train": stored_part(folder / "train", x[:400], y[:400]),
        "holdout": stored_part(folder / "holdout", x[400:], y[400:]),
    }
    (folder / "out").mkdir()
    shape = {"records_train": declared, "records_holdout": 100, "features": 60, "outputs": 3, "sparse": False}
    return Supervisor(start_of(job, shape, parts=parts, output_dir=folder / "out"))


@pytest.mark.parametrize("changes", [{}, {"sampling": {"kind": "poisson", "expected_batch_size": 113_000}}])
def test_an_attempt_reads_from_disk_inside_its_sandbox(tmp_path: Path, changes: dict[str, Any]) -> None:
    supervisor = large(tmp_path, spec(**changes, length={"steps": 3}))
    plan = plan_of(supervisor.start)
    assert not plan.in_memory
    ended = run_child(supervisor)
    assert isinstance(ended.last, Finished) and ended.printed == b""


def test_a_chunk_that_is_damaged_ends_the_attempt_when_it_is_read(tmp_path: Path) -> None:
    supervisor = large(tmp_path, spec(evaluation=None))
    path = Path(supervisor.start["parts"]["train"][0]["path"])
    row = Index.read(path, supervisor.start["parts"]["train"][0]["sha256"]).chunks[0]
    content = bytearray(path.read_bytes())
    content[int(row["offset"]) + int(row["length"]) // 2] ^= 1
    path.write_bytes(content)
    ended = run_child(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged" and ended.printed == b""


def test_records_that_do_not_fit_the_data_set_are_damage(tmp_path: Path) -> None:
    part, shape = stored("dense")
    part.y[9] = 3
    named = Part(path=str(tmp_path / "p"), sha256=save_part(tmp_path / "p", part))
    mapped = records_of(open_stored(named, Shape.model_validate(shape)))
    with pytest.raises(DataDamagedError):
        list(mapped.passes(48, torch.float64))


def test_users_of_a_part_on_disk(tmp_path: Path) -> None:
    part, shape = stored("dense")
    part = StoredPart(part.x, part.y, np.arange(N) // 2)
    named = Part(path=str(tmp_path / "p"), sha256=save_part(tmp_path / "p", part))
    opened = open_stored(named, Shape.model_validate(shape))
    users = users_of(opened, None)
    assert users is not None and users.records(np.array([3])).tolist() == [6, 7]
    of_sequences, shape = stored("sequences")
    named = Part(path=str(tmp_path / "s"), sha256=save_part(tmp_path / "s", of_sequences))
    assert users_of(open_stored(named, Shape.model_validate(shape)), None) is None, "a sequence is a whole user"
    mechanism = plan_of(start_of(spec(), SHAPE)).mechanism
    with pytest.raises(PrivacyError, match="another unit"):
        users_of(opened, mechanism)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_next_pass_is_announced_while_one_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And the records are the same to the bit, in one part and in several."""
    mapped, loaded = both(tmp_path, kind)
    told: list[NDArray[np.int64]] = []
    announce = PartFile.announce

    def noted(file: PartFile, numbers: NDArray[np.int64]) -> None:
        told.append(numbers)
        announce(file, numbers)

    monkeypatch.setattr(PartFile, "announce", noted)
    drawn = np.random.default_rng(1).permutation(N)[:100]
    made = iter(mapped.select(drawn).passes(48, torch.float64))
    wanted = iter(loaded.select(drawn).passes(48, torch.float64))
    for passes in (2, 3, 3):  # announced once this pass is there; after the last, none
        assert bits(next(made).records) == bits(next(wanted).records)
        assert [each.tolist() for each in told] == [drawn[48 * k : 48 * k + 48].tolist() for k in range(passes)]
    part = join([open_stored(named, shape) for named, shape in [saved(tmp_path / "again", kind)] * 2])
    told.clear()
    next(iter(records_of(part).select(np.array([N + 3, 5, N + 1])).passes(48, torch.float64)))
    assert [each.tolist() for each in told] == [[5], [3, 1]], "each part its own"


def test_data_that_may_outgrow_the_cache_are_announced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By public sizes alone. The model is the same to the bit."""
    digests, told = [], []
    announced: list[int] = []
    advise = os.posix_fadvise

    def counted(descriptor: int, start: int, length: int, advice: int) -> None:
        announced.append(start)
        advise(descriptor, start, length, advice)

    monkeypatch.setattr(read_ahead.os, "posix_fadvise", counted)
    monkeypatch.setattr(memory, "IN_MEMORY_BYTES", 0)
    job = spec(sampling={"kind": "poisson", "expected_batch_size": 40}, length={"steps": 12}, evaluation=None)
    bound = unstated_slots(400) * 4 * 60
    for name, cache in (("fits", bound), ("does not", bound - 1)):
        monkeypatch.setattr(part_loading, "cacheable_bytes", lambda cache=cache: cache)
        (tmp_path / name).mkdir()
        supervisor = large(tmp_path / name, job, 400)
        announced.clear()
        assert isinstance(run_thread(supervisor).last, Finished)
        digests.append(supervisor.digests())
        told.append(len(announced))
    assert digests[0] == digests[1] and told[0] == 1 and told[1] >= 12


def test_public_sizes_decide_what_stays_on_disk() -> None:
    assert in_memory(1_400_064, 400) is False and in_memory(600_064, 400) is True
    full = plan_of(start_of(spec(), SHAPE | {"records_train": LARGE}))
    sampled = plan_of(start_of(spec(**POISSON), SHAPE | {"records_train": LARGE}))
    assert (full.in_memory, sampled.in_memory) == (True, True), "five features: 45 MB"
    on_disk = plan_of(start_of(spec(), SHAPE | {"records_train": LARGE, "sparse": True}))
    for plan, whole in ((full, True), (on_disk, False)):
        for fewer in (plan.numerics.of_rows(1), plan.numerics.of_rows(48)):
            assert replace(plan, numerics=fewer).in_memory is whole, "an attempt with smaller passes decides the same"
    wide = plan_of(start_of(spec(), SHAPE | {"records_train": LARGE, "features": 60}))
    assert (wide.in_memory, wide.numerics.sums) == (False, "float32")


@pytest.mark.parametrize("limit", [2**29, 0], ids=["in memory", "on disk"])
@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, {"kind": "poisson", "expected_batch_size": 6}])
def test_an_npz_part_of_before_trains_to_the_same_bits(
    tmp_path: Path, limit: int, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part was written by the release before Arrow. Its attempt, and one on the same records in Arrow, agree."""
    old = OLD / "dense.npz"
    sha256 = json.loads((OLD / "sha256.json").read_text())["dense"]
    again = tmp_path / "train.arrow"
    parts = [
        {"path": str(old), "sha256": sha256},
        {"path": str(again), "sha256": save_part(again, load_part(old, sha256))},
    ]
    monkeypatch.setattr(memory, "IN_MEMORY_BYTES", limit)
    shape = {"records_train": 9, "records_holdout": 0, "features": 4, "outputs": 3, "sparse": False}
    digests = []
    for number, part in enumerate(parts):
        out = tmp_path / str(number)
        out.mkdir()
        job = spec(evaluation=None, sampling=sampling, length={"steps": 20})
        supervisor = Supervisor(start_of(job, shape, parts={"train": part}, output_dir=out))
        assert plan_of(supervisor.start).in_memory is (limit > 0)
        ended = run_thread(supervisor)
        assert isinstance(ended.last, Finished)
        digests.append(supervisor.digests())
    assert digests[0] == digests[1] and max(digests[0]) == 20
