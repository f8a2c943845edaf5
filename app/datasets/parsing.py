"""Parsing of data files: each in a limited process of its own, and few at once. As few are copied at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.formats.asked import ParsedFiles, ParseRequest, PartCounts, RecountRequest
from app.sandbox.confinement import Policy
from app.sandbox.limited import Watch, busy, run_limited
from app.settings import Settings
from core.contracts.base import Document

PARSER = "app.formats.parse:parse"
RECOUNTER = "app.formats.recount:recount"


class Parsers:
    """A few parsing processes of this API process: each may take `parse_memory_bytes`.

    Args:
        limit: how many at once; None: `max_parsers`.
        time_s: how long one may take; None: `parse_time_s`.
    """

    def __init__(self, settings: Settings, limit: int | None = None, time_s: float | None = None) -> None:
        self._settings = settings
        self._time_s = settings.parse_time_s if time_s is None else time_s
        limit = settings.max_parsers if limit is None else limit
        self._free = threading.BoundedSemaphore(limit)
        self._copies = threading.BoundedSemaphore(limit)

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

    def parse(self, request: ParseRequest, watch: Watch | None = None) -> ParsedFiles:
        """Runs app.formats.parse.parse under limits. `watch` sees its progress, and may end it.

        Raises:
            Interrupted: the watch ended it.
            InvalidRequest: a file does not match the specification.
            LimitError: it took more memory or time than is allowed; with status 503, no process became free in time.
        """
        names = [each for each in (request.file, request.holdout_file, request.edges_file) if each is not None]
        names += [each.path for each in request.earlier]
        files = Policy(tuple(map(Path, names)), (Path(request.output_dir),))
        return ParsedFiles.model_validate(self._run(PARSER, request, files, watch))

    def recount(self, request: RecountRequest) -> PartCounts:
        """Runs app.formats.recount.recount under the same limits.

        Raises:
            DataDamagedError, LimitError: as above.
        """
        parts = [each for each in (request.train, request.holdout) if each is not None]
        files = Policy(tuple(Path(each.path).parent for each in parts))  # an index lies beside its part
        return PartCounts.model_validate(self._run(RECOUNTER, request, files))

    def _run(self, target: str, request: Document, files: Policy, watch: Watch | None = None) -> object:
        if not self._free.acquire(timeout=self._settings.parse_wait_s):
            raise busy()
        try:
            memory_bytes = self._settings.parse_memory_bytes
            document = request.model_dump(mode="json")
            return run_limited(
                target, document, memory_bytes=memory_bytes, time_s=self._time_s, files=files, watch=watch
            )
        finally:
            self._free.release()
