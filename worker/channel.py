"""The socket pair between an attempt's process and its supervisor: one message of worker.messages a line."""

from __future__ import annotations

import select
import socket
from typing import Any

from pydantic import TypeAdapter, ValidationError

from core.contracts.base import Document
from worker.messages import ProtocolError

MAX_LINE_BYTES = 64 * 1024 * 1024  # a start message lists every block recorded so far


class Channel:
    """One end of the pipe. Not thread-safe.

    Args:
        connection: one socket of a pair; the channel owns it.
        receives: the messages that may arrive at this end, TO_CHILD or TO_SUPERVISOR.
    """

    def __init__(self, connection: socket.socket, receives: TypeAdapter[Any]) -> None:
        self._socket = connection
        self._receives = receives
        self._buffer = bytearray()

    def send(self, message: Document) -> None:
        """Sends a message. Raises OSError (BrokenPipeError) if the other end is gone."""
        self._socket.sendall(message.model_dump_json().encode() + b"\n")

    def send_bytes(self, content: bytes | memoryview) -> None:
        """Sends the bytes that a message has announced. Raises OSError."""
        self._socket.sendall(content)

    def receive_bytes(self, count: int) -> bytes:
        """Waits for the bytes that the last message has announced. Raises EOFError."""
        while len(self._buffer) < count:
            chunk = self._socket.recv(1 << 20)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        content = bytes(self._buffer[:count])
        del self._buffer[:count]
        return content

    def receive(self) -> Any:
        """Waits for the next message and returns it.

        Raises:
            EOFError: the other end is gone.
            ProtocolError: the line is not a message for this end. The error's text quotes nothing from the line.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ProtocolError("a message is too long")
            chunk = self._socket.recv(1 << 20)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            return self._receives.validate_json(line)
        except ValidationError:
            raise ProtocolError("a line is not a message for this end") from None

    def pending(self, timeout_s: float = 0.0) -> bool:
        """Returns True if a message, or the connection's end, can be received within `timeout_s`."""
        return bool(self._buffer) or bool(select.select([self._socket], [], [], timeout_s)[0])

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
