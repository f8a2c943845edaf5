"""Frozen extractors: a function of each record alone, made once, kept as privately as the data."""

from __future__ import annotations

import errno
import json
import shutil
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scrimp
from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.part_files import load_part, open_part, save_part
from core.parts.part_reader import PartFile
from core.parts.part_writer import PartWriter
from core.parts.stored_records import StoredPart, Texts
from tests.worker.extractor import CONFIG, PIECES, write_extractor, write_former_extractor
from tests.worker.support import Supervisor, parts_of, run_thread, spec, start_of
from worker.attempt.failure_codes import StopRequested
from worker.attempt.link import SupervisorLink
from worker.channel import Channel
from worker.data.loaded_parts import records_of
from worker.extractors import feature_lock
from worker.extractors.encoder import EncoderStates
from worker.extractors.extractor_files import ExtractorFormerError, ExtractorMissingError
from worker.extractors.features import AT_ONCE, Kept, extracted, of_folder
from worker.messages import TO_CHILD, TO_SUPERVISOR, Alive, Failed, Finished, Stop

TEXTS = ["a good film", "bad films, a", "", "GOOD,é", "a " * 40, "unheard of"]


def part(texts: list[str] = TEXTS) -> StoredPart:
    return StoredPart(x=Texts.of(texts), y=np.arange(len(texts), dtype=np.int64) % 2)


def features(folder: Path, sha256: str, cache: Path, texts: list[str] = TEXTS, name: str = "0" * 64) -> np.ndarray:
    made = extracted(part(texts), name, folder, sha256, cache, lambda: None)
    assert isinstance(made.x, np.ndarray)
    return made.x


def test_features_do_not_depend_on_the_other_records(tmp_path: Path) -> None:
    """Bit for bit: in any order, alone or among others."""
    sha256 = write_extractor(tmp_path / "e")
    whole = features(tmp_path / "e", sha256, tmp_path / "c")
    turned = features(tmp_path / "e", sha256, tmp_path / "c", TEXTS[::-1], "1" * 64)
    assert np.array_equal(whole, turned[::-1])
    for row, text in enumerate(TEXTS):
        assert np.array_equal(features(tmp_path / "e", sha256, tmp_path / f"c{row}", [text])[0], whole[row])


def test_features_are_made_once_and_kept_privately(tmp_path: Path) -> None:
    sha256 = write_extractor(tmp_path / "e")
    cache, steps = tmp_path / "data" / "features", []
    cache.parent.mkdir()

    def made(name: str = "0" * 64, extractor: str = sha256, folder: str = "e") -> Any:
        return extracted(part(), name, tmp_path / folder, extractor, cache, lambda: steps.append(1)).x

    first = made()
    assert len(steps) == len(TEXTS)
    assert np.array_equal(made(), first) and len(steps) == len(TEXTS), "from the cache"
    (kept,) = cache.glob("*.arrow")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(cache.stat().st_mode) == 0o700
    made(name="1" * 64)
    other = write_extractor(tmp_path / "other", seed=1)
    assert not np.array_equal(made(extractor=other, folder="other"), first)
    assert len(steps) == 3 * len(TEXTS) and len(list(cache.glob("*.arrow"))) == 3, "keyed by part and extractor"
    kept.write_bytes(b"damaged")
    assert np.array_equal(made(), first) and len(steps) == 4 * len(TEXTS), "damaged: made again"


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    sha256 = write_extractor(tmp_path / "e")

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        extracted(part(), "0" * 64, tmp_path / "e", sha256, tmp_path / "c", stop)
    assert not any((tmp_path / "c").iterdir())


@pytest.mark.parametrize("name", ["extractor.json", "config.json", "model.safetensors", "tokenizer.json"])
def test_a_changed_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    sha256 = write_extractor(tmp_path / "e")
    content = (tmp_path / "e" / name).read_bytes()
    for change in (content + b" ", b"", None):
        (tmp_path / "e" / name).unlink() if change is None else (tmp_path / "e" / name).write_bytes(change)
        with pytest.raises(ExtractorMissingError):
            of_folder(tmp_path / "e", sha256, None)


@pytest.mark.parametrize("manifest", [{"max_tokens": 17}, {"features": 9}])
def test_sizes_that_do_not_fit_are_refused_before_any_text_is_read(tmp_path: Path, manifest: dict[str, int]) -> None:
    """Else it would fail at the first text that is long enough, which tells that there is one."""
    with pytest.raises(ExtractorMissingError):
        of_folder(tmp_path / "e", write_extractor(tmp_path / "e", **manifest), None)


def test_pieces_that_the_encoder_does_not_know_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIG, "vocab_size", len(PIECES) - 1)
    with pytest.raises(ExtractorMissingError):
        of_folder(tmp_path / "e", write_extractor(tmp_path / "e"), None)


def test_loading_gives_signs_of_life_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    supervisor, link = Channel(ours, TO_SUPERVISOR), SupervisorLink(Channel(theirs, TO_CHILD))
    for _ in range(100):
        link.loading()
    assert not supervisor.pending()
    monkeypatch.setattr("worker.attempt.link.ALIVE_S", 0.0)
    link.loading()
    assert supervisor.receive() == Alive()
    supervisor.send(Stop())
    with pytest.raises(StopRequested):
        link.loading()
    supervisor.close()
    theirs.close()


def test_a_manifest_without_its_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExtractorMissingError):
        of_folder(tmp_path / "e", write_extractor(tmp_path / "e", files={}), None)


def test_texts_are_stored_whole(tmp_path: Path) -> None:
    sha256 = save_part(tmp_path / "p", part())
    loaded = load_part(tmp_path / "p", sha256)
    assert isinstance(loaded.x, Texts) and list(loaded.x.texts()) == TEXTS and loaded.shape == (6, 1)
    none = Texts.of([])
    assert list(none.texts()) == [] and none.shape == (0, 1)
    with pytest.raises(PrivacyError):
        records_of(loaded)
    with pytest.raises(DataDamagedError):
        extracted(StoredPart(np.zeros((2, 1), np.float32), np.zeros(2)), "", tmp_path, "", tmp_path, lambda: None)


def attempt(tmp_path: Path, sha256: str, *, private: bool = False, **changes: Any) -> Supervisor:
    texts = ["a good film" if i % 2 else "bad films" for i in range(20)]
    stored = {}
    for name, n in (("train", 20), ("holdout", 8)):
        digest = save_part(tmp_path / name, StoredPart(x=Texts.of(texts[:n]), y=np.arange(n) % 2))
        stored[name] = {"path": str(tmp_path / name), "sha256": digest}
    shape = {"records_train": 20, "records_holdout": 8, "features": 1, "outputs": 2, "sparse": False}
    extractor = {"name": "tiny", "sha256": sha256, "features": 8}
    model = {"kind": "linear", "extractor": extractor}
    job = spec(model=model) if private else spec(model=model, privacy=None)
    start = start_of(job, shape, public=not private, output_dir=tmp_path)
    more = {"extractor_dir": str(tmp_path / "e"), "parts": parts_of(stored, cache_dir=str(tmp_path / "features"))}
    return Supervisor(start | {"features": {"kind": "text", "column": "t"}} | more | changes)


def test_a_linear_probe_from_texts_to_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    supervisor = attempt(tmp_path, write_extractor(folder), extractor_dir=str(folder))
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished)
    assert supervisor.metrics["accuracy", 10]["value"] == 1.0
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["inputs"] == 8 and card["tensors"]["weight"] == [2, 8]
    assert len(list((tmp_path / "features").glob("*.arrow"))) == 2
    assert scrimp.load_model(tmp_path, tmp_path / "models").predict(["a good film", "bad films"])[0]["class"] == 1
    card["extractor"]["sha256"] = write_former_extractor(tmp_path / "models" / "old")
    (tmp_path / "model.json").write_text(json.dumps(card | {"extractor": card["extractor"] | {"name": "old"}}))
    with pytest.raises(ValueError, match="releases before 2026-11-24 ran"):
        scrimp.load_model(tmp_path, tmp_path / "models").predict(["a good film"])


def test_an_extractor_whose_records_depend_on_others_ends_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is given one that is private: the self-test asks with public ones.

    Claim: an extractor whose records depend on others is found likewise
    Now: found: code `numerics`
    """
    call, seen = EncoderStates.__call__, list[str]()

    def by_place(self: EncoderStates, text: str) -> torch.Tensor:
        seen.append(text)
        return call(self, text) * (1.0 + 2.0**-22 * (len(seen) % 2))

    monkeypatch.setattr(EncoderStates, "__call__", by_place)
    ended = run_thread(attempt(tmp_path, write_extractor(tmp_path / "e"), private=True))
    assert isinstance(ended.last, Failed) and ended.last.code == "numerics"
    assert seen and not {"a good film", "bad films"} & set(seen)


def test_a_worker_without_the_extractor_says_so(tmp_path: Path) -> None:
    write_extractor(tmp_path / "e")
    ended = run_thread(attempt(tmp_path, "0" * 64))
    assert isinstance(ended.last, Failed) and ended.last.code == "extractor-missing"


def test_a_job_of_a_former_extractor_says_which_release_ran_it(tmp_path: Path) -> None:
    """Its features have other last bits now: a replay would not be one."""
    sha256 = write_former_extractor(tmp_path / "e")
    with pytest.raises(ExtractorFormerError, match="releases before 2026-11-24"):
        of_folder(tmp_path / "e", sha256, None)
    ended = run_thread(attempt(tmp_path, sha256, private=True))
    assert isinstance(ended.last, Failed) and ended.last.code == "extractor-former"
    assert "releases before 2026-11-24 ran" in ended.last.message and "add_extractor.py" in ended.last.message


def test_features_are_made_once_for_all_workers(tmp_path: Path) -> None:
    """Four processes' threads ask at once: one makes the features, and the others wait for them."""
    sha256 = write_extractor(tmp_path / "e")
    cache, steps, together = tmp_path / "c", [], threading.Barrier(4)

    def asked() -> np.ndarray:
        together.wait()
        return extracted(part(), "0" * 64, tmp_path / "e", sha256, cache, lambda: None, check=steps.append).x

    with ThreadPoolExecutor(4) as pool:
        found = [each.result() for each in [pool.submit(asked) for _ in range(4)]]
    assert len(steps) == 1 and all(np.array_equal(each, found[0]) for each in found)
    assert {path.name.rpartition(".")[2] for path in cache.iterdir()} == {"arrow", "index"}, "no lock is left"


def test_a_lock_whose_holder_died_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_lock, "LEASE_S", 0.2)
    monkeypatch.setattr(feature_lock, "LOOK_S", 0.01)
    lock, polled = tmp_path / "k.lock", []
    lock.touch()
    with feature_lock.turn(lock, lambda: polled.append(1), lambda: False):
        assert polled, "it waited"
        assert lock.exists()
    assert not list(tmp_path.iterdir())


def test_a_waiter_stops_when_it_is_told_to(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    (tmp_path / "k.lock").touch()
    with pytest.raises(KeyboardInterrupt), feature_lock.turn(tmp_path / "k.lock", stop, lambda: False):
        raise AssertionError
    assert (tmp_path / "k.lock").exists(), "it is another's"


def test_work_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), feature_lock.turn(tmp_path / "k.lock", lambda: None, lambda: False):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def many(folder: Path, count: int) -> tuple[StoredPart, PartFile]:
    """A part of more than one piece, in memory and on disk."""
    texts = [f"a {'good' if i % 3 else 'bad'} film" + " a" * (i % 5) for i in range(count)]
    stored = StoredPart(x=Texts.of(texts), y=np.arange(count, dtype=np.int64) % 2)
    opened = open_part(folder / "part", save_part(folder / "part", stored))
    assert opened is not None
    return stored, opened


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, 2 * AT_ONCE + 3])
def test_features_are_made_and_written_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    sha256 = write_extractor(tmp_path / "e")
    stored, opened = many(tmp_path, count)
    largest = 0
    honest = PartWriter.add

    def add(self: PartWriter, part: StoredPart) -> None:
        nonlocal largest
        largest = max(largest, len(part.y))
        honest(self, part)

    monkeypatch.setattr(PartWriter, "add", add)
    whole = extracted(stored, "0" * 64, tmp_path / "e", sha256, tmp_path / "c", lambda: None)
    assert largest <= AT_ONCE and isinstance(whole, StoredPart) and whole.shape == (count, 8)
    mapped = extracted(
        opened, "1" * 64, tmp_path / "e", sha256, tmp_path / "c", lambda: None, storage=Kept(on_disk=True)
    )
    assert isinstance(mapped, PartFile) and len(mapped) == count
    read = mapped.whole()
    assert np.array_equal(read.x, whole.x) and np.array_equal(read.y, whole.y)


@pytest.mark.parametrize("late", [False, True])
def test_where_the_cache_has_no_room_the_ranks_of_an_attempt_share_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Known after the first piece; or while another one is written, because others filled the disk."""
    sha256 = write_extractor(tmp_path / "e")
    stored, _opened = many(tmp_path, AT_ONCE + 1)
    cache, scratch, checked = tmp_path / "c", tmp_path / "scratch", []
    if late:
        honest = PartWriter.close

        def close(self: PartWriter) -> str:
            if self._path.parent == cache:
                raise OSError(errno.ENOSPC, "full")
            return honest(self)

        monkeypatch.setattr(PartWriter, "close", close)
    else:
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=0 if place == cache else 10**9))

    def asked() -> Any:
        kept = Kept(scratch)
        return extracted(
            stored, "0" * 64, tmp_path / "e", sha256, cache, lambda: None, check=checked.append, storage=kept
        )

    first = asked()
    made = len(checked)
    assert np.array_equal(asked().x, first.x) and len(checked) == made, "the second rank finds them"
    assert not list(cache.glob("*.arrow")) and not list(cache.glob("*.part*")) and list(scratch.glob("*.arrow"))
