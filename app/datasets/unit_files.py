"""The keyed digests of a data set's units, as a published file (see app.storage.objects): a later block is compared
with it.

It lies apart from the parts, because it outlives them: a unit that came back after its block was deleted would have a
second budget.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from app.formats.asked import SealedPart
from app.settings import Settings
from app.storage import objects
from app.storage.parts import DATASETS
from app.storage.seals import Seals
from core.contracts.blocks import UNITS
from core.disk import sync
from core.errors import NotFound, ServiceError
from core.parts.damage import DataDamagedError
from core.parts.sealed import Named, create, finish

logger = logging.getLogger(__name__)


def publish(settings: Settings, dataset_id: str, file: Path, sha256: str) -> None:
    """Puts a data set's units into the bucket, if there is one, before the transaction that names them.

    Raises:
        Unavailable: the bucket does not answer.
    """
    bucket = objects.bucket_of(settings)
    if bucket is not None:
        with Seals(settings).readable(file).open("rb") as content:
            bucket.publish_content(_key(dataset_id, sha256), content.read(), sha256)


def place(settings: Settings, dataset_id: str, sha256: str) -> None:
    """Moves them from the folder of the parts to their own, on disk before this returns; within the transaction that
    names them. In a bucket they are in place."""
    if not settings.object_store:
        path = settings.storage_root / _key(dataset_id, sha256)
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        (settings.storage_root / DATASETS / dataset_id / UNITS).replace(path)
        for folder in (path.parent, path.parent.parent, settings.storage_root):
            sync(folder)


def find(settings: Settings, dataset_id: str, sha256: str) -> Named:
    """The file of the digests; its reader compares the hash. That of a bucket is not written to this machine's disk.

    Raises:
        DataDamagedError: it is missing.
        Unavailable: the bucket does not answer; or it is sealed under a key that is not here.
    """
    key = _key(dataset_id, sha256)
    local, bucket = settings.storage_root / key, objects.bucket_of(settings)
    if bucket is None or local.is_file():  # also with a bucket: from before it was used
        return Seals(settings).readable(local)
    try:
        return bucket.named(key)
    except NotFound:
        raise DataDamagedError("the units of a block cannot be read") from None


def on_disk(settings: Settings, dataset_id: str, sha256: str, folder: Path) -> SealedPart:
    """The file as a process without keys reads it: in its place, or a copy of a bucket's in a staging folder, sealed as
    new files are. Raises as `find`."""
    local, seals = settings.storage_root / _key(dataset_id, sha256), Seals(settings)
    seal = seals.key_of(local)
    if not local.is_file():
        stored, local, seal = find(settings, dataset_id, sha256), folder / f"{UNITS}-{dataset_id}", seals.new()
        with stored.open("rb") as content, create(local, seal) as copy:
            shutil.copyfileobj(content, copy)
            finish(copy)
    return SealedPart(path=str(local.resolve()), sha256=sha256, key=None if seal is None else seal.key.hex())


def remove(settings: Settings, dataset_id: str) -> None:
    """Removes the units of a data set that does not exist, or has no block beside it. What a bucket does not remove now
    stays without a name."""
    try:
        objects.of(settings).remove(f"{UNITS}/{dataset_id}")
    except ServiceError as error:
        logger.warning("the units of %s could not be removed: %s", dataset_id, error.code)


def _key(dataset_id: str, sha256: str) -> str:
    return f"{UNITS}/{dataset_id}/{sha256}"
