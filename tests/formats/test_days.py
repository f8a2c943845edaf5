"""Days and times of Parquet and Arrow files: outside Python's years, in nanoseconds, in time zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.formats import cell_blocks
from core.errors import InvalidRequest
from tests.formats.files import parsed, spec

DATE = {"name": "seen", "kind": "date", "range": ["2020-01-01", "2030-01-01"]}
NUMBER = {"name": "seen", "kind": "number", "range": [0, 100]}
CATEGORY = {"name": "seen", "kind": "category", "values": ["x"]}
DAY_S = 1_704_088_800  # 2024-01-01T06:00Z: this day in all zones below
DAY = DAY_S // 86_400
LAST_S = 253_402_300_799  # the last second of 9999
FIRST_S = -62_135_596_800  # the first of year 1

FAR = [
    pa.array([DAY_S * 10**6, 10**18], pa.timestamp("us")),
    pa.array([DAY_S * 10**3, LAST_S * 10**3 + 1_000], pa.timestamp("ms")),
    pa.array([DAY_S, -(10**15)], pa.timestamp("s")),
    pa.array([DAY, 2**31 - 1], pa.date32()),
    pa.array([DAY * 86_400_000, 10**10 * 86_400_000], pa.date64()),
    pa.array([DAY_S * 10**6, 10**18], pa.timestamp("us")).dictionary_encode(),
    pa.array([DAY_S * 10**6, FIRST_S * 10**6], pa.timestamp("us", "America/New_York")),
    pa.array([DAY_S * 10**6, LAST_S * 10**6], pa.timestamp("us", "+14:00")),
]


def declared(format: str, column: dict[str, Any]) -> dict[str, Any]:
    return spec(format, features={"kind": "table", "columns": [column]}, records=1)


def file(path: Path, format: str, days: pa.Array) -> Path:
    table = pa.table({"seen": days, "y": [1.0] * len(days)})
    if format == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def refusal(folder: Path, document: dict[str, Any], days: pa.Array) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(folder, document, file(folder / "d", document["format"], days))
    return caught.value


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("days", FAR, ids=lambda days: str(days.type))
def test_a_day_outside_python_s_years_is_one_wrong_cell(tmp_path: Path, format: str, days: pa.Array) -> None:
    document = declared(format, DATE)
    column, cell = refusal(tmp_path, document, days).members["errors"]
    assert column["detail"] == "column 'seen': 1 not a date"
    assert (cell["row"], cell["reason"]) == (2, "not a date") and " as " in cell["value"]
    dropping = document | {"wrong_rows": "drop"}
    answer, parts = parsed(tmp_path, dropping, tmp_path / "d")
    assert answer["counts"]["dropped"] == 1 and parts["train"].x.tolist() == [[DAY]]  # type: ignore[union-attr]


@pytest.mark.parametrize("days", FAR, ids=lambda days: str(days.type))
def test_such_a_day_is_no_number_and_no_declared_value(tmp_path: Path, days: pa.Array) -> None:
    for column, reason in ((NUMBER, "2 not a number"), (CATEGORY, "2 not a declared value")):
        error = refusal(tmp_path, declared("arrow", column), days)
        assert error.members["errors"][0]["detail"] == f"column 'seen': {reason}"


def test_an_unknown_time_zone_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, declared("parquet", DATE), pa.array([0], pa.timestamp("us", "Nowhere/Land")))
    assert "column 'seen' is of type timestamp[us, tz=Nowhere/Land], whose time zone is not known" in str(error)
    assert error.members["errors"][0]["pointer"] == "/features/columns/0"


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_nanoseconds_are_rounded_down_whatever_is_installed(zone: str | None) -> None:
    """Python's times have none. With pandas Arrow would give pandas' own type, and without it an error."""
    before, none, after = cell_blocks.listed(pa.array([-1, None, 10**9 + 1], pa.timestamp("ns", zone)))
    assert (type(before), none, type(after)) == (datetime, None, datetime)
    zone_of = None if zone is None else UTC
    start = datetime(1970, 1, 1, tzinfo=zone_of)
    assert (before, after) == (start - timedelta(microseconds=1), start + timedelta(seconds=1))
