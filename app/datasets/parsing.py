"""Parsing of data files: each in a limited process of its own, and few at once."""

from __future__ import annotations

import threading
from typing import Any

from app.sandbox import busy, run_limited
from app.settings import Settings

PARSER = "app.formats.parse:parse"


class Parsers:
    """At most `max_parsers` parsing processes of this API process: each may take `parse_memory_bytes`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = threading.BoundedSemaphore(settings.max_parsers)

    def parse(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs app.formats.parse.parse under limits.

        Raises:
            InvalidRequest: a file does not match the specification.
            LimitError: it took more memory or time than is allowed; with status 503, no process became free in time.
        """
        if not self._free.acquire(timeout=self._settings.parse_wait_s):
            raise busy()
        try:
            memory_bytes, time_s = self._settings.parse_memory_bytes, self._settings.parse_time_s
            return run_limited(PARSER, request, memory_bytes=memory_bytes, time_s=time_s)
        finally:
            self._free.release()
