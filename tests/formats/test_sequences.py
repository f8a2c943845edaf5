"""Interaction tables as sequences: a record is one user's rows in the order of time, whatever order the file has."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from core.contracts.dataset_spec import DatasetSpec
from core.errors import InvalidRequest
from core.parts.damage import DataDamagedError
from core.parts.part_files import load_part, save_part
from core.parts.stored_records import Sequences, StoredPart
from tests.formats import test_interactions
from tests.formats.files import parsed

LAYOUTS = ["inter", "dat", "csv", "tsv", "parquet"]
# user, item, time; users of different lengths, with rows of one time.
ROWS = [(f"u{i % 9}", str(1 + i * i % 17), float(i // 20)) for i in range(170)]


def spec(layout: str = "tsv", **changes: Any) -> dict[str, Any]:
    items = {"kind": "numbered", "count": 20}
    privacy = {"sensitivity": "private", "unit": "user", "records": 9, "cap": {"epsilon": 1.0, "delta": 1e-5}}
    return {
        "name": "histories",
        "format": "interactions",
        "task": {"kind": "next_item"} | ({"time": "rating"} if layout == "parquet" else {}),
        "features": {"kind": "interactions", "layout": layout, "items": items} | changes.pop("features", {}),
        "privacy": privacy | changes.pop("privacy", {}),
        "holdout": {"kind": "split", "fraction": 0.3},
    } | changes


def write(path: Path, layout: str = "tsv", rows: list[Any] = ROWS) -> Path:
    if layout == "parquet":  # ids there are numbers, and the time is the third column
        test_interactions.write(path, layout, [(user[1:], item, time) for user, item, time in rows])
        return path
    lines = {
        "inter": ["user_id:token\titem_id:token\ttimestamp:float", *(f"{u}\t{i}\t{t}" for u, i, t in rows)],
        "dat": [f"{u}::{i}::3::{t}" for u, i, t in rows],
        "csv": ["timestamp,item_id,user_id", *(f"{t},{i},{u}" for u, i, t in rows)],
        "tsv": ["user_id\titem_id\ttimestamp", *(f"{u}\t{i}\t{t}" for u, i, t in rows)],
    }
    path.write_text("\n".join(lines[layout]) + "\n")
    return path


def records(part: StoredPart) -> list[tuple[int, ...]]:
    assert isinstance(part.x, Sequences)
    return [tuple(each.tolist()) for each in np.split(part.x.items, part.x.ends[:-1])] if len(part.x.ends) else []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_each_user_s_items_in_the_order_of_time(tmp_path: Path, layout: str) -> None:
    answer, parts = parsed(tmp_path, spec(layout), write(tmp_path / "d", layout))
    assert (answer["features"], answer["outputs"], answer["sparse"]) == (20, 1, True)
    assert answer["counts"]["records"] == 9
    made = sorted(records(parts["train"]) + records(parts["holdout"]))
    assert len(parts["holdout"].y) > 0
    wanted: dict[str, list[tuple[float, int]]] = {}
    for user, item, time in ROWS:
        wanted.setdefault(user, []).append((time, int(item) - 1))
    assert sorted(map(sorted, made)) == sorted(sorted(i for _, i in rows) for rows in wanted.values())
    times = {tuple(sorted(i for _, i in rows)): sorted(t for t, _ in rows) for rows in wanted.values()}
    for each in made:
        assert len(each) == len(times[tuple(sorted(each))])


def test_neither_the_file_s_order_nor_other_users_change_a_record(tmp_path: Path) -> None:
    """Unit `user`: without one user, all other records are the same, bit for bit, and on the same side."""
    answer, parts = parsed(tmp_path, spec(), write(tmp_path / "d"))
    generator = np.random.default_rng(0)
    shuffled = [ROWS[i] for i in generator.permutation(len(ROWS))]
    other, mixed = parsed(tmp_path, spec(), write(tmp_path / "e", rows=shuffled))
    hmacs = [each["hmac"] for each in answer["contents"] if each["kind"] == "records"]
    assert hmacs == [each["hmac"] for each in other["contents"] if each["kind"] == "records"]
    assert {n: sorted(records(p)) for n, p in parts.items()} == {n: sorted(records(p)) for n, p in mixed.items()}
    for user in ("u0", "u5"):
        _, fewer = parsed(tmp_path, spec(), write(tmp_path / user, rows=[row for row in ROWS if row[0] != user]))
        gone = [set(records(parts[n])) - set(records(fewer[n])) for n in ("train", "holdout")]
        assert sorted(map(len, gone)) == [0, 1]
        assert all(set(records(fewer[n])) <= set(records(parts[n])) for n in ("train", "holdout"))


def test_times_order_items(tmp_path: Path) -> None:
    rows = [("a", "3", 30), ("b", "9", -1e9), ("a", "1", 10), ("a", "2", 20.5), ("b", "9", 1e12), ("a", "2", 40)]
    _, parts = parsed(tmp_path, spec(holdout=None), write(tmp_path / "d", rows=rows))
    assert records(parts["train"]) == [(0, 1, 2, 1), (8, 8)]


def test_rows_of_one_time_stand_in_no_order_of_the_items(tmp_path: Path) -> None:
    """Else a model would learn the order, which is nobody's."""
    rows = [(f"u{user}", str(item), 0) for user in range(8) for item in range(1, 20)]
    _, parts = parsed(tmp_path, spec(holdout=None), write(tmp_path / "d", rows=rows))
    made = records(parts["train"])
    assert len(set(made)) == 8 and all(sorted(each) == list(range(19)) for each in made)
    steps = [second > first for each in made for first, second in pairwise(each)]
    assert 0.3 < np.mean(steps) < 0.7


def test_items_that_are_not_declared(tmp_path: Path) -> None:
    file = write(tmp_path / "d", rows=[*ROWS, ("u1", "99", 3), ("new", "99", 1), ("", "99", 1)])
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec(), file)
    errors = refused.value.members["errors"]
    assert [(each["pointer"], each["count"]) for each in errors if "row" not in each] == [
        ("/task/user", 1),
        ("/task/item", 3),
    ]
    file = write(tmp_path / "d", rows=[*ROWS, ("u1", "99", 3), ("new", "99", 1)])
    answer, parts = parsed(tmp_path, spec(features={"unknown": "drop"}), file)
    sizes = {"train": 0, "holdout": 0} | {n: len(p.y) for n, p in parts.items()}
    assert answer["counts"] == {"records": 9, "dropped": 2, "units": 9} | sizes
    _, expected = parsed(tmp_path, spec(), write(tmp_path / "e"))
    assert {n: records(p) for n, p in parts.items()} == {n: records(p) for n, p in expected.items()}
    with pytest.raises(InvalidRequest, match="holds no records with declared ids"):
        parsed(tmp_path, spec(features={"unknown": "drop"}), write(tmp_path / "f", rows=[("a", "99", 1)]))


@pytest.mark.parametrize(("time", "said"), [("", "1 missing"), ("soon", "1 not a number"), ("inf", "not finite")])
def test_times_that_are_none(tmp_path: Path, time: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec(), write(tmp_path / "d", rows=[*ROWS, ("u1", "1", time)]))
    error, cell = refused.value.members["errors"]
    assert error["pointer"] == "/task/time" and said in error["detail"] and (cell["row"], cell["value"]) == (171, time)


@pytest.mark.parametrize(
    "changes",
    [
        {"features": {"users": {"kind": "numbered", "count": 9}}},
        {"privacy": {"unit": "example"}},
        {"privacy": {"user_column": "user_id"}},
        {"task": {"kind": "next_item", "time": "item_id"}},
        {"task": {"kind": "rating", "scale": [1, 5]}},
        {"format": "csv"},
    ],
)
def test_declarations_that_do_not_fit(changes: dict[str, Any]) -> None:
    DatasetSpec.model_validate(spec())
    with pytest.raises(ValidationError):
        DatasetSpec.model_validate(spec(**changes))


def test_a_part_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    x = Sequences(np.array([1, 2, 0], dtype=np.int32), np.array([2, 2, 3]), 5)
    sha256 = save_part(tmp_path / "p", StoredPart(x=x, y=np.zeros(3)))
    again = load_part(tmp_path / "p", sha256)
    assert again.shape == (3, 5) and again.sparse and records(again) == [(1, 2), (), (0,)]
    with pytest.raises(DataDamagedError):
        load_part(tmp_path / "p", "0" * 64)


# --- Filters, and last items held out ---


def test_each_user_s_last_item_is_held_out(tmp_path: Path) -> None:
    answer, parts = parsed(tmp_path, spec(holdout={"kind": "last_item"}), write(tmp_path / "d"))
    train, whole = (records(parts[name]) for name in ("train", "holdout"))
    assert [each[:-1] for each in whole] == train and all(whole)
    assert answer["counts"]["train"] == answer["counts"]["holdout"] == 9
    assert parts["train"].user is not None and parts["train"].user.tolist() == list(range(9))
    one = [("a", "3", 1.0), ("b", "4", 1.0), ("b", "5", 2.0)]
    (tmp_path / "one").mkdir()
    _, parts = parsed(tmp_path / "one", spec(holdout={"kind": "last_item"}), write(tmp_path / "e", rows=one))
    assert records(parts["train"]) == [(), (3,)] and records(parts["holdout"]) == [(2,), (3, 4)]


UNEVEN = [(f"u{i}", str(1 + j), float(j)) for i in range(9) for j in range(i)]  # user i has the items 1 … i


def test_short_users_are_left_out_each_by_itself(tmp_path: Path) -> None:
    task = {"kind": "next_item", "min_length": 4}
    _, parts = parsed(tmp_path, spec(task=task, holdout=None), write(tmp_path / "d", rows=UNEVEN))
    assert records(parts["train"]) == [tuple(range(n)) for n in range(4, 9)]
    (tmp_path / "fewer").mkdir()
    fewer = [row for row in UNEVEN if row[0] != "u8"]
    _, parts = parsed(tmp_path / "fewer", spec(task=task, holdout=None), write(tmp_path / "e", rows=fewer))
    assert records(parts["train"]) == [tuple(range(n)) for n in range(4, 8)], "no other user's record changes"
    with pytest.raises(InvalidRequest, match="min_length"):
        parsed(tmp_path, spec(task={"kind": "next_item", "min_length": 9}, holdout=None), tmp_path / "d")


def test_a_core_is_for_public_data_alone(tmp_path: Path) -> None:
    """Item j is had by the 9 − j users with more than j items."""
    task = {"kind": "next_item", "core": 3}
    with pytest.raises(ValidationError, match="min_length"):
        DatasetSpec.model_validate(spec(task=task))
    public = {"privacy": {"sensitivity": "public", "records": None, "cap": None, "unit": "example"}}
    _, parts = parsed(tmp_path, spec(task=task, holdout=None, **public), write(tmp_path / "d", rows=UNEVEN))
    found = records(parts["train"])
    assert found == [tuple(range(min(n, 6))) for n in range(3, 9)]
    users, items = [len(each) for each in found], np.bincount([item for each in found for item in each])
    assert min(users) >= 3 and set(items.tolist()) == {3, 4, 5, 6}
