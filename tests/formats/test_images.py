"""Archives of images: every record is an image's values, in any archive; hostile archives are refused by counts."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.datasets.class_folders import pack
from app.formats import image_file
from app.formats.reader_records import Records, Taken
from core.contracts.dataset_spec import DatasetSpec
from core.errors import InvalidRequest
from core.parts.sealed import WRAP_BYTES, DataKey, Named, SealedPath, create

HEIGHT, WIDTH = 4, 6
KEY = DataKey(bytes(32), bytes(WRAP_BYTES))
Files = list[tuple[str, bytes]]


def declared(channels: int = 1) -> DatasetSpec:
    return DatasetSpec.model_validate(
        {
            "name": "clothes",
            "format": "images",
            "task": {"kind": "classification", "label": "class", "classes": ["boot", "coat"]},
            "features": {
                "kind": "tensor",
                "array": "image",
                "image": {"height": HEIGHT, "width": WIDTH, "channels": channels},
            },
            "privacy": {"sensitivity": "public"},
        }
    )


def image(seed: int, mode: str = "L", size: tuple[int, int] = (WIDTH, HEIGHT), kind: str = "PNG") -> bytes:
    depth = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *depth), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(values, mode).save(out, kind)
    return out.getvalue()


def tar(path: Path, files: Files) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def gz(path: Path, files: Files) -> Path:
    plain = tar(path, files).read_bytes()
    path.write_bytes(gzip.compress(plain))
    return path


def zipped(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def folder(path: Path, files: Files) -> Path:
    """As a folder under the data root is packed."""
    for name, content in files:
        (path.parent / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "images" / name).write_bytes(content)
    with path.open("wb") as archive:
        pack(path.parent / "images", archive, 10**9)
    return path


def sealed_folder(path: Path, files: Files) -> SealedPath:
    """The same where files that arrive are sealed."""
    folder(path.with_name("plain"), files)
    with create(path, KEY, "raw") as archive:
        pack(path.parent / "images", archive, 10**9)
    return SealedPath(path, KEY.key)


def sealed_zip(path: Path, files: Files) -> SealedPath:
    with create(path, KEY, "raw") as archive:
        archive.write(zipped(path.with_name("plain"), files).read_bytes())
    return SealedPath(path, KEY.key)


def read(path: Named, spec: DatasetSpec | None = None, limit: int = 10**8) -> tuple[Any, list[int]]:
    pieces: list[Taken] = []
    records = Records(spec or declared(), "file", limit, pieces.append)
    image_file.read(path, records)
    records.check()
    matrices = [each.matrix for each in pieces if each.matrix is not None]
    return np.concatenate(matrices), [int(label) for each in pieces for label in each.y]


GOOD: Files = [(f"{('boot', 'coat')[seed % 2]}/{seed}.png", image(seed)) for seed in range(5)]


@pytest.mark.parametrize("archived", [tar, gz, zipped, folder, sealed_folder, sealed_zip])
def test_every_kind_of_archive_holds_the_same_records(tmp_path: Path, archived: Callable[..., Path]) -> None:
    files = sorted(GOOD)
    x, y = read(archived(tmp_path / "images.archive", files))
    assert y == [0, 0, 0, 1, 1] and x.dtype == np.float32
    right = [np.asarray(Image.open(io.BytesIO(content))).reshape(-1) / np.float32(255) for _, content in files]
    np.testing.assert_array_equal(x, np.stack(right).astype(np.float32))


def test_colours_grey_and_jpeg(tmp_path: Path) -> None:
    files = [("boot/a.PNG", image(1, "RGB")), ("coat/b.jpeg", image(2, "RGB", kind="JPEG")), ("./coat/c.jpg", image(3))]
    x, y = read(zipped(tmp_path / "a", files), declared(3))
    assert x.shape == (3, HEIGHT * WIDTH * 3) and y == [0, 1, 1]
    assert (x[2].reshape(-1, 3) == x[2].reshape(-1, 3)[:, :1]).all()


def test_a_packed_folder_depends_on_its_files_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        folder(tmp_path / name / "packed", GOOD if name == "one" else GOOD[::-1])
    assert (tmp_path / "one" / "packed").read_bytes() == (tmp_path / "two" / "packed").read_bytes()


def test_links_in_a_folder_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(image(9))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.png").write_bytes(image(9))
    (tmp_path / "images" / "boot").mkdir(parents=True)
    (tmp_path / "images" / "boot" / "a.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "images" / "coat").symlink_to(tmp_path / "elsewhere")
    x, _y = read(folder(tmp_path / "packed", GOOD[:1]))
    assert len(x) == 1


def bomb() -> bytes:
    """A PNG of a few kilobytes that claims forty thousand pixels a side."""
    content = bytearray(image(1))
    content[16:24] = (40_000).to_bytes(4, "big") * 2
    return bytes(content)


BAD = {
    "another size": [("boot/a.png", image(1, size=(WIDTH, HEIGHT + 1)))],
    "a bomb": [("boot/a.png", bomb())],
    "colours": [("boot/a.png", image(1, "RGB"))],
    "transparent": [("boot/a.png", image(1, "LA"))],
    "damaged": [("boot/a.png", image(1)[:60])],
    "no image": [("boot/a.png", b"GIF89a" + bytes(50))],
    "empty": [("boot/a.png", b"")],
    "other name": [("boot/a.gif", image(1))],
    "too deep": [("boot/x/a.png", image(1))],
    "no class": [("a.png", image(1))],
    "upwards": [("../a.png", image(1))],
    "absolute": [("/etc/a.png", image(1))],
    "backslash": [("boot/..\\a.png", image(1))],
    "long": [("boot/" + "a" * 300 + ".png", image(1))],
}


@pytest.mark.every_case
@pytest.mark.parametrize("archived", [tar, zipped])
@pytest.mark.parametrize("what", BAD)
def test_what_is_no_image_of_the_declared_shape_is_counted(
    tmp_path: Path, archived: Callable[..., Path], what: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(archived(tmp_path / "a", GOOD + BAD[what]))
    assert "1 " in caught.value.message and "a.png" not in caught.value.message.replace("name.png", "")


def test_special_members_of_a_tar_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo("boot/a.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    with pytest.raises(InvalidRequest, match="4 links or special files"):
        read(path)


@pytest.mark.parametrize("archived", [tar, gz, zipped])
def test_what_it_unpacks_to_is_bounded(tmp_path: Path, archived: Callable[..., Path]) -> None:
    files = [(f"boot/{n}.png", image(1) + bytes(200_000)) for n in range(10)]
    path = archived(tmp_path / "a", files)
    if archived is tar:
        assert len(read(path)[0]) == 10  # nothing is packed in it
        return
    assert path.stat().st_size < 100_000
    with pytest.raises(InvalidRequest, match="unpacks to more than"):
        read(path, limit=1_000_000)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"a,b\n1,2\n", bytes(10_000)])
def test_other_files_are_no_archives(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InvalidRequest):
        read(tmp_path / "a")


def test_folders_are_classes(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tar(tmp_path / "a", [*GOOD, ("sock/a.png", image(1))]))
    assert caught.value.members["errors"][0]["pointer"] == "/task/label"


WRONG: list[dict[str, Any]] = [
    {"format": "npz"},
    {"features": {"kind": "tensor", "array": "image"}},
    {"task": {"kind": "regression", "label": "class"}},
    {"features": {"kind": "columns", "columns": ["a"]}},
    {"privacy": {"sensitivity": "public", "unit": "user", "user_column": "u", "max_records_per_user": 2}},
]


@pytest.mark.parametrize("change", WRONG)
def test_declarations_of_images_are_whole(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DatasetSpec.model_validate(declared().model_dump(mode="json") | change)
