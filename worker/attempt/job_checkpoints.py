"""Checkpoints on the supervisor's side: a job's last saved state, sealed, until it ends (decision 38).

    checkpoints/<job>/state   a sealed file (core.parts.sealed) under a key of the job's secret and salt:
                              a line that says whose state it is, then the state's numbers

The file replaces the one before at once, and is on disk (or in the bucket) before it counts. Nothing in it is believed:
an attempt goes on from it only if its state has the recorded digest. What cannot be written or read costs time alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from app.lifecycle.saved import FOLDER
from app.settings import Settings
from app.storage import objects
from core.contracts.base import Document
from core.contracts.stored_documents import SaltedSteps
from core.disk import LOOK_BYTES, Room
from core.errors import ServiceError
from core.parts import sealed
from core.parts.damage import DataDamagedError
from worker.attempt.confined import default_memory_bytes
from worker.messages import PIECE_BYTES, Checkpoint, ProtocolError

logger = logging.getLogger(__name__)

FILE = "state"
MOST_LINE_BYTES = 2**13
SHARE = 50  # saving takes at most one part in so many of the time
# A young attempt is saved more often: what a kill takes from it is a twentieth of its time, and two seconds.
AGE, LEAST_S = 20, 2.0
KeyOf = Callable[[SaltedSteps], bytes]


class Whose(Document):
    """The first line of a saved state.

    Attributes:
        release: of the code that made it, and of its libraries; no other one goes on from it.
    """

    job: str
    release: str
    checkpoint: Checkpoint


class Saved:
    """A saved state, open for reading. The copy of a bucket's object goes with it."""

    def __init__(self, checkpoint: Checkpoint, file: BinaryIO, copy: Path) -> None:
        self.checkpoint, self._file, self._copy = checkpoint, file, copy

    def read(self) -> bytes:
        """The next bytes; none at its end, or from where it is damaged."""
        try:
            return self._file.read(PIECE_BYTES)
        except (OSError, DataDamagedError):
            return b""

    def close(self) -> None:
        """Call after the last use."""
        self._file.close()
        self._copy.unlink(missing_ok=True)


class Checkpoints:
    """The checkpoint of one job, for one of its attempts.

    Args:
        job_id, attempt: whose.
        release: of this worker (worker.attempt.code_release).
        key_of: the checkpoint key of a segment.
    """

    def __init__(self, settings: Settings, job_id: str, attempt: int, release: str, key_of: KeyOf) -> None:
        self._settings, self._objects, self._key_of = settings, objects.of(settings), key_of
        self._job_id, self._attempt, self._release = job_id, attempt, release
        self._name = f"{FOLDER}/{job_id}"
        folder = settings.storage_root / self._name
        self._part, self._copy = folder / f"part-{attempt}", folder / f"copy-{attempt}"
        self._most = settings.attempt_memory_bytes or default_memory_bytes()
        self._born = self._began = time.monotonic()
        self._due = self._born + self._wait_s(self._born)
        self._step = 0  # of the last one
        self._wanted: int | None = None
        self._coming: Checkpoint | None = None
        self._file: BinaryIO | None = None
        self._size = 0

    def wants(self, step: int, *, now: bool = False) -> bool:
        """True if the state after this step has to be asked for, by the clock or now. Depends on no data."""
        self._step = min(self._step, step)  # smaller: the attempt did not go on from what was found
        wanted = step > self._step and (now or time.monotonic() >= self._due)
        self._wanted = step if wanted else None
        return wanted

    def find(self, segments: Sequence[SaltedSteps], digested: Mapping[str, Collection[int]]) -> Saved | None:
        """What an earlier attempt left, if its key, job and release are right, and its step has a digest.

        Args:
            segments: the salts in use, oldest first.
            digested: the steps with a digest under each salt.
        """
        if self._attempt == 1:  # a bucket is not asked in vain
            return None
        try:
            path = self._objects.latest(f"{self._name}/{FILE}", self._copy)
            opened = None if path is None else self._opened(path, segments, digested)
        except (OSError, ServiceError) as error:
            logger.warning("the checkpoint of %s cannot be read: %s", self._job_id, type(error).__name__)
            opened = None
        if opened is None:
            self._copy.unlink(missing_ok=True)
        else:
            self._step = opened.checkpoint.step
        return opened

    def begin(self, checkpoint: Checkpoint, step: int, segments: Sequence[SaltedSteps]) -> None:
        """A state comes, in pieces.

        Args:
            step: the last one with a digest.

        Raises:
            ProtocolError: it is not of that step, or nobody asked for it.
        """
        if not checkpoint.step == step == self._wanted or self._coming is not None:
            raise ProtocolError("this state was not asked for")
        self._wanted = None
        self._coming, self._size, self._began = checkpoint, 0, time.monotonic()
        key = sealed.DataKey(self._key_of(segment_of(segments, step)), bytes(sealed.WRAP_BYTES))
        try:
            self._part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._part.unlink(missing_ok=True)
            self._file = sealed.create(self._part, key, "state")
            identity = Whose(job=self._job_id, release=self._release, checkpoint=checkpoint)
            self._file.write(identity.model_dump_json().encode() + b"\n")
        except OSError as error:
            self._give_up(error)

    def add(self, content: bytes) -> bool:
        """The next piece; the empty one is the last. A state that cannot be written is not kept: training goes on.

        Returns:
            True once the whole state is kept.

        Raises:
            ProtocolError: nothing was begun, or it is larger than the attempt's memory.
        """
        if self._coming is None:
            raise ProtocolError("a piece of no state")
        self._size += len(content)
        if self._size > self._most:
            raise ProtocolError("a state is larger than the attempt's memory")
        is_kept = False
        try:
            if content:
                self._write(content)
            else:
                is_kept = self._commit()
        except (OSError, ServiceError) as error:
            self._give_up(error)
        if not content:
            self._step, self._coming, self._wanted = self._coming.step, None, None
            now = time.monotonic()
            self._due = now + max(self._wait_s(now), SHARE * (now - self._began))
        return is_kept

    def close(self) -> None:
        """Call after the last use: drops what has not come to its end."""
        if self._file is not None:
            self._give_up(None)

    def _wait_s(self, now: float) -> float:
        """How long after `now` the next state is due."""
        return min(self._settings.checkpoint_s, max(LEAST_S, (now - self._born) / AGE))

    def _write(self, content: bytes) -> None:
        if self._file is None:
            return
        if (self._size - len(content)) % LOOK_BYTES < len(content):  # with the first piece, and each LOOK_BYTES
            Room(self._settings.disk_reserve_bytes).require(self._part.parent, len(content))
        self._file.write(content)

    def _commit(self) -> bool:
        if self._file is None:
            return False
        file, self._file = self._file, None
        sealed.finish(file)
        self._objects.replace(f"{self._name}/{FILE}", self._part)
        return True

    def _give_up(self, error: Exception | None) -> None:
        if error is not None:
            logger.warning("the state of %s cannot be saved: %s", self._job_id, type(error).__name__)
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                file.close()
            self._part.unlink(missing_ok=True)

    def _opened(
        self, path: Path, segments: Sequence[SaltedSteps], digested: Mapping[str, Collection[int]]
    ) -> Saved | None:
        for segment in reversed(segments):
            file = None
            try:
                file = sealed.SealedPath(path, self._key_of(segment)).open("rb")
                identity = Whose.model_validate_json(file.readline(MOST_LINE_BYTES))
            except (DataDamagedError, ValidationError):
                if file is not None:
                    file.close()
                continue
            step = identity.checkpoint.step
            is_mine = (identity.job, identity.release) == (self._job_id, self._release)
            if is_mine and segment_of(segments, step) == segment and step in digested[segment.salt]:
                return Saved(identity.checkpoint, file, self._copy)
            file.close()
        return None


def segment_of(segments: Sequence[SaltedSteps], step: int) -> SaltedSteps:
    """The segment whose keys apply to a step."""
    return max((each for each in segments if each.from_step <= max(step, 1)), key=lambda segment: segment.from_step)
