"""The files of a registration: sent with it, uploaded in pieces before, under the data root, or in a listed bucket.

Large ones are neither copied nor compared with their hash within the request: `fetch` does it in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.datasets import bucket_files, class_folders, resumable, storage
from app.datasets.parsing import Parsers
from app.settings import Settings
from app.storage.seals import Seals
from core.contracts.base import Document
from core.contracts.dataset_spec import PREFIXES, DatasetSpec
from core.errors import InvalidRequest
from core.parts.sealed import DataKey, content_size, readable


class Source(Document):
    """One file, and what is left to do before it is read.

    Attributes:
        path: where it is copied from, under the data root or s3://bucket/key; None: it is in its folder.
        is_folder: it is a folder of images, and packed.
        etag: the accepted version of a bucket's object.
        sha256: what it has to be, in hex.
    """

    size: int
    path: str | None = None
    is_folder: bool = False
    etag: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Arrived:
    """A declaration with its files, by the names that they have in their staging folder."""

    spec: DatasetSpec
    sources: Mapping[str, Source]
    folder: Path

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.sources.values())

    @property
    def new_bytes(self) -> int:
        """The bytes that no upload has declared before."""
        declared = self._uploads.keys()
        return sum(each.size for name, each in self.sources.items() if name not in declared)

    def consume_uploads(self, settings: Settings) -> None:
        """Deletes the uploads in pieces that were named: their bytes are stored otherwise now."""
        for upload in self._uploads.values():
            resumable.consume(settings, upload)

    @property
    def _uploads(self) -> dict[str, str]:
        by_name = {name: getattr(self.spec, f"{prefix}upload") for name, prefix in PREFIXES.items()}
        return {name: upload for name, upload in by_name.items() if upload is not None}


def sent(spec: DatasetSpec, folder: Path) -> Arrived:
    """A declaration whose files came with it."""
    files = {name: storage.arrived(folder, name) for name in PREFIXES}
    sizes = {name: _size(file) for name, file in files.items() if file.exists()}
    return Arrived(spec, {name: Source(size=size) for name, size in sizes.items()}, folder)


def _size(file: Path) -> int:
    """The bytes that were sent."""
    return content_size(file) if file.name.endswith(storage.SEALED) else file.stat().st_size


def named(spec: DatasetSpec, folder: Path, settings: Settings, owner_key: str) -> Arrived:
    """A declaration that names its files. Uploads are linked into the folder; nothing is copied.

    Raises:
        InvalidRequest: there is no such file or upload, or a part of it is missing.
        TooLarge: a file under the data root or in a bucket is.
        Unavailable: a bucket does not answer.
    """
    sources: dict[str, Source] = {}
    for name, prefix in PREFIXES.items():
        path, upload = getattr(spec, f"{prefix}path"), getattr(spec, f"{prefix}upload")
        if path is not None and upload is not None:
            raise InvalidRequest.at(f"/{prefix}upload", f"give `{prefix}path` or `{prefix}upload`, not both")
        if path is not None and bucket_files.is_one(path):
            sources[name] = _in_bucket(path, f"/{prefix}path", settings)
        elif path is not None:
            sources[name] = _under_data_root(spec, path, f"/{prefix}path", settings)
        if upload is not None:
            declared = resumable.take(settings, owner_key, upload, f"/{prefix}upload", folder, name)
            sources[name] = Source(size=declared.size, sha256=declared.sha256)
    return Arrived(spec, sources, folder)


def _in_bucket(path: str, pointer: str, settings: Settings) -> Source:
    address = bucket_files.parse(path, pointer, settings.data_buckets)
    object_file = bucket_files.look(address, pointer, settings.max_path_bytes)
    return Source(size=object_file.size, path=path, etag=object_file.etag)


def _under_data_root(spec: DatasetSpec, path: str, pointer: str, settings: Settings) -> Source:
    root, limit = settings.data_root, settings.max_path_bytes
    folder = storage.folder_under_data_root(root, path) if spec.format == "images" else None
    if folder is not None:
        return Source(size=class_folders.size(folder, limit), path=path, is_folder=True)
    return Source(size=storage.size_under_data_root(root, path, pointer, limit), path=path)


def fetch(sources: Mapping[str, Source], folder: Path, settings: Settings, parsers: Parsers) -> None:
    """Copies what is under the data root or in a bucket; compares what was uploaded with its hash. It can be repeated.

    Raises:
        InvalidRequest, TooLarge, StorageFull, Unavailable: as `storage.copy_from_data_root` and `bucket_files.copy`; a
            file is not the declared one.
        LimitError: too many copies are made at once (503).
    """
    seals = Seals(settings)
    for name, source in sources.items():
        prefix = PREFIXES[name]
        if source.path is not None and not storage.arrived(folder, name).exists():
            half, key = folder / f"{name}.part", seals.new()
            half.unlink(missing_ok=True)
            with parsers.copying():
                _copy(source, source.path, f"/{prefix}path", half, settings, key)
            half.rename(storage.place(folder, name, sealed=key is not None))
        if source.sha256 is not None:
            file = storage.arrived(folder, name)
            content = readable(file, storage.key_of(seals, file))
            resumable.check_arrived(content, source.sha256, f"/{prefix}upload")


def _copy(source: Source, path: str, pointer: str, target: Path, settings: Settings, key: DataKey | None) -> None:
    room = resumable.room_of(settings)
    if source.etag is not None:
        address = bucket_files.parse(path, pointer, settings.data_buckets)  # it may have been taken off the list
        bucket_files.copy(address, bucket_files.Found(source.size, source.etag), pointer, target, room, key)
        return
    take = storage.pack_from_data_root if source.is_folder else storage.copy_from_data_root
    take(settings.data_root, path, pointer, target, settings.max_path_bytes, room, key)
