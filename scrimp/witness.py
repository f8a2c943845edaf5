"""An append-only witness: it signs a ledger's checkpoint only if all that it signed before is still in it.

    POST /add-checkpoint          old SIZE, a consistency proof, an empty line, the checkpoint → the cosignature (C2SP
                                  tlog-witness): 409 with its own size if OLD is another, 422 if the proof does not hold
    GET /checkpoint/ORIGIN        the newest checkpoint that it signed, with its signature

Its state is one file of lines that it appends to, synced before it answers. Run it where the service's operator cannot
write. Two processes may share a file. `scrimp witness accept` appends that an owner accepts a gap: after a restored
backup the same ledger begins a new history, and every earlier checkpoint stays in the file.

Sources: C2SP tlog-witness and tlog-cosignature.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from scrimp.transparency import COSIGNATURE, MARK, Key, Note, NotProven, decoded, follows, signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_BODY = 64 * 1024
TIMEOUT_S = 10


class Refused(Exception):
    """A request that is not cosigned: the HTTP status, and what to answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Witness:
    """What a witness has signed, and its key. Safe for threads and processes that share the file.

    Args:
        state: the file; made if it is missing.
        logs: the keys of each service, rotated ones too; a key NAME may sign origins NAME/…. An origin stays with the
            service that signed it first.
    """

    def __init__(self, state: Path, name: str, key: Ed25519PrivateKey, logs: Sequence[Sequence[Key]]) -> None:
        self._state, self._signing, self._logs = state, key, logs
        self.key = Key(name, COSIGNATURE, key.public_key().public_bytes_raw())
        self._newest: dict[str, str | None] = {}
        self._read_to = 0  # bytes of the file; another process may have appended more
        self._lock = threading.Lock()

    def newest(self, origin: str) -> str | None:
        """The newest checkpoint of an origin that it signed, as a note; None: none, or a gap was accepted after it."""
        with self._lock:
            if self._state.exists():
                with self._state.open("rb") as file:
                    file.seek(self._read_to)
                    lines = file.read().splitlines(keepends=True)
                for line in lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]:
                    self._read_to += len(line)
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        continue  # a crash cut it short, before anything was answered
                    self._newest[entry["origin"]] = entry.get("note")
            return self._newest.get(origin)

    def add(self, request: str) -> str:
        """Verifies a request and cosigns its checkpoint, on disk before this returns.

        Returns:
            The cosignature's line.

        Raises:
            Refused: it does not follow, or no known service signed it.
        """
        old, path, note = _parsed(request)
        if not any(note.origin.startswith(each.name + "/") for keys in self._logs for each in keys):
            raise Refused(404, "this witness does not follow the ledger")
        signed = self._signed(note)
        if signed is None:
            raise Refused(403, "no known service signed the checkpoint")
        service, text = signed
        with _appending(self._state) as append:
            newest = self.newest(note.origin)
            newest_note = None if newest is None else Note.parse(newest)
            if newest_note is not None and (self._signed(newest_note) or (None,))[0] != service:
                raise Refused(403, "the ledger is another service's")
            size, root = (0, b"") if newest_note is None else (newest_note.size, newest_note.root)
            if old != size:
                raise Refused(409, f"{size}\n")
            if old and not follows(old, root, note.size, note.root, path):
                raise Refused(422, "the checkpoint does not follow from the one that was signed last")
            if newest_note is not None and newest_note.size == note.size:
                line = _line_of(newest_note, self.key)
                if line is not None:
                    return line  # asked again: the file does not grow
            line = self._cosigned(note)
            append({"origin": note.origin, "size": note.size, "note": text + line})
        return line

    def _signed(self, note: Note) -> tuple[int, str] | None:
        """Which service signed a checkpoint, and the checkpoint with that signature alone: whatever else a sender
        added is neither kept nor served. None: no service that is known."""
        for place, keys in enumerate(self._logs):
            for key in keys:
                line = _line_of(note, key)
                if line is not None:
                    return place, f"{note.body}\n{line}"
        return None

    def _cosigned(self, note: Note) -> str:
        at = int(time.time())
        blob = self.key.id + at.to_bytes(8) + self._signing.sign(signed_bytes(note.body, COSIGNATURE, at))
        return f"{MARK}{self.key.name} {base64.b64encode(blob).decode()}\n"


def _line_of(note: Note, key: Key) -> str | None:
    """The line in which this key signed a note; None: there is none."""
    for name, blob in note.signatures:
        if replace(note, signatures=((name, blob),)).signed_by(key) is not None:
            return f"{MARK}{name} {base64.b64encode(blob).decode()}\n"
    return None


def accept_gap(state: Path, origin: str, reason: str) -> None:
    """Appends that an owner accepts another history of a ledger from now on."""
    with _appending(state) as append:
        append({"origin": origin, "accepted": reason, "at": int(time.time())})


def origins(state: Path) -> set[str]:
    """The ledgers of which a witness's file has a checkpoint."""
    names = set()
    for line in state.read_bytes().splitlines():
        try:
            names.add(str(json.loads(line)["origin"]))
        except ValueError:
            continue  # a crash cut it short
    return names


@contextmanager
def _appending(state: Path) -> Iterator[Callable[[dict[str, object]], None]]:
    """Appends lines that are on disk when the call returns; one process at a time."""
    with open(os.open(state, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:  # noqa: PTH123
        fcntl.flock(file, fcntl.LOCK_EX)

        def append(entry: dict[str, object]) -> None:
            if not _is_whole(state):
                file.write("\n")  # a crash cut the last line short
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

        yield append


def _is_whole(state: Path) -> bool:
    """False if the last line of the file lacks its end."""
    with state.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def serve(witness: Witness, host: str, port: int) -> ThreadingHTTPServer:
    """A server for a witness, listening; its `serve_forever` answers."""

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S

        def do_GET(self) -> None:
            note = witness.newest(unquote(self.path.removeprefix("/checkpoint/")))
            self._answer(*((404, "unknown") if note is None else (200, note)))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            try:
                if self.path != "/add-checkpoint" or not length.isdecimal() or int(length) > MAX_BODY:
                    raise Refused(404 if self.path != "/add-checkpoint" else 413, "no such request")
                self._answer(200, witness.add(self.rfile.read(int(length)).decode()))
            except Refused as refused:
                self._answer(refused.status, refused.text)
            except UnicodeDecodeError:
                self._answer(400, "this is not text")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/x.tlog.size" if status == 409 else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Nothing: the state file says what was signed."""

    return ThreadingHTTPServer((host, port), Handler)


def _note(request: str) -> str:
    return request.partition("\n\n")[2]


def _parsed(request: str) -> tuple[int, list[bytes], Note]:
    try:
        first, *path = request.partition("\n\n")[0].split("\n")
        name, _, size = first.partition(" ")
        note = Note.parse(_note(request))
        if name != "old" or not size.isdecimal() or int(size) > note.size:
            raise NotProven("the first line is not the old size")
        return int(size), decoded(path), note
    except ValueError as error:
        raise Refused(400, str(error)) from None
