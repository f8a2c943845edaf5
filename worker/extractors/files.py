"""An extractor's files, checked against the hash that a job was admitted with before anything reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors

from app.contracts.extractor import MANIFEST, MANIFESTS, Manifest
from app.errors import PermanentError


class ExtractorMissingError(PermanentError):
    """The extractor is not there, or is not the one that was admitted."""

    code = "extractor-missing"


def read_extractor(folder: Path, sha256: str) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the files that it names.

    Raises:
        ExtractorMissingError: the manifest does not have this SHA-256, or a file not the manifest's.
        OSError, ValueError: they are not there, or are no such things (see `loading`).
    """
    content = (folder / MANIFEST).read_bytes()
    _check(content, sha256)
    manifest = MANIFESTS.validate_json(content)
    files = {name: (folder / name).read_bytes() for name in manifest.files}
    for name, digest in manifest.files.items():
        _check(files[name], digest)
    return manifest, files


@contextmanager
def loading() -> Iterator[None]:
    """Whatever is wrong with an extractor's files is one error, which says nothing of them."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError):
        raise ExtractorMissingError("the extractor cannot be loaded") from None


def _check(content: bytes, sha256: str) -> None:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ExtractorMissingError("a file of the extractor is not what was admitted")
