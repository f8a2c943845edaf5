"""Each format yields the same records, whatever it is written as."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import PermanentError
from core.parts.part_files import load_part, save_part
from core.parts.stored_records import Csr, StoredPart
from tests.formats.files import TEXT, dense, number_rows, parsed, spec, write

FORMATS = ["csv", "jsonl", "parquet", "npz"]


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_round_trip(tmp_path: Path, format: str) -> None:
    rows = number_rows(50)
    answer, parts = parsed(tmp_path, spec(format), write(tmp_path / "data.npz", format, rows))
    np.testing.assert_array_equal(parts["train"].x, np.array([[r["a"], r["b"]] for r in rows], dtype=np.float32))
    np.testing.assert_array_equal(parts["train"].y, np.array([r["y"] for r in rows]))
    assert parts["train"].x.dtype == np.float32 and parts["train"].y.dtype == np.float64
    assert (answer["features"], answer["outputs"], answer["sparse"]) == (2, 1, False)
    assert answer["counts"] == {"records": 50, "dropped": 0, "units": 50, "train": 50, "holdout": 0}
    assert list(parts) == ["train"]


def test_equal_records_have_equal_digests_in_every_format_and_any_order(tmp_path: Path) -> None:
    rows = number_rows(20)
    rows[3]["a"] = 0.0
    hmacs = set()
    for i, format in enumerate([*FORMATS, "jsonl"]):
        shuffled = [dict(rows[j]) for j in np.random.default_rng(i).permutation(20)]
        for row in shuffled:
            row["a"] = -0.0 if row["a"] == 0.0 and i % 2 else row["a"]
        answer, _ = parsed(tmp_path, spec(format), write(tmp_path / f"{i}.npz", format, shuffled))
        hmacs |= {each["hmac"] for each in answer["contents"] if each["kind"] == "multiset"}
    assert len(hmacs) == 1


def test_the_order_of_columns_and_classes_does_not_change_a_record(tmp_path: Path) -> None:
    rows = [row | {"y": i % 2} for i, row in enumerate(number_rows(10))]
    file = write(tmp_path / "data", "csv", rows)
    hmacs = set()
    for columns, classes in ((["a", "b"], [0, 1]), (["b", "a"], ["1", "0"])):
        document = spec(features={"kind": "columns", "columns": columns}, classes=classes)
        answer, _ = parsed(tmp_path, document, file)
        hmacs |= {each["hmac"] for each in answer["contents"]}
    assert len(hmacs) == 2  # one of the bytes, one of the records


def test_any_change_of_a_record_changes_the_digest(tmp_path: Path) -> None:
    base = number_rows(5)
    variants = [base, base[:-1], [*base, base[0]], [base[0] | {"y": 9.0}, *base[1:]], [base[0] | {"a": 9.0}, *base[1:]]]
    hmacs = set()
    for i, rows in enumerate(variants):
        answer, _ = parsed(tmp_path, spec(), write(tmp_path / str(i), "csv", rows))
        hmacs.add(answer["contents"][1]["hmac"])
    assert len(hmacs) == len(variants)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_texts_become_sparse_hashed_ngrams(tmp_path: Path, format: str) -> None:
    from sklearn.feature_extraction.text import HashingVectorizer  # two seconds

    texts = ['a "quoted" film,\nwith two lines\r\nof text', "Schöner FILM film", "", "  ?!", "bad bad bad"]
    rows = [{"t": text, "y": "neg" if "bad" in text else "pos"} for text in texts]
    answer, parts = parsed(
        tmp_path, spec(format, features=TEXT, classes=["pos", "neg"]), write(tmp_path / "data", format, rows)
    )
    part = parts["train"]
    expected = HashingVectorizer(n_features=64, alternate_sign=False, binary=True, norm="l2").transform(texts).toarray()
    np.testing.assert_allclose(dense(part), expected, rtol=1e-6)
    np.testing.assert_array_equal(part.y, [0, 0, 0, 0, 1])
    assert isinstance(part.x, Csr) and part.x.indptr.dtype == np.int64 and part.x.indices.dtype == np.int32
    assert (answer["features"], answer["outputs"], answer["sparse"]) == (64, 2, True)
    np.testing.assert_array_equal(dense(part)[2:4], 0.0)


@pytest.mark.parametrize("binary", [True, False])
def test_ngrams_and_counts_are_as_declared(tmp_path: Path, binary: bool) -> None:
    from sklearn.feature_extraction.text import HashingVectorizer  # two seconds

    rows = [{"t": "one two two three", "y": 0}, {"t": "two", "y": 1}]
    features = TEXT | {"ngrams": [1, 2], "binary": binary}
    _, parts = parsed(tmp_path, spec(features=features, classes=[0, 1]), write(tmp_path / "d", "csv", rows))
    vectorizer = HashingVectorizer(n_features=64, alternate_sign=False, binary=binary, norm="l2", ngram_range=(1, 2))
    np.testing.assert_allclose(dense(parts["train"]), vectorizer.transform([r["t"] for r in rows]).toarray(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float32", "float64", "bool"])
def test_a_tensor_is_flattened(tmp_path: Path, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2, size=(7, 3, 2)).astype(dtype)
    np.savez_compressed(
        tmp_path / "d.npz", x=np.asfortranarray(x), y=np.arange(7) % 2, unused=np.array(["a", None], dtype=object)
    )
    _, parts = parsed(tmp_path, spec("npz", classes=[0, 1]), tmp_path / "d.npz")
    np.testing.assert_array_equal(parts["train"].x, x.reshape(7, 6).astype(np.float32))
    assert parts["train"].x.dtype == np.float32


@pytest.mark.parametrize(
    ("format", "labels", "classes", "expected"),
    [
        ("csv", ["1", "0", "1"], [0, 1], [1, 0, 1]),
        ("csv", ["b", "a", "b"], ["a", "b"], [1, 0, 1]),
        ("csv", ["-1", "5", "5"], [5, -1], [1, 0, 0]),
        ("csv", ["1.000000", " 0", "1e0"], [0, 1], [1, 0, 1]),
        ("csv", ["1.0", "1", "01"], ["1", "1.0", "01"], [1, 0, 2]),
        ("jsonl", [1, 0.0, "1"], [0, 1], [1, 0, 1]),
        ("jsonl", [True, False, True], [0, 1], [1, 0, 1]),
        ("jsonl", [True, False, True], ["true", "false"], [0, 1, 0]),
        ("parquet", [1, 0, 1], [0, 1], [1, 0, 1]),
        ("parquet", [1.0, 0.0, 1.0], ["0", "1"], [1, 0, 1]),
        ("parquet", ["x", "y", "x"], ["y", "x"], [1, 0, 1]),
        ("npz", [1, 0, 1], [0, 1], [1, 0, 1]),
        ("npz", ["x", "y", "x"], ["y", "x"], [1, 0, 1]),
    ],
)
def test_labels_match_classes_by_their_text(
    tmp_path: Path, format: str, labels: list[Any], classes: list[int | str], expected: list[int]
) -> None:
    rows = [{"a": 1.0, "b": 2.0, "y": label} for label in labels]
    _, parts = parsed(tmp_path, spec(format, classes=classes), write(tmp_path / "d.npz", format, rows))
    np.testing.assert_array_equal(parts["train"].y, expected)
    assert parts["train"].y.dtype == np.int64


def test_csv_numbers_may_have_blanks_signs_and_exponents(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(b"\xef\xbb\xbfa,b,y\r\n 1 ,+2.5,1e3\r\n\r\n-.5,3.,-2E-1\r\n")
    _, parts = parsed(tmp_path, spec(), tmp_path / "d")
    np.testing.assert_array_equal(parts["train"].x, np.array([[1.0, 2.5], [-0.5, 3.0]], dtype=np.float32))
    np.testing.assert_array_equal(parts["train"].y, [1000.0, -0.2])


def test_parquet_types_and_dictionaries(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2, 3], pa.int8()),
            "b": pa.array([0.5, 1.5, 2.5], pa.float32()),
            "c": pa.array([True, False, True]),
            "d.e": pa.array(["1.5", "2.5", "3.5"]).cast(pa.decimal128(5, 2)),
            "y": pa.array(["u", "v", "u"]).dictionary_encode(),
            "unused": pa.array([[1], [2], [3]]),
        }
    )
    pq.write_table(table, tmp_path / "d", row_group_size=2)
    document = spec("parquet", classes=["u", "v"], features={"kind": "columns", "columns": ["d.e", "c", "b", "a"]})
    _, parts = parsed(tmp_path, document, tmp_path / "d")
    np.testing.assert_array_equal(parts["train"].x, [[1.5, 1, 0.5, 1], [2.5, 0, 1.5, 2], [3.5, 1, 2.5, 3]])
    np.testing.assert_array_equal(parts["train"].y, [0, 1, 0])


def test_a_public_holdout_is_a_part_of_its_own(tmp_path: Path) -> None:
    data, extra = number_rows(30, seed=1), number_rows(7, seed=2)
    answer, parts = parsed(
        tmp_path,
        spec(holdout={"kind": "public"}, records=30),
        write(tmp_path / "d", "csv", data),
        write(tmp_path / "h", "csv", [*extra, data[0]]),
    )
    assert (len(parts["train"].y), len(parts["holdout"].y)) == (30, 8)
    assert {(each["part"], each["kind"]) for each in answer["contents"]} == {
        (part, kind) for part in ("data", "holdout") for kind in ("sha256", "multiset")
    }
    assert answer["warnings"] == ["1 records of the hold-out file are also in the data: scores on it will be too high"]


def test_the_owner_is_told_where_the_declared_count_is_far_off(tmp_path: Path) -> None:
    file = write(tmp_path / "d", "csv", number_rows(50))
    for declared, told in ((50, False), (46, False), (45, True), (56, True)):
        answer, _ = parsed(tmp_path, spec(records=declared), file)
        assert bool(answer["warnings"]) == told


def test_parts_are_private_files_and_checked_when_loaded(tmp_path: Path) -> None:
    part = StoredPart(x=np.ones((3, 2), dtype=np.float32), y=np.arange(3, dtype=np.int64))
    path = tmp_path / "part.npz"
    sha256 = save_part(path, part)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_part(path, sha256).shape == (3, 2)
    with pytest.raises(FileExistsError):
        save_part(path, part)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    for missing in (path, tmp_path / "none.npz"):
        with pytest.raises(PermanentError) as caught:
            load_part(missing, sha256)
        assert caught.value.code == "data-damaged"


def test_empty_parts_round_trip(tmp_path: Path) -> None:
    empty = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), (0, 9))
    sha256 = save_part(tmp_path / "p", StoredPart(x=empty, y=np.zeros(0, np.int64)))
    assert load_part(tmp_path / "p", sha256).shape == (0, 9)


def test_stored_parts_load_without_arrow_or_sklearn() -> None:
    code = (
        "import sys, core.parts.stored_records; "
        "print(sorted({'pyarrow', 'sklearn', 'scipy', 'pydantic'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
