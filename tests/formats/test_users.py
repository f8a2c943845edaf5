"""Users as what is protected: what is kept of each, and where it falls, depends on that user alone."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.contracts.dataset_spec import DatasetSpec
from core.errors import InvalidRequest
from tests.formats.files import Rows, parsed, spec, write

FORMATS = ["csv", "jsonl", "parquet", "npz"]


def of_users(format: str = "csv", most: int = 3, users: int = 40, **changes: Any) -> dict[str, Any]:
    document = spec(format, **changes)
    unit = {"unit": "user", "user_column": "u", "max_records_per_user": most, "records": users}
    return document | {"privacy": document["privacy"] | unit}


def rows_of(sizes: dict[str, int], seed: int = 0) -> Rows:
    """Records of users, in an order of chance; `a` is unlike in all of them."""
    rng = np.random.default_rng(seed)
    rows = [
        {"u": user, "a": float(zlib.crc32(f"{user}/{i}".encode()) % 2**24), "b": 1.0, "y": 0.5}
        for user, n in sizes.items()
        for i in range(n)
    ]
    return [rows[i] for i in rng.permutation(len(rows))]


SIZES = {f"user-{i}": 1 + i % 7 for i in range(40)}


def kept_of(parts: dict[str, Any]) -> dict[str, set[float]]:
    """The values of `a` in each part."""
    return {name: set(map(float, part.x[:, 0])) for name, part in parts.items()}


def file_of(path: Path, format: str, rows: Rows) -> Path:
    if format != "npz":
        return write(path, format, rows)
    x = np.array([[row["a"], row["b"]] for row in rows])
    np.savez(path, x=x, y=np.array([row["y"] for row in rows]), u=np.array([row["u"] for row in rows]))
    return path.with_name(path.name + ".npz") if path.suffix != ".npz" else path


@pytest.mark.parametrize("format", FORMATS)
def test_at_most_k_records_of_a_user_are_kept(tmp_path: Path, format: str) -> None:
    rows = rows_of(SIZES)
    answer, parts = parsed(tmp_path, of_users(format), file_of(tmp_path / "d.npz", format, rows))
    user = parts["train"].user
    assert user is not None and user.dtype == np.int64 and len(user) == len(parts["train"].y)
    assert sorted(np.unique(user, return_counts=True)[1]) == sorted(min(n, 3) for n in SIZES.values())
    names = {row["a"]: row["u"] for row in rows}
    of_number = {(int(n), names[float(a)]) for n, a in zip(user, parts["train"].x[:, 0], strict=True)}
    assert len(of_number) == 40  # a number is one user, and a user one number
    dropped = sum(max(n - 3, 0) for n in SIZES.values())
    counts = {"records": len(rows), "dropped": dropped, "units": 40, "train": 40, "holdout": 0}
    assert answer["counts"] == counts
    assert answer["warnings"] == [f"{dropped} records of users with more than 3 are left out"]
    assert answer["features"] == 2


def test_rows_of_each_part_are_counted_beside_its_users(tmp_path: Path) -> None:
    rows, sizes = rows_of(SIZES), [min(n, 3) for n in SIZES.values()]
    answer, parts = parsed(
        tmp_path, of_users(holdout={"kind": "split", "fraction": 0.3}), write(tmp_path / "d", "csv", rows)
    )
    held = {name: {"units": part.units, "rows": len(part.y)} for name, part in parts.items()}
    assert answer["stored"] == held and sum(each["rows"] for each in held.values()) == sum(sizes)
    assert answer["squares"] == {"units": 40, "rows": sum(n * n for n in sizes)}


@pytest.mark.parametrize("holdout", [None, {"kind": "split", "fraction": 0.3}])
def test_a_user_who_comes_or_goes_or_changes_moves_nobody_else(tmp_path: Path, holdout: dict[str, Any] | None) -> None:
    rows = rows_of(SIZES)
    document = of_users(holdout=holdout)
    _, parts = parsed(tmp_path, document, write(tmp_path / "all", "csv", rows))
    whole = kept_of(parts)
    for at, user in enumerate(("user-3", "user-6", "user-20")):
        own = {row["a"] for row in rows if row["u"] == user}
        others = [row for row in rows if row["u"] != user]
        changed = [row | {"a": row["a"] + 0.5} if row["u"] == user else row for row in rows]
        for number, neighbour in enumerate((others, changed, rows_of(SIZES, seed=at + 1))):
            _, found = parsed(tmp_path, document, write(tmp_path / f"{at}-{number}", "csv", neighbour))
            for name, values in kept_of(found).items():
                moved = {a for a in values if a % 1 == 0.5}
                assert values - moved - own == whole[name] - own
        places = [name for name, values in whole.items() if values & own]
        assert len(places) == 1  # all of a user's records fall on one side


def test_the_side_is_the_user_s_not_the_record_s(tmp_path: Path) -> None:
    rows = rows_of(dict.fromkeys((f"u{i}" for i in range(400)), 2))
    answer, parts = parsed(
        tmp_path, of_users(users=400, holdout={"kind": "split", "fraction": 0.25}), write(tmp_path / "d", "csv", rows)
    )
    held = answer["counts"]["holdout"]
    assert answer["counts"] == {"records": 800, "dropped": 0, "units": 400, "train": 400 - held, "holdout": held}
    assert 60 < held < 140 and len(parts["holdout"].y) == 2 * held


def test_a_number_and_its_text_are_one_user(tmp_path: Path) -> None:
    rows = [row | {"u": i % 5 if i % 2 else str(i % 5)} for i, row in enumerate(rows_of({"x": 20}))]
    _, parts = parsed(tmp_path, of_users("jsonl", most=4, users=5), write(tmp_path / "d", "jsonl", rows))
    assert list(np.unique(parts["train"].user, return_counts=True)[1]) == [4] * 5
    table = pa.table({"u": [i % 5 for i in range(20)], **{n: [1.0] * 20 for n in ("a", "b", "y")}})
    pq.write_table(table, tmp_path / "d.parquet")
    _, again = parsed(tmp_path, of_users("parquet", most=4, users=5), tmp_path / "d.parquet")
    assert list(np.unique(again["train"].user, return_counts=True)[1]) == [4] * 5


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_record_without_a_user_is_refused(tmp_path: Path, format: str) -> None:
    rows = rows_of(SIZES)
    rows[3]["u"] = "" if format == "csv" else None
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, of_users(format), write(tmp_path / "d", format, rows))
    error, cell = refused.value.members["errors"]
    assert error["pointer"] == "/privacy/user_column" and "1 missing" in error["detail"] and cell["row"] == 4


def test_a_file_without_the_column_is_refused(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "u"} for row in rows_of(SIZES)]
    for format in FORMATS[:3]:
        with pytest.raises(InvalidRequest) as refused:
            parsed(tmp_path, of_users(format), write(tmp_path / format, format, rows))
        assert refused.value.members["errors"][0]["pointer"] == "/privacy/user_column"


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "user", "user_column": "u"},
        {"unit": "user", "max_records_per_user": 3},
        {"user_column": "u"},
        {"unit": "user", "user_column": "y", "max_records_per_user": 3},
        {"unit": "user", "user_column": "a", "max_records_per_user": 3},
    ],
)
def test_a_unit_is_declared_whole(privacy: dict[str, Any]) -> None:
    document = spec()
    with pytest.raises(ValueError, match="user"):
        DatasetSpec.model_validate(document | {"privacy": document["privacy"] | privacy})
