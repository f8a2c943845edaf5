"""Attempts on sealed parts: to the bit those on plain ones, in memory, on disk, by an extractor, in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.extractor import Words
from core.parts.layout import index_path
from core.parts.part_files import save_part
from core.parts.sealed import WRAP_BYTES, DataKey, header_of
from core.parts.stored_records import StoredPart, Texts
from tests.by_night import but
from tests.worker.support import Supervisor, dense, run_child, run_thread, spec, start_of
from tests.worker.test_mapped import LARGE, N, bits, stored
from tests.worker.test_words import TEXTS, attempt
from worker.data.loaded_parts import open_stored, records_of
from worker.data.mapped import MappedRecords
from worker.extractors.features import Kept, cached
from worker.extractors.words import hashed_words
from worker.messages import Failed, Finished, Part, SealedBy, Shape

KEY = DataKey(bytes(range(32)), b"w" * WRAP_BYTES)
SEAL = SealedBy(key=KEY.key.hex(), wrap=KEY.wrap.hex())


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs", "sequences"])
@pytest.mark.parametrize("rows", but([1, 48, 480], lambda rows: rows > 1))
def test_passes_from_a_sealed_part_are_those_from_a_plain_one(tmp_path: Path, kind: str, rows: int) -> None:
    part, shape = stored(kind)
    found = []
    for name, key, seal in (("plain", None, None), ("sealed", KEY, SEAL)):
        named = Part(path=str(tmp_path / name), sha256=save_part(tmp_path / name, part, key), seal=seal)
        records = records_of(open_stored(named, Shape.model_validate(shape)))
        assert isinstance(records, MappedRecords)
        drawn = np.random.default_rng(1).permutation(N)[:333]
        passes = (*list(records.passes(rows, torch.float32))[-40:], *records.select(drawn).passes(rows, torch.float64))
        found.append([(each.present.tolist(), bits(each.records)) for each in passes])
    assert found[0] == found[1]


def started(folder: Path, key: DataKey | None, declared: int, **changes: Any) -> Supervisor:
    """An attempt on 500 records; each has the same keys."""
    folder.mkdir()
    x, y = dense(500, 60, 3)
    parts = {}
    for name, at in (("train", slice(400)), ("holdout", slice(400, 500))):
        sha256 = save_part(folder / name, StoredPart(x[at], y[at]), key)
        parts[name] = {"path": str(folder / name), "sha256": sha256}
        if key is not None:
            parts[name]["seal"] = SEAL.model_dump()
    (folder / "out").mkdir()
    shape = {"records_train": declared, "records_holdout": 100, "features": 60, "outputs": 3, "sparse": False}
    return Supervisor(start_of(spec(**changes), shape, parts=parts, output_dir=folder / "out"))


@pytest.mark.parametrize("declared", [400, LARGE], ids=["in memory", "on disk"])
def test_a_model_is_the_same_to_the_bit(tmp_path: Path, declared: int) -> None:
    models, digests = [], []
    for name, key in (("plain", None), ("sealed", KEY)):
        supervisor = started(tmp_path / name, key, declared, length={"steps": 3})
        ended = run_child(supervisor)
        assert isinstance(ended.last, Finished) and ended.printed == b""
        models.append((tmp_path / name / "out" / "model.safetensors").read_bytes())
        digests.append((supervisor.digests(), supervisor.metrics))
    assert models[0] == models[1] and digests[0] == digests[1]


def test_without_its_key_or_with_a_changed_chunk_an_attempt_reads_nothing(tmp_path: Path) -> None:
    supervisor = started(tmp_path / "a", KEY, 400)
    path = Path(supervisor.start["parts"]["train"][0]["path"])
    supervisor.start["parts"]["train"][0]["seal"] = None
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged"
    supervisor = started(tmp_path / "b", KEY, LARGE)
    path = Path(supervisor.start["parts"]["train"][0]["path"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged"


def test_features_are_sealed_as_their_part_is(tmp_path: Path) -> None:
    weights = []
    for name, key in (("plain", None), ("sealed", KEY)):
        supervisor = attempt(tmp_path / name, at_registration=False, private=True)
        for of, n in (("train", 20), ("holdout", 8)) if key else ():
            for path in (tmp_path / name / of, index_path(tmp_path / name / of)):
                path.unlink()
            save_part(tmp_path / name / of, StoredPart(Texts.of(TEXTS[:n]), np.arange(n) % 2), key)
            supervisor.start["parts"][of][0]["seal"] = SEAL.model_dump()
        assert isinstance(run_thread(supervisor).last, Finished)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
        made = [path for path in (tmp_path / name / "features").iterdir() if path.suffix != ".lock"]
        assert len(made) == 4 and {header_of(path) is not None for path in made} == {key is not None}
    assert weights[0] == weights[1]


def test_sealed_features_are_made_once_and_anew_under_another_key(tmp_path: Path) -> None:
    part, made = StoredPart(Texts.of(TEXTS), np.arange(20) % 2), []
    (tmp_path / "cache").mkdir()

    def features(key: DataKey, *, on_disk: bool = False) -> Any:
        kept = Kept(on_disk=on_disk, seal=key)
        return cached(part, "how", tmp_path / "cache", lambda _: once(key), storage=kept)

    def once(key: DataKey) -> Iterator[StoredPart]:
        made.append(key)
        yield part

    for on_disk in (False, True):
        features(KEY, on_disk=on_disk)
    assert made == [KEY], "the second time it was there"
    other = DataKey(bytes(32), KEY.wrap)
    features(other)
    assert made == [KEY, other], "a key that is gone opens nothing: they are made again"
    hashed = hashed_words(part, "1" * 64, "2" * 64, Words(buckets=64), tmp_path / "cache", storage=Kept(seal=KEY))
    assert isinstance(hashed, StoredPart)
    assert all(header_of(path) is not None for path in (tmp_path / "cache").glob("*.arrow*"))
