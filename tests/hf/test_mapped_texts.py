"""Texts of a language model stay on disk where their tokens are too many for memory, by public sizes alone: the model
is the same to the bit, and no more than a piece of the texts is ever in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.catalogue.model_folders import resolved
from core.contracts import memory
from core.contracts.job_spec import JobSpec
from core.parts.part_files import save_part
from core.parts.sealed import WRAP_BYTES, DataKey, header_of
from core.parts.stored_records import Sequences, StoredPart, Texts
from tests.hf.test_norms import LENGTH, model
from tests.worker.support import Supervisor, plan_of, run_thread, spec, start_of
from worker.attempt import part_loading
from worker.data.loaded_parts import MappedPart
from worker.messages import Finished, Part
from worker.models.hf.tokens import Tokens

MODELS = {"gpt2": 1, "roberta": 3}
TEXTS = 300  # more than a piece has
KEY = DataKey(bytes(range(32)), b"w" * WRAP_BYTES)


def texts(count: int, outputs: int, words: int = 6) -> StoredPart:
    x = Texts.of([" ".join(f"w{(row * word) % 25}" for word in range(row % words)) for row in range(count)])
    y = np.arange(count) % outputs if outputs > 1 else np.zeros(count)
    return StoredPart(x, y)


def start_for(
    root: Path, kind: str, folder: Path, *, records: int = TEXTS, key: DataKey | None = None
) -> dict[str, Any]:
    """An attempt of few steps on texts."""
    outputs = MODELS[kind]
    asked = {"kind": "hf", "path": kind, "tuning": "lora", "max_length": LENGTH}
    job = spec(
        model=asked,
        evaluation=None,
        length={"steps": 2},
        sampling={"kind": "poisson", "expected_batch_size": 3},
        optimizer={"kind": "dp_sgd", "learning_rate": 0.5},
    )
    job["model"] = resolved(JobSpec.model_validate(job).model, root, outputs).model_dump(mode="json")
    folder.mkdir()
    part: dict[str, Any] = {
        "path": str(folder / "train"),
        "sha256": save_part(folder / "train", texts(TEXTS, outputs), key),
    }
    if key is not None:
        part |= {"seal": {"key": key.key.hex(), "wrap": key.wrap.hex()}}
    shape = {"records_train": records, "records_holdout": 0, "features": 1, "outputs": outputs, "sparse": False}
    (folder / "out").mkdir()
    start = start_of(job, shape, parts={"train": part}, output_dir=folder / "out")
    start |= {"features": {"kind": "text", "column": "text"}, "models_root": str(root)}
    if outputs == 1:
        start["task"] = {"kind": "language_model"}
    return start


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_trained_on_mapped_texts_is_the_same(
    tmp_path: Path, models_root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests, places = [], []
    loader = part_loading._tokenized

    def watched(*asked: Any) -> Any:
        load = loader(*asked)

        def noted(part: Part) -> Any:
            found = load(part)
            places.append(isinstance(found, MappedPart))
            return found

        return noted

    monkeypatch.setattr(part_loading, "_tokenized", watched)
    for limit in (memory.IN_MEMORY_BYTES, 0):
        monkeypatch.setattr(memory, "IN_MEMORY_BYTES", limit)
        scratch = tmp_path / f"scratch{limit}"
        scratch.mkdir()
        monkeypatch.setattr(part_loading.tempfile, "gettempdir", lambda scratch=scratch: str(scratch))
        supervisor = Supervisor(start_for(models_root, kind, tmp_path / str(limit)))
        assert isinstance(run_thread(supervisor).last, Finished)
        digests.append(supervisor.digests())
    assert digests[0] == digests[1] and places == [False, True]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_tokens_are_kept_once_and_sealed_as_their_texts(
    tmp_path: Path, models_root: Path, key: DataKey | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(part_loading.tempfile, "gettempdir", lambda: str(tmp_path))
    start = start_for(models_root, "roberta", tmp_path / "job", key=key)
    plan, made = plan_of(start, models_root=models_root), model(models_root, "roberta")
    tokens = Tokens(made.folder, LENGTH)
    message = Supervisor(start).message()
    (part,) = message.parts.train
    load = part_loading._tokenized(message, lambda: None, plan, tokens)
    found = load(part)
    assert isinstance(found, MappedPart) and len(found) == TEXTS
    wanted = tokens.of_part(texts(TEXTS, 3), lambda: None)
    numbers = np.array([299, 0, 7])
    rows = found.rows(numbers)
    assert isinstance(rows.x, Sequences) and isinstance(wanted.x, Sequences)
    for place, number in enumerate(numbers.tolist()):
        assert _items(rows.x, place) == _items(wanted.x, number)
    assert rows.y.tolist() == wanted.y[numbers].tolist()
    files = [each for each in (tmp_path / part_loading.FEATURES).iterdir() if each.suffix == ".arrow"]
    assert len(files) == 1 and (header_of(files[0]) is not None) is (key is not None)

    def again(*_: Any) -> Any:
        raise AssertionError("the tokens are there")

    monkeypatch.setattr(Tokens, "of_part", again)
    assert len(load(part)) == TEXTS


def _items(x: Sequences, record: int) -> list[int]:
    starts = np.append(0, x.ends)
    return x.items[starts[record] : starts[record + 1]].tolist()


def test_public_sizes_decide(models_root: Path, tmp_path: Path) -> None:
    """512 MiB of tokens at most, 4 bytes each, whatever the texts are."""
    most = 2**29 // (4 * (LENGTH + 1))
    few = plan_of(start_for(models_root, "roberta", tmp_path / "few", records=most // 3), models_root=models_root)
    many = plan_of(start_for(models_root, "roberta", tmp_path / "many", records=2 * most), models_root=models_root)
    assert few.in_memory and not many.in_memory


def test_texts_are_never_in_memory_whole(tmp_path: Path, models_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 MB of texts are read in a small part of that, and most of each is cut."""
    monkeypatch.setattr(memory, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(part_loading.tempfile, "gettempdir", lambda: str(tmp_path))
    start = start_for(models_root, "roberta", tmp_path / "job")
    long = StoredPart(Texts.of(["w1 " * 2000] * 2000), np.zeros(2000, dtype=np.int64))
    size = long.nbytes
    sha256 = save_part(tmp_path / "long", long)
    del long
    message = Supervisor(start).message()
    tokens = Tokens(model(models_root, "roberta").folder, LENGTH)
    load = part_loading._tokenized(message, lambda: None, plan_of(start, models_root=models_root), tokens)
    part = message.parts.train[0].model_copy(update={"path": str(tmp_path / "long"), "sha256": sha256})
    tracemalloc.start()
    load(part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 2
