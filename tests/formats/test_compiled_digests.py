"""The compiled digests of records are hashlib's to the bit, on every path of the CPU, for every kind of record."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from app.sandbox.limited import run_limited
from core.native import blake2b
from core.native.blake2b import Blake2b, by_hashlib, keyed
from core.native.library import PATHS
from core.parts.digests import MultisetHash
from tests.formats import test_interactions, test_sequences
from tests.formats.files import parsed, spec, write
from tests.formats.test_tables import TABLE, typed
from tests.worker.native import opened

LENGTHS = [0, 1, 127, 128, 129, 0, 255, 256, 257, 171, 171, 171, 171, 171, 171, 171, 171, 3, 70_000, 2, 0]
PARAMETERS = [(1, b"", 64), (32, b"scrimp/record", 16), (64, b"p" * 16, 32), (17, b"scrimp/element", 1)]
SPLIT = {"kind": "split", "fraction": 0.3}


@pytest.fixture(params=PATHS)
def compiled(request: pytest.FixtureRequest) -> Blake2b:
    return Blake2b(opened(request.param))


def messages(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    content = np.random.default_rng(sum(lengths)).integers(0, 256, sum(lengths), dtype=np.uint8)
    return content, np.array(list(accumulate(lengths)), dtype=np.int64)


@pytest.mark.parametrize(
    "lengths", [LENGTHS, LENGTHS[::-1], [], [0], [0] * 9, [128] * 16, [5], *([7] * n for n in (4, 8, 9))]
)
@pytest.mark.parametrize(("key", "person", "size"), PARAMETERS)
def test_messages_of_any_length(compiled: Blake2b, lengths: list[int], key: int, person: bytes, size: int) -> None:
    content, ends = messages(lengths)
    secret = bytes(range(key))
    expected = [
        hashlib.blake2b(content[end - length : end].tobytes(), digest_size=size, key=secret, person=person).digest()
        for length, end in zip(lengths, ends.tolist(), strict=True)
    ]
    for digests in (compiled.digests, by_hashlib):
        found = digests(content, ends, secret, person, size)
        assert found.shape == (len(lengths), size) and [row.tobytes() for row in found] == expected


def test_messages_that_are_no_rows_of_one_array(compiled: Blake2b) -> None:
    """A view with strides is read as what it shows."""
    content, ends = messages([100] * 6)
    expected = by_hashlib(content[::2], ends // 2, b"k", b"", 16)
    assert np.array_equal(compiled.digests(content[::2], ends // 2, b"k", b"", 16), expected)


@pytest.mark.parametrize(
    ("ends", "key", "size"),
    [
        ([5, 3], b"k", 16),
        ([-1, 3], b"k", 16),
        ([3, 11], b"k", 16),
        ([3], b"", 16),
        ([3], b"k" * 65, 16),
        ([3], b"k", 65),
    ],
)
def test_what_would_read_beyond_the_content_is_refused(ends: list[int], key: bytes, size: int) -> None:
    with pytest.raises(ValueError, match=r"messages end|a key has"):
        keyed(np.zeros(10, dtype=np.uint8), np.array(ends, dtype=np.int64), key=key, person=b"", size=size)


def test_a_sum_of_elements_of_no_record_is_that_of_none(compiled: Blake2b, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blake2b, "COMPILED", compiled)
    some = MultisetHash(b"k")
    some.add(np.empty((0, 2), dtype=np.uint64))
    assert some.hmac() == MultisetHash(b"k").hmac()


def numbers(folder: Path) -> tuple[dict[str, Any], Path]:
    """Numbers that float32 rounds, both zeros, denormals, repeated rows."""
    rows = [{"a": i * 0.37 % 5 - 2, "b": (-0.0, 0.0, 1e-40, 1e30)[i % 4], "y": i % 3} for i in range(500)]
    return spec("parquet", classes=[0, 1, 2], holdout=SPLIT), write(folder / "d", "parquet", rows)


def targets(folder: Path) -> tuple[dict[str, Any], Path]:
    """Real labels, both zeros among them, without a split."""
    rows = [{"a": float(i), "b": -0.0, "y": -0.0 if i % 2 else 0.5} for i in range(50)]
    return spec("jsonl"), write(folder / "d", "jsonl", rows)


def classes(folder: Path) -> tuple[dict[str, Any], Path]:
    """Classes whose names have different lengths, so records have."""
    names = ["", "a", "ä" * 50, "c" * 200]
    rows = [{"a": i % 7, "b": 1, "y": names[i % 4]} for i in range(60)]
    document = spec("csv", classes=names[1:], holdout=SPLIT)
    return document, write(folder / "d", "csv", [row for row in rows if row["y"]])


def table(folder: Path) -> tuple[dict[str, Any], Path]:
    """Cells that are missing are NaN; categories, days."""
    return spec("parquet", features=TABLE), write(folder / "d", "parquet", typed())


def nulls(folder: Path) -> tuple[dict[str, Any], Path]:
    """Missing numbers as Arrow's nulls and as NaN."""
    columns = [{"name": name, "kind": "number", "range": [0, 9], "missing": "flag"} for name in ("a", "b")]
    made = pa.table({"a": [1.0, None, float("nan"), 4.0] * 9, "b": pa.array([None, 2, 3, None] * 9), "y": [0.5] * 36})
    pq.write_table(made, folder / "d")
    return spec("parquet", features={"kind": "table", "columns": columns}), folder / "d"


def texts(folder: Path) -> tuple[dict[str, Any], Path]:
    """Texts from none to 100,000 characters, some not of ASCII."""
    rows = [
        {"t": ("x", "ü", "🌍 ")[i % 3] * length, "y": i % 2} for i, length in enumerate((1, 40, 127, 9, 100_000, 60))
    ]
    return spec("jsonl", features={"kind": "text", "column": "t"}, classes=[0, 1], holdout=SPLIT), write(
        folder / "d", "jsonl", rows * 3
    )


def tensors(folder: Path) -> tuple[dict[str, Any], Path]:
    rows = [{"a": i / 3, "b": i % 5, "y": i % 2} for i in range(90)]
    return spec("npz", classes=[0, 1], holdout=SPLIT), write(folder / "d", "npz", rows)


def users(folder: Path) -> tuple[dict[str, Any], Path]:
    """People by their names, a bound on their records."""
    rows = [{"u": f"{'ü' * (i % 30)}{i % 30}", "a": float(i), "b": 1.0, "y": i % 2} for i in range(200)]
    document = spec("parquet", classes=[0, 1], holdout=SPLIT, records=30)
    bound = {"unit": "user", "user_column": "u", "max_records_per_user": 4}
    return document | {"privacy": document["privacy"] | bound}, write(folder / "d", "parquet", rows)


def ratings(folder: Path) -> tuple[dict[str, Any], Path]:
    return test_interactions.spec(), test_interactions.write(folder / "d", "inter")


def histories(folder: Path) -> tuple[dict[str, Any], Path]:
    return test_sequences.spec(), test_sequences.write(folder / "d")


def images(folder: Path) -> tuple[dict[str, Any], Path]:
    import tarfile

    features = {"kind": "tensor", "array": "x", "image": {"width": 6, "height": 5, "channels": 1}}
    with tarfile.open(folder / "d", "w") as archive:
        for number in range(20):
            pixels = np.random.default_rng(number % 15).integers(0, 256, (5, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(content := io.BytesIO(), "PNG")
            member = tarfile.TarInfo(f"{number % 2}/{number}.png")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
    return spec("images", features=features, classes=["0", "1"], holdout=SPLIT), folder / "d"


KINDS = (numbers, targets, classes, table, nulls, texts, tensors, users, ratings, histories, images)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_record_has_the_same_names_split_and_units(
    tmp_path: Path,
    compiled: Blake2b,
    kind: Callable[[Path], tuple[dict[str, Any], Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document, file = kind(tmp_path)
    answers = []
    for way in (compiled, None):
        monkeypatch.setattr(blake2b, "COMPILED", way)
        answer, _ = parsed(tmp_path, document, file, earlier_hashes=True)
        answers.append({name: answer[name] for name in ("contents", "counts", "units_sha256", "squares", "parts")})
    assert answers[0] == answers[1] and answers[0]["counts"]["records"] > 0


def has_compiled(_: dict[str, Any]) -> dict[str, Any]:
    """Whether this process has the compiled digests."""
    return {"compiled": blake2b.COMPILED is not None}


@pytest.mark.skipif(blake2b.COMPILED is None, reason="nothing is compiled here")
def test_the_process_that_parses_has_them_too() -> None:
    """It opens no files but those that it is given, and the installation's."""
    asked = f"{__name__}:{has_compiled.__name__}"
    assert run_limited(asked, {}, memory_bytes=2**30, time_s=60) == {"compiled": True}
