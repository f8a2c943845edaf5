"""An ingest worker, `scrimp worker --ingest`: reads the data files of registrations in place of the API's processes.

It holds what of the API's secrets a reading needs, answers nobody, and runs no job. Its row in `workers` names the
volume on which it sees files: API processes with that volume leave them to it as long as it lives. What it has read in
part when it ends is read again from the beginning, by another one or by an API process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import closing

from app import logs
from app.datasets import readings, volume
from app.datasets.reader import Reader
from app.db.database import Database
from app.lifecycle.queue.presence import Presence
from app.repeat import told_to_stop
from app.sandbox.processes import use_few_arenas
from app.secrets import load_secrets
from app.settings import Settings, get_settings
from app.storage.seals import NAME
from core.errors import ServiceError


class UnfitError(Exception):
    """This process could read no file; the message says what to change."""


def check(db: Database, settings: Settings) -> str:
    """The volume whose files it will read.

    Raises:
        UnfitError: it sees no files, or not all that wait; or it lacks a secret.
    """
    try:
        for name in ("data_hmac_key", *([NAME] if settings.encrypt_parts else [])):
            load_secrets(settings, name)
    except ServiceError as error:
        raise UnfitError(error.message) from None
    root = settings.arrivals_root
    try:
        at = volume.of(settings)
    except OSError as error:
        raise UnfitError(str(error)) from None
    if at is None:
        raise UnfitError(
            f"no API process keeps files in {root}: mount there the volume that the API's processes have there"
        )
    if count := readings.elsewhere(db, settings):
        raise UnfitError(
            f"files of {count} registrations wait on another volume than that at {root}: mount the one there that all "
            "API processes have, or wait until they have read these"
        )
    return at


class Watching(Presence):
    """The presence of an ingest worker: it ends with its sight of the volume, so that an API process reads the files.

    Args:
        at: the volume.
        stop: set once the volume is out of sight.
    """

    def __init__(self, db: Database, settings: Settings, at: str, stop: threading.Event) -> None:
        super().__init__(db, socket.gethostname(), os.getpid(), settings.heartbeat_s)
        self.settings, self.volume, self.told_to_stop = settings, at, stop
        self.lost = False

    def beat(self) -> None:
        """Reports the worker. Where the volume does not answer, it is not reported."""
        try:
            self.lost = volume.of(self.settings) != self.volume
        except OSError:
            self.lost = True
        if self.lost:
            self.told_to_stop.set()
        else:
            super().beat()


def main() -> None:
    """Runs until SIGINT, SIGTERM or SIGHUP."""
    use_few_arenas()
    settings = get_settings()
    logs.configure("ingest", settings.log_format, settings.log_level)
    stop = told_to_stop(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with closing(Database.of(settings)) as db:
        try:
            presence = Watching(db, settings, check(db, settings), stop)
        except UnfitError as error:
            sys.exit(f"scrimp worker: {error}")
        reader = Reader(db, settings)
        presence.start()
        reader.start()
        stop.wait()
        reader.close()
        presence.stop()
    if presence.lost:
        sys.exit(f"scrimp worker: the volume at {settings.arrivals_root} is gone, or another one: mount it again")


if __name__ == "__main__":
    main()
