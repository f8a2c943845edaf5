"""The embedded broker: a folder of messages, one file each, as a transport of kombu (`spool://`).

A message has its name only when it is whole (written apart, then renamed), and who renames it has taken it: a rename
happens once, so that one reader gets it. kombu's own file-system transport writes under the final name; a worker that
read in between met half a message and ended, and its bindings are files that two starting workers write over.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

DRAFT, TAKEN = ".draft", ".taken"
STALE_S = 3600.0
logger = logging.getLogger(__name__)
TRANSPORT_ALIASES["spool"] = "app.lifecycle.spool:Transport"


class Channel(virtual.Channel):
    """Queues as files `TIME_ID.QUEUE.msg` in the folder of transport option `folder`; the oldest goes first."""

    @property
    def folder(self) -> Path:
        return Path(self.connection.client.transport_options["folder"])

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        name = f"{time.time_ns():020d}_{uuid.uuid4().hex}.{queue}.msg"
        draft = self.folder / f"{name}{DRAFT}"
        try:
            draft.write_text(json.dumps(message))
            draft.rename(self.folder / name)
        except OSError:  # a full disk: what is there of it is no message
            draft.unlink(missing_ok=True)
            raise

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for waiting in self._waiting(queue):
            taken = waiting.with_suffix(TAKEN)
            try:
                waiting.rename(taken)
            except FileNotFoundError:
                continue  # another worker was quicker
            content = taken.read_bytes()
            taken.unlink()
            try:
                message: dict[str, Any] = json.loads(content)
                return message
            except ValueError:
                # Cut off by a full disk or a power cut. The sweeper rings again.
                logger.error("a message in the spool cannot be read: dropped")
        raise Empty

    def _purge(self, queue: str) -> int:
        waiting = self._waiting(queue)
        for each in waiting:
            each.unlink(missing_ok=True)
        return len(waiting)

    def _size(self, queue: str) -> int:
        return len(self._waiting(queue))

    def _waiting(self, queue: str) -> list[Path]:
        ending = f".{queue}.msg"
        return sorted(each for each in self.folder.iterdir() if each.name.endswith(ending))


def sweep(folder: Path) -> int:
    """Removes what senders and readers that were killed left half done, an hour later. Returns how many that were.

    The sweeper rings again for the jobs that they were about.
    """
    left = 0
    for each in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            if each.suffix in (DRAFT, TAKEN) and time.time() - each.stat().st_mtime > STALE_S:
                each.unlink()
                left += 1
    return left


class Transport(virtual.Transport):
    """No server, one host: workers look into the folder every `polling_interval` seconds."""

    Channel = Channel
    driver_type = driver_name = "spool"
