"""`Client.upload`: a file in pieces that goes on where it stopped, after connection errors and in a later process.

The id of a file's upload is kept in the user's cache, under a name made from service, path, size and time of change.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from scrimp.errors import ApiError, Conflict, NotFound, ScrimpError, ServiceUnreachable
from scrimp.models import Upload

PIECE_BYTES = 64 << 20  # what one request sends
BLOCK_BYTES = 1 << 20  # what is read, and told as progress, at once
WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0)  # after failures in a row; a lost connection is given up after 30 s
PIECE_TIME_S = 600.0
PARSED_S = 600.0  # parsing and hashing happen before the response
REMEMBERED_S = 30 * 24 * 3600.0
WORTH_ANOTHER_TRY = (408, 429, 502, 503, 504)

Progress = Callable[[int, int], object]
Call = Callable[..., Any]


def cache_folder() -> Path:
    """The user's folder of begun uploads."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scrimp" / "uploads"


def sent(call: Call, path: str, spec: dict[str, Any], files: Mapping[str, Path | None]) -> Any:
    """Sends a declaration with files, streamed from disk; as JSON if there are none.

    Args:
        files: by their parts' names; None: that one is not sent.
    """
    present = {part: file for part, file in files.items() if file is not None}
    if not present:
        return call("POST", path, json=spec, timeout=PARSED_S)
    with ExitStack() as stack:
        parts: dict[str, Any] = {"spec": (None, json.dumps(spec), "application/json")}
        for part, file in present.items():
            parts[part] = (file.name, stack.enter_context(file.open("rb")), "application/octet-stream")
        return call("POST", path, files=parts, timeout=PARSED_S)


def upload(call: Call, base_url: str, path: Path, progress: Progress | None) -> Upload:
    """Sends a file, or the rest of it; returns the complete upload.

    Args:
        call: `Client.json`: method, path and httpx's arguments, to the answer's JSON.
        base_url: the service's address.
        path: the file.
        progress: called with the bytes that are sent and those of the whole file.

    Raises:
        ServiceUnreachable, ApiError: the service does not answer for a minute, or it refuses.
        ScrimpError: the file is empty, or changed while it was sent.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size == 0:
            raise ScrimpError(f"{path} is empty")
        identity = json.dumps([base_url, str(path.resolve()), status.st_size, status.st_mtime_ns])
        state = cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"
        current = _begun(call, state) or _begin(call, state, file, status.st_size)
        tell = progress or (lambda _sent, _whole: None)
        return _send(call, current, file, tell)


def _send(call: Call, current: Upload, file: BufferedReader, tell: Progress) -> Upload:
    failures, certain = 0, True
    while current.offset < current.size:
        try:
            answer = _sent_piece(call, current, file, tell) if certain else _shown(call, current.id)
            failures = 0 if answer.offset > current.offset else failures
            current, certain = answer, True
        except (ServiceUnreachable, ApiError) as error:
            if failures == len(WAITS_S) or not _is_passing(error):
                raise
            time.sleep(WAITS_S[failures])
            failures, certain = failures + 1, False
    tell(current.offset, current.size)
    return current


def _sent_piece(call: Call, current: Upload, file: BufferedReader, tell: Progress) -> Upload:
    length = min(PIECE_BYTES, current.size - current.offset)
    return Upload.model_validate(
        call(
            "PATCH",
            f"/v1/uploads/{current.id}",
            content=_blocks(file, current, length, tell),
            headers={
                "Upload-Offset": str(current.offset),
                "Content-Length": str(length),
                "Content-Type": "application/octet-stream",
            },
            timeout=PIECE_TIME_S,
        )
    )


def _blocks(file: BufferedReader, current: Upload, length: int, tell: Progress) -> Iterator[bytes]:
    file.seek(current.offset)
    sent = 0
    while sent < length:
        tell(current.offset + sent, current.size)
        block = file.read(min(BLOCK_BYTES, length - sent))
        if not block:
            raise ScrimpError("the file became shorter while it was sent: upload it again")
        sent += len(block)
        yield block


def _is_passing(error: ScrimpError) -> bool:
    """Whether a request may succeed later: no connection, a busy service, an upload that another request ends."""
    if isinstance(error, Conflict):
        return error.code in ("upload-busy", "wrong-offset")
    return not isinstance(error, ApiError) or error.status in WORTH_ANOTHER_TRY


def _shown(call: Call, upload_id: str) -> Upload:
    return Upload.model_validate(call("GET", f"/v1/uploads/{upload_id}"))


def _begun(call: Call, state: Path) -> Upload | None:
    """The upload that this file began before, if the service still has it for this key."""
    try:
        return _shown(call, str(json.loads(state.read_text())["id"]))
    except (OSError, ValueError, KeyError, TypeError, NotFound):
        return None


def _begin(call: Call, state: Path, file: BufferedReader, size: int) -> Upload:
    body = {"size": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    begun = Upload.model_validate(call("POST", "/v1/uploads", json=body))
    with suppress(OSError):  # without a cache the upload cannot be resumed by another process, and that is all
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in state.parent.glob("*.json"):
            if time.time() - old.stat().st_mtime > REMEMBERED_S:
                old.unlink(missing_ok=True)
        state.write_text(json.dumps({"id": begun.id}))
    return begun
