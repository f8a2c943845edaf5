"""An extractor's files, checked before use against the hash that the job was admitted with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors

from core.contracts.extractor import FORMER, MANIFEST, MANIFESTS, FormerManifest, Manifest
from core.errors import PermanentError


class ExtractorMissingError(PermanentError):
    """The extractor is missing or differs from the admitted one."""

    code = "extractor-missing"


class ExtractorFormerError(ExtractorMissingError):
    """The extractor is the admitted one, and only earlier releases have its kind."""

    code = "extractor-former"

    def __init__(self) -> None:
        super().__init__(FORMER)


def read_extractor(folder: Path, sha256: str) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the files that it names.

    Raises:
        ExtractorMissingError: the manifest's SHA-256 differs, or a file's SHA-256 differs from the manifest.
        ExtractorFormerError: its kind is of earlier releases.
        OSError, ValueError: files are missing or malformed (see `loading`).
    """
    manifest = read_manifest(folder, sha256)
    files = {name: (folder / name).read_bytes() for name in manifest.files}
    for name, digest in manifest.files.items():
        _check(files[name], digest)
    return manifest, files


def read_manifest(folder: Path, sha256: str) -> Manifest:
    """Reads and checks the manifest alone. Raises as `read_extractor` does."""
    content = (folder / MANIFEST).read_bytes()
    _check(content, sha256)
    manifest = MANIFESTS.validate_json(content)
    if isinstance(manifest, FormerManifest):
        raise ExtractorFormerError
    return manifest


@contextmanager
def loading() -> Iterator[None]:
    """Turns every problem with an extractor's files into one error that reveals nothing about them."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, safetensors.SafetensorError):
        raise ExtractorMissingError("the extractor cannot be loaded") from None


def _check(content: bytes, sha256: str) -> None:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ExtractorMissingError("a file of the extractor differs from the admitted one")
