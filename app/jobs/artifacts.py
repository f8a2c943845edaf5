"""Sends a job's files only as published: a download of a changed file breaks off, and the file is marked damaged."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from fastapi.responses import FileResponse, StreamingResponse
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from app.db.database import Database
from app.db.models import Artifact
from app.storage.bucket import DamagedError
from app.storage.objects import Objects
from app.web.headers import is_head
from core.errors import Conflict
from core.ids import now

logger = logging.getLogger(__name__)
READ_BYTES = 1 << 20


class ArtifactDamagedError(Exception):
    """The file being sent differs from the published one: the connection breaks off before the file's end."""


def local(db: Database, store: Objects, artifact: Artifact) -> Path:
    """Returns a file of this machine with an artifact's content.

    Raises:
        NotFound: the file does not exist.
        Conflict: `artifact-damaged`: an object store has another content.
    """
    try:
        return store.local(artifact.path, artifact.sha256)
    except DamagedError as error:
        if artifact.damaged_at is None:
            mark(db, artifact, damaged=True)
        raise Conflict("artifact-damaged", error.message) from None


def check(db: Database, artifact: Artifact, path: Path) -> None:
    """Reads the whole file before any of it is sent: for a range request, or if the file was found damaged before.

    A file restored from a backup can be downloaded again.

    Raises:
        Conflict: `artifact-damaged`.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    whole = digest.hexdigest() == artifact.sha256
    if whole == (artifact.damaged_at is not None):
        mark(db, artifact, damaged=not whole)
    if not whole:
        raise Conflict(
            "artifact-damaged", "the stored file differs from the published one: ask the operator to restore it"
        )


def mark(db: Database, artifact: Artifact, *, damaged: bool) -> None:
    """Marks an artifact as damaged or as whole again."""
    with db.write() as session:
        row = session.get(Artifact, (artifact.job_id, artifact.name))
        if row is not None:
            row.damaged_at = now() if damaged else None
    logger.error("%s of %s is %s", artifact.name, artifact.job_id, "damaged" if damaged else "whole again")


class CheckedFile(FileResponse):
    """Sends a whole file and hashes it on the way. It holds the end back until the hash is right, so a damaged file
    never arrives complete. Ranges are sent without a hash: `check` comes first.

    Args:
        sha256: the published file's hash.
        on_damage: called before the response breaks off.
        headers: the response's headers.
    """

    def __init__(
        self, path: Path, sha256: str, on_damage: Callable[[], None], *, name: str, headers: dict[str, str]
    ) -> None:
        super().__init__(path, media_type="application/octet-stream", filename=name, headers=headers)
        self.sha256, self.on_damage = sha256, on_damage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Without extensions: a server that sends files by itself would skip the hash.
        await super().__call__({**scope, "extensions": {}}, receive, checked(send, self.sha256, self.on_damage))


class CheckedStream(StreamingResponse):
    """Sends pieces as `CheckedFile` a file: their end is held back until the hash of all is right. No ranges.

    Args:
        size: of all pieces together.
    """

    def __init__(self, pieces: Iterable[bytes], sha256: str, size: int, *, name: str, headers: dict[str, str]) -> None:
        all_headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(pieces, media_type="application/octet-stream", headers=headers | all_headers)
        self.sha256 = sha256

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_head(scope):  # the pieces of a large archive are not read to be dropped
            self.body_iterator = iterate_in_threadpool(())
            await super().__call__(scope, receive, send)
            return
        await super().__call__(scope, receive, checked(send, self.sha256, lambda: None))


def checked(send: Send, sha256: str, on_damage: Callable[[], None]) -> Send:
    """Sends a whole body on, and breaks off before its end if its hash is another one."""
    digest = hashlib.sha256()
    held: Message | None = None
    whole = True

    async def sent(message: Message) -> None:
        nonlocal held, whole
        if message["type"] == "http.response.start":
            whole = message["status"] == 200
        if message["type"] != "http.response.body" or not whole:
            await send(message)
            return
        digest.update(message["body"])
        last = not message.get("more_body", False)
        # Checked before the held piece is sent: the last piece may be empty.
        if last and digest.hexdigest() != sha256:
            await run_in_threadpool(on_damage)
            raise ArtifactDamagedError
        if held is not None:
            await send(held)
        held = message
        if last:
            await send(message)

    return sent
