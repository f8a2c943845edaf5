"""An attempt's end of the pipe to its supervisor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from torch import Tensor

from core.contracts.base import Document
from worker.attempt.failure_codes import StopRequested
from worker.channel import Channel
from worker.messages import (
    PIECE_BYTES,
    Alive,
    BlockStart,
    Checkpoint,
    Digest,
    Go,
    Mismatch,
    More,
    Piece,
    ProtocolError,
    Resalt,
    Save,
    Stop,
    Verdict,
    Written,
)

ALIVE_S = 30.0
M = TypeVar("M")


class SupervisorLink:
    """The training loop's end of the pipe. Remembers the last step that was started."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.steps_started = 0
        self._digest: Digest | None = None  # leaves with the next block's start, or before any other message
        self._read, self._is_read = memoryview(b""), True
        self._alive_at = time.monotonic()

    def loading(self) -> None:
        """Call often while data are loading. Checks for stop, and sends a keep-alive every `ALIVE_S` seconds."""
        self.poll(0)
        if time.monotonic() >= self._alive_at + ALIVE_S:
            self._alive_at = time.monotonic()
            self.send(Alive())

    def begin(self, first_step: int, last_step: int) -> bool:
        """Announces a block. Returns False once it is recorded; True if the state is wanted first."""
        state, self._digest = self._digest, None
        digest = None if state is None else state.digest
        self._channel.send(BlockStart(first_step=first_step, last_step=last_step, digest=digest))
        answer = self._channel.receive()
        if isinstance(answer, Stop):
            raise StopRequested
        if not isinstance(answer, Go | Save):
            raise ProtocolError("unexpected message kind")
        return isinstance(answer, Save)

    def save(self, header: Checkpoint, pieces: Iterator[Tensor]) -> None:
        """Sends the state."""
        self.send(header)
        for piece in pieces:
            content = _bytes_of(piece)
            for first in range(0, len(content), PIECE_BYTES):
                self._send_piece(content[first : first + PIECE_BYTES])
        self._send_piece(memoryview(b""))

    def fill(self, numbers: Tensor) -> None:
        """Replaces the numbers by the next ones of the saved state. What cannot be read any more stays as it was."""
        wanted = _bytes_of(numbers)
        while wanted and self._is_read:
            if not self._read:
                self.send(More())
                size = self._expect(Piece).size
                self._read = memoryview(self._channel.receive_bytes(size))
                self._is_read = size > 0
            count = min(len(wanted), len(self._read))
            wanted[:count] = self._read[:count]
            wanted, self._read = wanted[count:], self._read[count:]

    def _send_piece(self, content: memoryview) -> None:
        self._channel.send(Piece(size=len(content)))
        self._channel.send_bytes(content)

    def poll(self, step: int) -> None:
        """Checks for stop and notes that `step` starts."""
        while self._channel.pending():
            self._expect(Stop)
        self.steps_started = step

    def send(self, message: Document) -> None:
        """Sends a metric or the last message."""
        self.flush()
        self._channel.send(message)

    def vouch(self, verdict: Verdict) -> None:
        """Returns once the verdict is recorded."""
        self.send(verdict)
        self._expect(Written)

    def record(self, digest: Digest) -> None:
        """Has the digest recorded with the next block's start, or before any other message is heard."""
        self.flush()
        self._digest = digest

    def flush(self) -> None:
        """Sends a digest that still waits."""
        digest, self._digest = self._digest, None
        if digest is not None:
            self._channel.send(digest)

    def mismatch(self, matched_step: int) -> Resalt:
        """Reports that a replay differs, and waits for fresh keys."""
        self.send(Mismatch(matched_step=matched_step))
        return self._expect(Resalt)

    def _expect(self, kind: type[M]) -> M:
        message = self._channel.receive()
        if isinstance(message, Stop):
            raise StopRequested
        if not isinstance(message, kind):
            raise ProtocolError("unexpected message kind")
        return message


def _bytes_of(numbers: Tensor) -> memoryview:
    """The memory of a flat tensor."""
    return numbers.detach().numpy().view(np.uint8).data
