"""Interaction tables for the fuzzing: what is declared of one, and its files in each layout."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.writers import CANARY, Row, parquet_file

LAYOUTS = ("inter", "dat", "csv", "tsv", "parquet")
NUMBERED = {"kind": "numbered", "count": 9}
IDS: tuple[dict[str, Any], ...] = (
    NUMBERED,
    {"kind": "numbered", "count": 3, "first": 0},
    {"kind": "listed", "ids": ["1", "a", "é 列", "1.0", '"']},
    {"kind": "hashed", "buckets": 5},
)
GOOD_IDS = (1, 2, 3, 9, "1", "2", "a", "é 列", "1.0", '"')
BAD_IDS = (0, 10, -1, None, "", " ", CANARY, "1_0", True, 1.5, float("nan"), 10**30, "\ud800", "a\nb", "::", "x" * 300)
NUMBERS = (1, 2.5, 5.0, "3", 881250949)
BAD_NUMBERS = (0, 6, float("nan"), float("inf"), 1e309, None, "", CANARY, "1,5", "١", True, -(10**30))
DIALECTS = {"inter": "\t", "tsv": "\t", "csv": ","}


@dataclass(frozen=True)
class TableSchema:
    """What is declared of a table: the names are of user, item, and rating or time."""

    layout: str
    task: str
    names: tuple[str, str, str]
    users: dict[str, Any]
    items: dict[str, Any]
    unknown: str = "refuse"
    fraction: float | None = 0.3

    def spec(self) -> dict[str, Any]:
        user, item, number = self.names
        task: dict[str, Any] = {"kind": self.task, "user": user, "item": item}
        task |= {"rating": number, "scale": [1, 5]} if self.task == "rating" else {"time": number}
        features = {"kind": "interactions", "layout": self.layout, "items": self.items, "unknown": self.unknown}
        unit = {"unit": "user"} if self.task == "next_item" else {}
        return {
            "name": "fuzzed",
            "format": "interactions",
            "task": task,
            "features": features | ({"users": self.users} if self.task == "rating" else {}),
            "privacy": {"sensitivity": "private", "records": 20, "cap": {"epsilon": 1.0, "delta": 1e-5}} | unit,
            "holdout": None if self.fraction is None else {"kind": "split", "fraction": self.fraction},
        }


def fixed_tables() -> list[TableSchema]:
    tasks = (("rating", "rating"), ("next_item", "timestamp"))
    return [
        TableSchema(layout, task, ("user_id", "item_id", number), NUMBERED, NUMBERED, "drop")
        for layout in LAYOUTS
        for task, number in tasks
    ]


def encode_table(schema: TableSchema, rng: Random) -> bytes:
    """A file of this schema, whole, though its cells may be bad."""
    bad = rng.choice((0.0, 0.0, 0.0, 0.05, 0.5))
    rows: list[Row] = [_row(schema, rng, bad) for _ in range(rng.choice((0, 1, 2, 9, 40)))]
    names = [*schema.names, "more"]
    if schema.layout == "dat":
        lines = ["::".join(_text(row[name]) for name in names) for row in rows]
        return rng.choice(("\n", "\r\n")).join([*lines, ""]).encode("utf-8", "surrogatepass")
    rng.shuffle(names)
    if schema.layout == "parquet":
        return parquet_file(names, rows, rng)
    types = {schema.names[2]: "float", "more": rng.choice(("token", "float_seq"))}
    header = [f"{name}:{types.get(name, 'token')}" for name in names] if schema.layout == "inter" else names
    out = io.StringIO()
    quoting = csv.QUOTE_NONE if schema.layout == "inter" else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=DIALECTS[schema.layout], quoting=quoting, escapechar="\\", lineterminator="\n")
    if rng.random() < 0.97:
        writer.writerow(header)
    writer.writerows([[_text(row[name]) for name in names] for row in rows])
    encoding = rng.choice(("utf-8",) * 8 + ("utf-8-sig", "utf-16"))
    return out.getvalue().encode(encoding, "surrogatepass")


def _row(schema: TableSchema, rng: Random, bad: float) -> Row:
    """Ids that are declared in most rows: of a numbered list those alone."""
    cells: list[Any] = []
    for ids in (schema.users, schema.items):
        good: tuple[Any, ...] = (1, 2, "2") if ids["kind"] == "numbered" else tuple(ids.get("ids", GOOD_IDS))
        cells.append(rng.choice(BAD_IDS if rng.random() < bad else good))
    cells.append(rng.choice(BAD_NUMBERS if rng.random() < bad else NUMBERS[:3]))
    return dict(zip(schema.names, cells, strict=True)) | {"more": rng.choice(("", 1, "x"))}


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)
