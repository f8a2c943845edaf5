"""The embedded broker: whole messages, each to one reader, whatever lies in the folder."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from app.lifecycle import spool
from app.lifecycle.broker import QUEUE, celery_options
from app.lifecycle.wakeups import CeleryNotifier, WakeUp
from app.settings import Settings
from tests import processes

MESSAGES, READERS = 400, 3


@pytest.fixture
def backing() -> str:
    return "sqlite"


def read(home: Path, got: multiprocessing.Queue[list[str]]) -> None:
    """Takes messages as fast as it can, so that it meets them while they are written."""
    app = Celery("reader")
    app.conf.update(celery_options(Settings(home=home, database_url="", broker_url="")))
    taken: list[str] = []
    with app.connection() as connection:
        queue = connection.SimpleQueue(QUEUE, no_ack=True)
        connection.transport.polling_interval = 0.0
        while not taken or taken[-1] != "stop":
            taken.append(queue.get(timeout=300).payload[0][0])
        queue.close()
    got.put(taken[:-1])


def test_readers_that_look_while_messages_are_written_get_each_once_and_whole(settings: Settings) -> None:
    """kombu's file-system transport handed out messages that were not written yet, and the worker ended."""
    context = processes.quick()
    got: multiprocessing.Queue[list[str]] = context.Queue()
    readers = [context.Process(target=read, args=(settings.home, got), daemon=True) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    notifier = CeleryNotifier(settings)
    sent = [str(number) for number in range(MESSAGES)]
    list(notifier.notify([WakeUp(each) for each in [*sent, *["stop"] * READERS]]))
    taken = [got.get(timeout=300) for _ in readers]
    for reader in readers:
        reader.join(300)
    assert sorted((each for part in taken for each in part), key=int) == sent
    assert all(each == sorted(each, key=int) for each in taken)
    assert [reader.exitcode for reader in readers] == [0] * READERS
    assert list(settings.broker_dir.iterdir()) == []


def test_what_is_no_message_is_dropped(settings: Settings) -> None:
    notifier = CeleryNotifier(settings)
    for name, content in {"0_half": '{"body": ', "00_none": ""}.items():
        (settings.broker_dir / f"{0:020d}_{name}.{QUEUE}.msg").write_text(content)
    (settings.broker_dir / "notes.txt").write_text("not ours")
    list(notifier.notify([WakeUp("job_a")]))
    assert notifier.waiting() == 3
    with notifier.app.connection() as connection:
        queue = connection.SimpleQueue(QUEUE, no_ack=True)
        assert queue.get(timeout=300).payload[0] == ["job_a"]
        queue.close()
    assert notifier.waiting() == 0
    assert [each.name for each in settings.broker_dir.iterdir()] == ["notes.txt"]


def test_what_killed_senders_left_half_done_is_swept(tmp_path: Path) -> None:
    """Zero bytes, half a message, one that a reader had taken; young ones may still be written to.

    Attack (Doors): Senders that are killed fill the spool
    Now: swept
    """
    long_ago = time.time() - 2 * spool.STALE_S
    names = ("1_a.scrimp.msg.draft", "2_b.scrimp.msg.draft", "3_c.scrimp.taken", "4_d.scrimp.msg")
    for name, content in zip(names, ("", '{"bo', "{}", "{}"), strict=True):
        (tmp_path / name).write_text(content)
        os.utime(tmp_path / name, (long_ago, long_ago))
    (tmp_path / "5_e.scrimp.msg.draft").write_text("")
    assert spool.sweep(tmp_path) == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["4_d.scrimp.msg", "5_e.scrimp.msg.draft"]
    assert spool.sweep(tmp_path / "nowhere") == 0


def test_a_message_that_finds_no_room_leaves_no_draft(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        list(CeleryNotifier(settings).notify([WakeUp("job_x")]))
    assert list(settings.broker_dir.iterdir()) == []


def test_an_idle_reader_lists_the_folder_only_after_a_change(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that comes while it waits is taken; between two changes only the folder's time is asked for."""
    listed: list[str] = []
    listing = spool.Channel._waiting

    def counted(channel: spool.Channel, queue: str) -> list[Path]:
        listed.append(queue)
        return listing(channel, queue)

    monkeypatch.setattr(spool.Channel, "_waiting", counted)
    notifier, asked, long_ago = CeleryNotifier(settings), 0, time.time() - 60

    def ask(_seconds: float) -> None:
        """Stands for the wait between two looks at the folder's time."""
        nonlocal asked
        asked += 1
        if asked == 1:
            listed.clear()
        if asked == 100:
            assert listed == []
            list(notifier.notify([WakeUp("job_a")]))

    os.utime(settings.broker_dir, (long_ago, long_ago))
    with notifier.app.connection() as connection:
        queue = connection.SimpleQueue(QUEUE, no_ack=True)
        monkeypatch.setattr(spool.time, "sleep", ask)
        assert queue.get(timeout=300).payload[0] == ["job_a"]
        assert asked == 100
        queue.close()


def test_two_changes_at_one_time_of_the_folder_are_both_seen(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system's clock is coarse: the second of two messages may leave the folder's time as it was."""
    notifier = CeleryNotifier(settings)
    at = time.time() + 3600  # never settled, whatever this machine's speed

    def keep_time(_seconds: float) -> None:
        list(notifier.notify([WakeUp("job_b")]))
        os.utime(settings.broker_dir, (at, at))

    os.utime(settings.broker_dir, (at, at))
    with notifier.app.connection() as connection:
        queue = connection.SimpleQueue(QUEUE, no_ack=True)
        monkeypatch.setattr(spool.time, "sleep", keep_time)
        assert queue.get(timeout=300).payload[0] == ["job_b"]
        queue.close()


def test_a_change_at_the_time_of_the_look_is_seen_however_long_the_wait_was(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how old the folder's time was at the look, not after the wait: a busy machine waits for long."""
    notifier, at, waits = CeleryNotifier(settings), time.time(), 0

    def keep_time(_seconds: float) -> None:
        nonlocal waits
        waits += 1
        assert waits < 3, "the message was not looked for"
        list(notifier.notify([WakeUp("job_c")]))
        os.utime(settings.broker_dir, (at, at))

    clock = SimpleNamespace(**vars(time) | {"time": lambda: at + waits, "sleep": keep_time})
    os.utime(settings.broker_dir, (at, at))
    with notifier.app.connection() as connection:
        queue = connection.SimpleQueue(QUEUE, no_ack=True)
        monkeypatch.setattr(spool, "time", clock)
        assert queue.get(timeout=300).payload[0] == ["job_c"]
        queue.close()
