"""Hashed words as a job's extractor: the same bits as texts that were hashed at registration, and one set for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.dataset_spec import HashedText
from core.contracts.extractor import Words
from core.parts.damage import DataDamagedError
from core.parts.hashing import hashed
from core.parts.part_files import load_part, save_part
from core.parts.stored_records import Csr, StoredPart, Texts
from tests.worker.support import Supervisor, parts_of, run_thread, spec, start_of
from worker.extractors.words import hashed_words
from worker.messages import Finished

WORDS = {"buckets": 64, "binary": False, "ngrams": [1, 2]}
TEXTS = [f"a {'good' if i % 2 else 'bad'} film, number {i}" for i in range(20)]
REF: dict[str, Any] = {"name": "hashed-words", "words": WORDS, "sha256": "0" * 64, "features": 64}


def attempt(folder: Path, *, at_registration: bool, private: bool) -> Supervisor:
    folder.mkdir()
    stored = {}
    declared = {"kind": "hashed_text", "column": "t", **WORDS} if at_registration else {"kind": "text", "column": "t"}
    for name, n in (("train", 20), ("holdout", 8)):
        x = hashed(TEXTS[:n], HashedText.model_validate(declared)) if at_registration else Texts.of(TEXTS[:n])
        stored[name] = {"path": str(folder / name), "sha256": save_part(folder / name, StoredPart(x, np.arange(n) % 2))}
    shape = {"records_train": 20, "records_holdout": 8, "features": 64 if at_registration else 1, "outputs": 2}
    model = {"kind": "linear"} if at_registration else {"kind": "linear", "extractor": REF}
    job = spec(model=model) if private else spec(model=model, privacy=None)
    start = start_of(job, shape | {"sparse": at_registration}, public=not private, output_dir=folder)
    return Supervisor(start | {"features": declared, "parts": parts_of(stored, cache_dir=str(folder / "features"))})


@pytest.mark.parametrize("private", [True, False])
def test_the_model_is_the_one_of_a_hashed_set(tmp_path: Path, private: bool) -> None:
    """To the bit: sums, norms and noise are of the same sparse features."""
    folders = {at: tmp_path / str(at) for at in (True, False)}
    for at, folder in folders.items():
        assert isinstance(run_thread(attempt(folder, at_registration=at, private=private)).last, Finished)
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders.values()]
    assert weights[0] == weights[1]
    card = json.loads((folders[False] / "model.json").read_text())
    assert 'spec = card["extractor"]["words"]' in card["usage"] and card["inputs"] == 64
    assert len(list((folders[False] / "features").glob("*.arrow"))) == 2, "made once, and kept with the files"


def test_features_are_kept_by_part_and_settings(tmp_path: Path) -> None:
    stored = StoredPart(Texts.of(TEXTS), np.arange(20) % 2)
    made = [
        hashed_words(stored, part, "a" * 64, Words(buckets=buckets), tmp_path / "cache")
        for part, buckets in (("1" * 64, 64), ("1" * 64, 64), ("1" * 64, 128), ("2" * 64, 64))
    ]
    assert [each.shape[1] for each in made] == [64, 64, 128, 64]
    assert len(list((tmp_path / "cache").glob("*.arrow"))) == 3
    with pytest.raises(DataDamagedError):
        hashed_words(StoredPart(np.zeros((2, 1), np.float32), np.zeros(2)), "", "", Words(), tmp_path)


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7])
def test_texts_are_hashed_in_pieces_with_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A part may hold no record: how many it holds must not decide if a job fails."""
    monkeypatch.setattr("worker.extractors.words.AT_ONCE", 3)
    polls: list[int] = []
    stored = StoredPart(Texts.of(TEXTS[:count]), np.arange(count) % 2)
    made = hashed_words(stored, "1" * 64, "a" * 64, Words(buckets=64), tmp_path, lambda: polls.append(1)).x
    assert isinstance(made, Csr) and made.shape == (count, 64) and len(polls) == -(-count // 3)
    assert isinstance(load_part(*_file(tmp_path)).x, Csr)
    if count:
        whole = hashed(TEXTS[:count], Words(buckets=64))
        assert [made.indptr.tobytes(), made.indices.tobytes(), made.data.tobytes()] == [
            whole.indptr.tobytes(),
            whole.indices.tobytes(),
            whole.data.tobytes(),
        ]


def _file(cache: Path) -> tuple[Path, str]:
    (path,) = cache.glob("*.arrow")
    return path, path.name.split(".")[1]


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6))
def test_a_texts_features_are_its_own(texts: list[str]) -> None:
    words = Words(buckets=32)
    whole = hashed(texts, words)
    for place, text in enumerate(texts):
        alone = hashed([text], words)
        row = slice(whole.indptr[place], whole.indptr[place + 1])
        assert whole.indices[row].tobytes() == alone.indices.tobytes()
        assert whole.data[row].tobytes() == alone.data.tobytes()
    assert isinstance(whole, Csr)
