"""Reads large registrations in the background, in threads of ingest workers (app.ingest), or of the API's processes
where no such worker lives: they alone hold the data key.

Owners take turns (readings.claim). One thread reads one file at a time; another renews its lease meanwhile, and ends
its slice once another owner's file waits. If the
process dies, its helper process dies with it, and the next one that finds the lease expired reads the file again from
the beginning: parsing is a function of the file, the declaration and the key, so the result is the same.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from app.audit.record import CURRENT, Origin
from app.datasets import arrivals, readings, volume
from app.datasets.growth import Stale
from app.datasets.parsing import Parsers
from app.datasets.read_file import File
from app.datasets.readings import Claimed, Lost
from app.db.changes import Changes
from app.db.database import Database
from app.repeat import in_thread
from app.sandbox.limited import Interrupted, Watch
from app.settings import Settings
from core.disk import is_full
from core.errors import LimitError, ServiceError, StorageFull, Unavailable

logger = logging.getLogger(__name__)
POLL_S = 0.5
JOIN_S = 5.0
SWEEP_S = 600.0
PASSES = 2  # a file is read for its records, and again for its hash


class Reader:
    """Claims registrations and reads them, from `start` to `close`.

    Args:
        spare: only where no ingest worker does.
    """

    def __init__(self, db: Database, settings: Settings, *, spare: bool = False) -> None:
        self.db, self.settings, self.spare = db, settings, spare
        self._parsers = Parsers(settings, settings.max_readers, settings.read_time_s)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._watches: set[Watch] = set()
        self._claiming = threading.Lock()
        self._read_now = Counter[str]()  # this process's threads, by the owner whose file each reads

    def start(self) -> None:
        """Starts `max_readers` threads, and one that removes what is left of files that arrived."""
        names = [f"reader-{number}" for number in range(self.settings.max_readers)]
        # No commit says that a dead reader's lease is over: the clock does.
        self._threads = [in_thread(name, self.run_once, self._stop, POLL_S, Changes(self.db)) for name in names]
        sweep = partial(arrivals.sweep, self.db, self.settings)
        self._threads.append(in_thread("arrivals", sweep, self._stop, SWEEP_S))

    def close(self) -> None:
        """Ends what is being read; another process, or the next start, reads it from the beginning."""
        self._stop.set()
        for watch in list(self._watches):
            watch.stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)

    def run_once(self) -> bool:
        """Reads one registration, if there is one. Returns True if there was."""
        claimed = self._claim()
        if claimed is None:
            return False
        try:
            self._read_to_its_end(claimed)
        finally:
            with self._claiming:
                self._read_now[claimed.owner_key] -= 1
        return True

    def _claim(self) -> Claimed | None:
        """The next registration. Where there are several threads, one owner does not take them all: its files may be
        slow, and another owner's would wait for them."""
        limit = max(1, self.settings.max_readers - 1)
        at = volume.of(self.settings)
        if at is None:
            return None
        with self._claiming:
            full = [owner for owner, count in self._read_now.items() if count >= limit]
            claimed = readings.claim(self.db, self.settings.lease_s, full, at, spare=self.spare)
            if claimed is not None:
                self._read_now[claimed.owner_key] += 1
            return claimed

    def _read_to_its_end(self, claimed: Claimed) -> None:
        """Reads a registration, under its lease and in its owner's name."""
        token = CURRENT.set(Origin(key_id=claimed.owner_key))
        watch, turn_over = Watch(), threading.Event()
        self._watches.add(watch)
        if self._stop.is_set():  # `close` has looked through the watches before this one was there
            watch.stop.set()
        try:
            self._read_in_turn(claimed, watch, turn_over)
        except Lost:
            logger.info("%s is read by another process, or was withdrawn", claimed.id)
            readings.clean_up(self.db, self.settings, claimed.id)
        finally:
            self._watches.discard(watch)
            CURRENT.reset(token)

    def _read_in_turn(self, claimed: Claimed, watch: Watch, turn_over: threading.Event) -> None:
        """Reads a registration as long as its turn is. Raises Lost if the claim is gone."""
        try:
            with self._renewed(claimed, watch, turn_over):
                self._read(claimed, watch)
        except Interrupted:
            if turn_over.is_set():
                readings.end_turn(self.db, claimed)
            elif self._stop.is_set():
                readings.release(self.db, claimed)
            else:
                raise Lost from None

    def _read(self, claimed: Claimed, watch: Watch) -> None:
        """Writes one end of a registration: its data set, or why there is none."""
        folder = readings.folder_of(self.settings, claimed.id)
        try:
            if claimed.deaths >= self.settings.max_attempts:
                raise LimitError(f"The service stopped {claimed.deaths} times while it read this file")
            File(self.db, self.settings, self._parsers, claimed, watch).parse_and_store(folder)
        except Stale:  # however often: each time another block has come first
            return readings.end_turn(self.db, claimed)
        except Unavailable as error:
            if claimed.attempt - claimed.slices < self.settings.max_attempts:  # read again, under the new key
                return readings.release(self.db, claimed)
            return self._reject(claimed, error)
        except ServiceError as error:
            return self._reject(claimed, error)
        except OSError as error:
            if not is_full(error):
                raise
            full = StorageFull("the service's disk is full: an operator has to free some space")
            return self._reject(claimed, full)
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def _reject(self, claimed: Claimed, error: ServiceError) -> None:
        """Ends a registration, and removes what is there of it, of earlier attempts too."""
        readings.reject(self.db, claimed, error)
        readings.forget(self.settings, claimed.id)

    def _others_wait(self, claimed: Claimed) -> bool:
        return readings.others_wait(self.db, claimed, volume.of(self.settings))

    @contextmanager
    def _renewed(self, claimed: Claimed, watch: Watch, turn_over: threading.Event) -> Iterator[None]:
        """Renews the lease in a thread of its own. A lost one stops the watch, and so does the end of the slice, once
        another owner's file waits for a reader: then `turn_over` is set too."""
        over = threading.Event()
        slice_end_s = time.monotonic() + self.settings.read_slice_s * 2.0**claimed.slices

        def renew() -> None:
            while not over.wait(self.settings.heartbeat_s):
                try:
                    readings.renew(self.db, claimed, self.settings.lease_s, watch.read_bytes // PASSES)
                    if time.monotonic() >= slice_end_s and self._others_wait(claimed):
                        turn_over.set()
                        watch.stop.set()
                        return
                except Lost:
                    watch.stop.set()
                    return
                except SQLAlchemyError as error:
                    logger.error("the lease of %s was not renewed: %s", claimed.id, type(error).__name__)

        renewing = threading.Thread(target=renew, name=f"renew-{claimed.id}", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            over.set()
            renewing.join()
