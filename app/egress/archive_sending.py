"""Puts an egress's papers and its job's files into one archive as it is sent; nothing is written."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Artifact, Egress
from app.egress import archive
from app.egress.archive import Content
from app.storage.bucket import DamagedError
from app.storage.objects import Objects
from core.errors import Conflict

MODEL = "model/"
DAMAGED = "the stored archive differs from the one that was made: ask for another egress"
Files = list[tuple[str, str, str]]


def files_of(session: Session, egress: Egress) -> Files:
    """The name, path and SHA-256 of each file of its job."""
    rows = select(Artifact).where(Artifact.job_id == egress.job_id).order_by(Artifact.name)
    return [(each.name, each.path, each.sha256) for each in session.scalars(rows)]


def of_model(local: Mapping[str, Path]) -> dict[str, Content]:
    """A model's files by their names in the folder."""
    return {MODEL + name: path for name, path in local.items()}


def pieces(store: Objects, egress: Egress, files: Files) -> Iterator[bytes]:
    """The archive of an egress that is made, in pieces; its reader checks their hash.

    Raises:
        NotFound, Unavailable: as `Objects.local`; before there is a piece.
        Conflict: `artifact-damaged`: a stored file differs from its recorded SHA-256.
    """
    try:
        papers = store.local(str(egress.path), str(egress.papers_sha256))
        model = {name: store.local(path, sha256) for name, path, sha256 in files}
    except DamagedError:
        raise Conflict("artifact-damaged", DAMAGED) from None

    def read() -> Iterator[bytes]:
        with zipfile.ZipFile(papers) as packed:
            written = {name: zipfile.Path(packed, name) for name in packed.namelist()}
            yield from archive.pieces({**written, **of_model(model)})

    return read()
