"""The embedded broker: a folder of messages, one file each, as a kombu transport (`spool://`).

A message gets its final name only when it is complete (written elsewhere, then renamed). A reader takes it by renaming
it: only one rename succeeds, so only one reader gets it. kombu's own file-system transport writes under the final name,
and a worker that read half a message crashed. Its bindings are files that two starting workers overwrite.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

DRAFT, TAKEN = ".draft", ".taken"
STALE_S = 3600.0
SETTLED_S = 0.1  # two changes of a folder within a tick of the file system's clock show one time
logger = logging.getLogger(__name__)
TRANSPORT_ALIASES["spool"] = "app.lifecycle.spool:Transport"


class Channel(virtual.Channel):
    """Queues as files `TIME_ID.QUEUE.msg` in the folder of the transport option `folder`; the oldest goes first."""

    @property
    def folder(self) -> Path:
        """The folder of messages."""
        return Path(self.connection.client.transport_options["folder"])

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        name = f"{time.time_ns():020d}_{uuid.uuid4().hex}.{queue}.msg"
        draft = self.folder / f"{name}{DRAFT}"
        try:
            draft.write_text(json.dumps(message))
            draft.rename(self.folder / name)
        except OSError:  # a full disk: the draft is not a message
            draft.unlink(missing_ok=True)
            raise

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for waiting in self._waiting(queue):
            taken = waiting.with_suffix(TAKEN)
            try:
                waiting.rename(taken)
            except FileNotFoundError:
                continue  # another worker was faster
            content = taken.read_bytes()
            taken.unlink()
            try:
                message: dict[str, Any] = json.loads(content)
                return message
            except ValueError:
                # Truncated by a full disk or a power cut. The sweeper repeats the wake-up.
                logger.error("dropped an unreadable message in the spool")
        raise Empty

    def _purge(self, queue: str) -> int:
        waiting = self._waiting(queue)
        for message in waiting:
            message.unlink(missing_ok=True)
        return len(waiting)

    def _size(self, queue: str) -> int:
        return len(self._waiting(queue))

    def _waiting(self, queue: str) -> list[Path]:
        ending = f".{queue}.msg"
        return sorted(each for each in self.folder.iterdir() if each.name.endswith(ending))


def sweep(folder: Path) -> int:
    """Removes the unfinished files of killed senders and readers after an hour. Returns their number.

    The sweeper repeats the wake-ups for their jobs.
    """
    left = 0
    for folder_entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            if folder_entry.suffix in (DRAFT, TAKEN) and time.time() - folder_entry.stat().st_mtime > STALE_S:
                folder_entry.unlink()
                left += 1
    return left


class Transport(virtual.Transport):
    """The transport for one host, without a server: every `polling_interval` seconds a worker asks for the time of the
    folder's last change, and lists it only after one: a tenth of an idle worker's cost."""

    Channel = Channel
    driver_type = driver_name = "spool"

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Delivers the next message; waits for it.

        Raises:
            TimeoutError: there was none for `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        queues: Any = self.cycle
        while True:
            changed = self._changed()  # before the look: what comes during it is looked for again
            has_settled = time.time() - changed >= SETTLED_S
            try:
                queues.get(self._deliver, timeout=timeout)
                return
            except Empty:
                self._await_change(changed, end, has_settled=has_settled)

    def _await_change(self, last_change: float, end: float | None, *, has_settled: bool) -> None:
        while True:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError
            time.sleep(self.polling_interval)
            if self._changed() != last_change or not has_settled:
                return

    def _changed(self) -> float:
        client: Any = self.client
        return os.stat(client.transport_options["folder"]).st_mtime  # noqa: PTH116 - twenty times a second, for ever
