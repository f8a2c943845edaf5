"""Parsing of data files: each in a limited process of its own, and few at once. As few are copied at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.sandbox import busy, run_limited
from app.settings import Settings

PARSER = "app.formats.parse:parse"
RECOUNTER = "app.formats.recount:recount"


class Parsers:
    """At most `max_parsers` parsing processes of this API process: each may take `parse_memory_bytes`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = threading.BoundedSemaphore(settings.max_parsers)
        self._copies = threading.BoundedSemaphore(settings.max_parsers)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """The turn of a copy from the data root, which may take gigabytes of the disk before it is parsed.

        Raises:
            LimitError: none became free in time (503).
        """
        if not self._copies.acquire(timeout=self._settings.parse_wait_s):
            raise busy()
        try:
            yield
        finally:
            self._copies.release()

    def parse(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs app.formats.parse.parse under limits.

        Raises:
            InvalidRequest: a file does not match the specification.
            LimitError: it took more memory or time than is allowed; with status 503, no process became free in time.
        """
        return self._run(PARSER, request)

    def recount(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs app.formats.recount.recount under the same limits.

        Raises:
            DataDamagedError, LimitError: as above.
        """
        return self._run(RECOUNTER, request)

    def _run(self, target: str, request: dict[str, Any]) -> dict[str, Any]:
        if not self._free.acquire(timeout=self._settings.parse_wait_s):
            raise busy()
        try:
            memory_bytes, time_s = self._settings.parse_memory_bytes, self._settings.parse_time_s
            return run_limited(target, request, memory_bytes=memory_bytes, time_s=time_s)
        finally:
            self._free.release()
