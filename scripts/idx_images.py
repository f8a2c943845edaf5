"""Converts images in IDX files (MNIST and its successors) to NPZ; fetches Fashion-MNIST from its Debian package.

    from idx_images import read_folder
    train, test = read_folder(Path("/usr/share/datasets/fashion-mnist"))

A folder holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each
plain or with .gz.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

PARTS = {"train": "train", "test": "t10k"}
UBYTE = b"\x00\x00\x08"  # the type code of unsigned bytes; the next byte is the number of dimensions


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian's pool, and the wanted folder in it."""

    url: str
    sha256: str
    folder: str


FASHION_MNIST = DebianPackage(
    "https://deb.debian.org/debian/pool/main/d/dataset-fashion-mnist/"
    "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    "usr/share/datasets/fashion-mnist",
)


@dataclass(frozen=True)
class Images:
    """x: uint8 (n, height, width); y: uint8 (n,)."""

    x: NDArray[np.uint8]
    y: NDArray[np.uint8]

    def save(self, to: Path) -> None:
        """Writes an NPZ with `x`, float32 in 0 … 1, and `y`: completely or not at all."""
        partial = to.with_name(to.name + ".part")
        with partial.open("wb") as file:
            np.savez_compressed(file, x=self.x.astype(np.float32) / np.float32(255), y=self.y.astype(np.int64))
        partial.replace(to)


def read_idx(content: bytes) -> NDArray[np.uint8]:
    """Reads an IDX file of unsigned bytes.

    Raises:
        ValueError: it is not an IDX file, or its header does not match its length.
    """
    start = 4 + 4 * content[3] if len(content) > 4 else 0
    if content[:3] != UBYTE or len(content) < start:
        raise ValueError("not an IDX file of unsigned bytes")
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise ValueError(f"an IDX file of the shape {shape} with {len(content) - start} bytes of data")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_folder(folder: Path) -> tuple[Images, Images]:
    """The training and the test images of a folder of IDX files.

    Raises:
        FileNotFoundError, ValueError: a file is missing, or does not match its name.
    """
    parts = []
    for prefix in PARTS.values():
        x = read_idx(_content(folder, f"{prefix}-images-idx3-ubyte"))
        y = read_idx(_content(folder, f"{prefix}-labels-idx1-ubyte"))
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise ValueError(f"{prefix}: images of the shape {x.shape}, labels of {y.shape}")
        parts.append(Images(x, y))
    return parts[0], parts[1]


def fetch_package(package: DebianPackage, cache: Path) -> Path:
    """Returns the package's folder in the cache; if missing, fetches it by HTTPS and checks its SHA-256."""
    target = cache / PurePosixPath(package.folder).name
    if target.is_dir():
        return target
    content = httpx.get(package.url, follow_redirects=True, timeout=60).raise_for_status().content
    if hashlib.sha256(content).hexdigest() != package.sha256:
        raise RuntimeError(f"{package.url} no longer matches the pinned SHA-256")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / target.name
        made.mkdir()
        for name, data in deb_files(content, package.folder).items():
            (made / name).write_bytes(data)
        made.rename(target)
    return target


def deb_files(content: bytes, folder: str) -> dict[str, bytes]:
    """The plain files directly in a folder of a .deb: an ar archive that contains the tar archive data.tar.*."""
    with tarfile.open(fileobj=io.BytesIO(_ar_member(content, "data.tar"))) as tar:
        found = {}
        for member in tar:
            path = PurePosixPath(member.name)  # "./usr/…"
            if member.isfile() and str(path.parent) == folder:
                found[path.name] = _read(tar, member)
    return found


def _ar_member(content: bytes, prefix: str) -> bytes:
    """Source: Debian policy, deb(5): after an 8-byte magic, headers of 60 bytes, each with its file, padded to 2."""
    at = 8
    while content[:8] == b"!<arch>\n" and at + 60 <= len(content):
        name, size = content[at : at + 16].decode().strip(), int(content[at + 48 : at + 58])
        if name.startswith(prefix):
            return content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise ValueError(f"no Debian package with {prefix} in it")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file: Any = tar.extractfile(member)
    return bytes(file.read())


def _content(folder: Path, name: str) -> bytes:
    packed = folder / f"{name}.gz"
    return gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
