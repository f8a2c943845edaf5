"""What the parsers are fed: a specification and a file's bytes; well formed, with bad cells, or damaged.

The schema of a file is drawn by hypothesis; rows, dialect and damage by a plain generator from a drawn seed, which is a
hundred times faster than drawing each cell.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.damage import damaged
from tests.fuzz.tables import IDS, LAYOUTS, TableSchema, encode_table, fixed_tables
from tests.fuzz.writers import CANARY, encode

FORMATS = ("csv", "jsonl", "parquet", "npz", "arrow", "interactions")
UNKNOWN = ("refuse", "drop")
ANY = "any"  # of them
CLASS_LISTS: tuple[list[int | str] | None, ...] = (None, [0, 1], ["u", "v", "ü"], [-1, "1.5", "true"])


@dataclass(frozen=True)
class Schema:
    """What is declared of a file. No `classes`: regression. One feature that is no number: a text or an array."""

    format: str
    kind: str
    features: tuple[str, ...]
    label: str
    classes: list[int | str] | None = None
    fraction: float | None = None
    buckets: int = 16

    def spec(self) -> dict[str, Any]:
        features = {
            "columns": {"kind": "columns", "columns": list(self.features)},
            "hashed_text": {"kind": "hashed_text", "column": self.features[0], "buckets": self.buckets},
            "tensor": {"kind": "tensor", "array": self.features[0]},
        }[self.kind]
        task: dict[str, Any] = {"kind": "regression", "label": self.label}
        if self.classes is not None:
            task = {"kind": "classification", "label": self.label, "classes": self.classes}
        return {
            "name": "fuzzed",
            "format": self.format,
            "task": task,
            "features": features,
            "privacy": {"sensitivity": "private", "records": 20, "cap": {"epsilon": 1.0, "delta": 1e-5}},
            "holdout": None if self.fraction is None else {"kind": "split", "fraction": self.fraction},
        }


@dataclass(frozen=True)
class Case:
    """One input. Kept as a file: the specification as a line of JSON, then the bytes."""

    spec: dict[str, Any]
    content: bytes

    def to_bytes(self) -> bytes:
        return json.dumps(self.spec).encode() + b"\n" + self.content

    @classmethod
    def of(cls, stored: bytes) -> Case:
        spec, _, content = stored.partition(b"\n")
        return cls(json.loads(spec), content)

    @property
    def parser(self) -> str:
        """Which of FORMATS it is for."""
        lists = self.spec["task"]["kind"] in ("rating", "next_item")
        return "interactions" if lists else str(self.spec["format"])


def fixed_schemas(format: str) -> Sequence[Schema | TableSchema]:
    """The few that coverage-guided fuzzing chooses from by one byte."""
    if format == "interactions":
        return fixed_tables()
    if format == "npz":
        return [Schema(format, "tensor", ("x",), "y", classes, 0.3) for classes in CLASS_LISTS]
    numeric = [Schema(format, "columns", ("a", "b"), "y", classes, 0.3) for classes in CLASS_LISTS]
    return [*numeric, Schema(format, "hashed_text", ("t",), "y", [0, 1], 0.3)]


NAMES = st.one_of(
    st.sampled_from(["a", "b", "x", "y", "", " ", "a;b", "é", "列", "a\nb", '"', "..", "/etc/passwd", "a" * 200]),
    st.text("ab;,|\"'\t\n\r\\/.\x00é列\u202e😀 ", min_size=1, max_size=12),
).filter(bool)


@st.composite
def schemas(draw: st.DrawFn, format: str) -> Schema:
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    kind = "tensor" if format == "npz" else draw(st.sampled_from(["columns", "columns", "hashed_text"]))
    features = tuple(names[1:] if kind == "columns" else names[1:2])
    classes = draw(st.sampled_from(CLASS_LISTS))
    return Schema(format, kind, features, names[0], classes, draw(st.sampled_from([None, 0.25, 1e-9])))


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    layout = draw(st.sampled_from(LAYOUTS))
    task, number = draw(st.sampled_from([("rating", "rating"), ("next_item", "timestamp")]))
    names = draw(st.lists(NAMES, min_size=3, max_size=3, unique=True)) if draw(st.booleans()) else None
    declared = tuple(names) if names and layout != "dat" else ("user_id", "item_id", number)
    users, items, unknown = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS)), draw(st.sampled_from(UNKNOWN))
    return TableSchema(layout, task, declared, users, items, unknown, draw(st.sampled_from([None, 0.25, 1e-9])))


@st.composite
def cases(draw: st.DrawFn, format: str) -> Case:
    format = draw(st.sampled_from(FORMATS)) if format == ANY else format
    schema = draw(tables() if format == "interactions" else schemas(format))
    rng = Random(draw(st.integers(0, 2**63)))
    content = written(schema, rng)
    return Case(schema.spec(), damaged(content, rng) if rng.random() < 0.4 else content)


def written(schema: Schema | TableSchema, rng: Random) -> bytes:
    return encode_table(schema, rng) if isinstance(schema, TableSchema) else encode(schema, rng)


def from_bytes(format: str, data: bytes) -> Case:
    """What coverage-guided fuzzing makes of its bytes: one chooses the schema, the rest is the file."""
    choices = fixed_schemas(format)
    first = data[0] if data else 0
    return Case(choices[first % len(choices)].spec(), data[1:])


def seeds(format: str, rng: Random) -> list[bytes]:
    """Whole files for coverage-guided fuzzing to begin with."""
    choices = fixed_schemas(format)
    return [bytes([i]) + written(schema, rng) for i, schema in enumerate(choices) for _ in range(12)]


__all__ = ["ANY", "CANARY", "FORMATS", "Case", "Schema", "cases", "from_bytes", "seeds"]
