"""The heads that are recorded outside the database: never older ones, on disk, and what cannot be read is an alarm."""

from __future__ import annotations

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import obstore
import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import LedgerCheck
from app.ledger import behind
from app.ledger.transparency.heads import Balance, Head, Heads, UnreadableHeadError
from app.ledger.transparency.outside_records import InBucket, InFolder, Record, Records
from app.storage.folder import Folder
from core.errors import TransientError, Unavailable
from core.ids import now
from tests import servers
from tests.ledger.support import a_history, hold, open_ledger, post
from tests.locks import until_waits_for_file


@pytest.fixture(params=["folder", "bucket"])
def heads(request: pytest.FixtureRequest, tmp_path: Path) -> Heads:
    if request.param == "folder":
        return Heads(tmp_path / "heads")
    return Heads(tmp_path / "unused", records=InBucket(f"{request.getfixturevalue('s3_bucket')}/heads"))


def write_over(heads: Heads, name: str, content: bytes) -> None:
    """As somebody else might."""
    if isinstance(heads.records, InBucket):
        obstore.put(heads.records._store, name, content)
    else:
        (heads.folder / name).write_bytes(content)


def head(seq: int, dataset: str = "ds_a") -> Head:
    balance = Balance(budget=100, spent=seq, held=0)
    made = {"dataset": dataset, "seq": seq, "head": f"{seq:064x}", "train": balance, "holdout": balance}
    return Head(**made, cap_epsilon=1.0, contents=("ab",), recorded_at=now())


def test_a_head_is_read_as_it_was_written(heads: Heads) -> None:
    assert heads.read("ds_a") is None
    heads.write(head(3), heads.known("ds_a"))
    assert heads.read("ds_a") == head(3).model_copy(update={"recorded_at": (heads.read("ds_a") or head(1)).recorded_at})
    assert heads.recorded() == ["ds_a"]


def test_a_folder_of_heads_is_the_service_s_alone(tmp_path: Path) -> None:
    heads = Heads(tmp_path / "heads")
    heads.write(head(3), heads.known("ds_a"))
    assert [path.stat().st_mode & 0o077 for path in (heads.folder, heads.folder / "ds_a.json")] == [0, 0]


def test_a_writer_that_read_an_older_record_comes_too_late(heads: Heads) -> None:
    records = heads.records
    assert records.put("x", "one", None) and not records.put("x", "two", None)
    before = records.read("x")
    assert records.put("x", "two", before) and not records.put("x", "three", before)
    found = records.read("x")
    assert found is not None and found.content == b"two"
    records.remove("x")
    assert records.read("x") is None and records.names("x") == []
    assert not records.put("x", "four", found)


def test_a_record_grows_by_whole_lines(heads: Heads) -> None:
    records, ends = heads.records, list[bytes]()
    for line in ("one", "2" * 9000, "three"):
        records.append("x", line, ends.append)
    write_over(heads, "x", (records.read("x") or Record(b"", "")).content + b"tor")
    records.append("x", "four", ends.append)
    assert (records.read("x") or Record(b"", "")).content == b"one\n" + b"2" * 9000 + b"\nthree\nfour\n"
    assert ends[-4:] == [b"", b"one\n", b"2" * 9000 + b"\n", b"three\ntor"]

    def refuse(_end: bytes) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        records.append("x", "five", refuse)
    assert (records.read("x") or Record(b"", "")).content.endswith(b"four\n")


def test_a_line_that_follows_nothing_makes_no_record(heads: Heads) -> None:
    def follow(end: bytes) -> None:
        if not end:
            raise ValueError

    with pytest.raises(ValueError):
        heads.records.append("x", "one", follow)
    assert heads.records.read("x") is None and heads.records.names("x") == []


def test_a_record_that_is_removed_while_a_writer_waits_has_none_of_its_lines(tmp_path: Path) -> None:
    """The lock is the file's, not the name's: the line went to the removed file, and was reported on disk."""
    records, ends = InFolder(tmp_path), list[bytes]()
    records.append("x", "one", ends.append)
    with ThreadPoolExecutor(1) as threads, (tmp_path / "x").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        late = threads.submit(records.append, "x", "two", ends.append)
        until_waits_for_file(tmp_path / "x")
        records.remove("x")
        fcntl.flock(file, fcntl.LOCK_UN)
        late.result()
    assert (records.read("x") or Record(b"", "")).content == b"two\n"
    assert ends[-1] == b"", "checked against the record that it is in"


def test_lines_of_many_writers_are_all_there(heads: Heads) -> None:
    threads = [threading.Thread(target=heads.records.append, args=("x", str(n), len)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, (heads.records.read("x") or Record(b"", "")).content.split())) == list(range(12))


def test_an_older_head_takes_no_newer_ones_place_whoever_comes_last(heads: Heads) -> None:
    def record(seq: int) -> None:
        while not heads.write(head(seq), heads.known("ds_a")):
            pass

    threads = [threading.Thread(target=record, args=(seq,)) for seq in (5, 9, 2, 7, 1, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = heads.read("ds_a")
    assert found is not None and found.seq == 9
    heads.replace(head(4))
    found = heads.read("ds_a")
    assert found is not None and found.seq == 4
    (aside,) = (name for ending in "0123456789abcdef" for name in heads.records.names(ending))
    assert aside.startswith("ds_a.forgotten-") and heads.recorded() == ["ds_a"]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}', b"\xff"])
def test_a_damaged_record_is_an_alarm_and_is_not_written_over(heads: Heads, damage: bytes) -> None:
    heads.write(head(3), heads.known("ds_a"))
    write_over(heads, "ds_a.json", damage)
    for act in (lambda: heads.read("ds_a"), lambda: heads.known("ds_a")):
        with pytest.raises(UnreadableHeadError):
            act()


def test_a_record_that_was_moved_to_another_data_set_is_an_alarm(heads: Heads) -> None:
    heads.write(head(3), heads.known("ds_a"))
    write_over(heads, "ds_b.json", (heads.records.read("ds_a.json") or Record(b"", "")).content)
    with pytest.raises(UnreadableHeadError):
        heads.read("ds_b")


def test_epochs_are_new_each_time(heads: Heads) -> None:
    assert heads.epoch() is None
    first = heads.rotate_epoch()
    assert heads.epoch() == first != heads.rotate_epoch()


def test_a_ledger_that_grows_keeps_to_its_record(db: Database, heads: Heads) -> None:
    dataset = a_history(db)
    behind.record(db, heads, dataset)
    recorded = heads.read(dataset)
    assert recorded is not None and recorded.seq == 7
    hold(db, dataset, "job_9", 5, 1)
    assert behind.problems(db, heads, [dataset]) == {}
    behind.record(db, heads, dataset)
    found = heads.read(dataset)
    assert found is not None and (found.seq, found.train.held - recorded.train.held) == (8, 5)


def test_a_ledger_that_lacks_what_was_recorded_runs_nothing(db: Database, heads: Heads) -> None:
    lost, other = a_history(db), open_ledger(db)
    behind.record(db, heads, lost)
    was = heads.read(lost)
    assert was is not None
    heads.replace(was.model_copy(update={"seq": was.seq + 1, "head": "ff" * 32}))
    assert set(behind.problems(db, heads, [lost, other])) == {lost}
    with pytest.raises(TransientError):
        behind.record(db, heads, lost)
    # Going on from the restored state does not heal it: the entry of that number is another one.
    post(db, lost, "job_3", 1, 1)
    assert "differs from the recorded one" in behind.problems(db, heads, [lost])[lost]


class Overtaken:
    """Records in which another writer's content is stored just before this one's: once."""

    def __init__(self, records: Records, name: str, content: str) -> None:
        self._records, self._first = records, {name: content}

    def put(self, name: str, text: str, before: Record | None) -> bool:
        first = self._first.pop(name, None)
        if first is not None:
            assert self._records.put(name, first, self._records.read(name))
        return self._records.put(name, text, before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)


def test_of_two_primaries_that_record_a_head_at_once_the_later_one_is_behind(db: Database, heads: Heads) -> None:
    """Both went on from one recorded head, each with entries of its own. A newer number alone says nothing."""
    dataset = a_history(db)
    behind.record(db, heads, dataset)
    known = heads.read(dataset)
    assert known is not None
    others = known.model_copy(update={"seq": known.seq + 1, "head": "ff" * 32})
    for job in ("job_8", "job_9"):  # here the number is newer than the other primary's
        hold(db, dataset, job, 1, 1)
    overtaken = Heads(
        heads.folder, records=cast(Records, Overtaken(heads.records, f"{dataset}.json", others.model_dump_json()))
    )
    with pytest.raises(TransientError, match="differs from the recorded one"):
        behind.record(db, overtaken, dataset)
    found = heads.read(dataset)
    assert found is not None and (found.seq, found.head) == (others.seq, others.head)


def test_of_two_processes_that_record_a_head_at_once_the_newer_one_stays(db: Database, heads: Heads) -> None:
    """Both have the same ledger: who came too late compares again."""
    dataset = a_history(db)
    behind.record(db, heads, dataset)
    hold(db, dataset, "job_8", 1, 1)
    behind.record(db, heads, dataset)
    record = heads.records.read(f"{dataset}.json")
    assert record is not None
    hold(db, dataset, "job_9", 1, 1)
    overtaken = Heads(
        heads.folder, records=cast(Records, Overtaken(heads.records, f"{dataset}.json", record.content.decode() + "\n"))
    )
    behind.record(db, overtaken, dataset)
    found = heads.read(dataset)
    assert found is not None and found.seq == 9


def test_a_folder_that_can_not_be_written_runs_nothing(db: Database, tmp_path: Path) -> None:
    (tmp_path / "heads").write_text("a file in its place")
    with pytest.raises(TransientError):
        behind.record(db, Heads(tmp_path / "heads"), a_history(db))


def test_while_the_bucket_of_heads_is_away_nothing_runs_and_no_ledger_is_behind(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        heads = Heads(tmp_path, records=InBucket(server.bucket()))
        dataset = a_history(db)
        behind.record(db, heads, dataset)
    with pytest.raises(TransientError):
        behind.record(db, heads, dataset)
    with pytest.raises(Unavailable):
        behind.read_recorded(heads, dataset)
    with pytest.raises(Unavailable):
        behind.survey(db, heads, Folder(tmp_path), {})
    assert behind.reach(db, heads, dataset) == 0
    with db.read() as session:
        assert session.scalars(select(LedgerCheck)).all() == []
