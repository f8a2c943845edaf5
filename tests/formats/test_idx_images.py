"""scripts/idx_images.py and its part of scripts/fetch_data.py, on files that are written here."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([1, 0], dtype=np.uint8)


@pytest.fixture
def idx_images(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import idx_images

    return idx_images


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_folder(folder: Path) -> Path:
    """One part packed, one not."""
    folder.mkdir()
    for part, array in (("images-idx3-ubyte", IMAGES), ("labels-idx1-ubyte", LABELS)):
        (folder / f"train-{part}.gz").write_bytes(gzip.compress(idx(array)))
        (folder / f"t10k-{part}").write_bytes(idx(array[:1]))
    return folder


def test_a_folder_of_idx_files_becomes_two_npz_files(tmp_path: Path) -> None:
    folder, to = write_folder(tmp_path / "idx"), tmp_path / "images.npz"
    command = [sys.executable, str(SCRIPTS / "fetch_data.py"), "fashion-mnist", "--from", str(folder), "--to", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{to}\n"
    train, test = np.load(to), np.load(tmp_path / "images-test.npz")
    assert train["x"].dtype == np.float32
    np.testing.assert_array_equal(train["x"], IMAGES / np.float32(255))
    np.testing.assert_array_equal(train["y"], LABELS)
    assert test["x"].shape == (1, 3, 4)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x00\x0d\x01\x00\x00\x00\x00", idx(LABELS)[:-1], idx(LABELS) + b"\x00", idx(IMAGES)[:9]],
    ids=["empty", "floats", "short", "long", "cut within its shape"],
)
def test_what_is_no_idx_file_of_bytes_is_refused(idx_images: Any, content: bytes) -> None:
    with pytest.raises(ValueError, match="IDX file"):
        idx_images.read_idx(content)


def test_images_and_labels_have_to_be_as_many(idx_images: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "idx")
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS))
    with pytest.raises(ValueError, match="t10k"):
        idx_images.read_folder(folder)


@pytest.mark.parametrize("packing", ["gz", "xz"])
def test_files_are_read_out_of_a_debian_package(idx_images: Any, packing: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=f"w:{packing}") as tar:  # type: ignore[call-overload]
        for name in ("./usr/share/set/a.gz", "./usr/share/other/b.gz", "./usr/share/set/deeper/c.gz"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    made = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0"), (f"data.tar.{packing}", data.getvalue())):
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        made += content + b"\n" * (len(content) % 2)
    assert idx_images.deb_files(made, "usr/share/set") == {"a.gz": b"abc"}
    with pytest.raises(ValueError, match="Debian"):
        idx_images.deb_files(made[:60], "usr/share/set")
