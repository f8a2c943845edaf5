"""`scrimp datasets init` proposes a declaration that the service accepts, and says what to check in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from core.contracts import filter_names
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.filter_names import BUYS, filter_of_plan
from scrimp.cli import app
from scrimp.cli.dataset_commands import PlanName
from scrimp.declare import PLANS, Proposal, UnknownColumnError, UnreadableFileError, propose, read_sheet, with_plan
from tests.datasets.conftest import CSV, Api
from tests.formats.files import number_rows, write


def stay(i: int) -> str:
    """One row, as a hospital's export has it."""
    age, day = str(i % 90) if i % 5 else "", f"{i % 28 + 1:02}.0{i % 9 + 1}.20{10 + i % 10}"
    return f"p{i};{age};{'fm'[i % 2]};{day};{60 + i % 30},{i % 10};{'yes' if i % 3 else 'no'}\n"


HOSPITAL = "patient_id;age;sex;admitted;weight;outcome\n" + "".join(map(stay, range(943)))
REVIEWS = "text,label\n" + "".join(f'"a film that one sees only once, number {i}",{i % 2}\n' for i in range(64))


def proposal_of(path: Path, label: str) -> Proposal:
    sheet = read_sheet(path)
    return propose(sheet, label, next(iter(sheet.persons), None))


def checked(api: Api, spec: dict[str, Any], file: bytes) -> Any:
    parts: dict[str, Any] = {"spec": (None, json.dumps(spec), "application/json"), "file": ("file", file)}
    return api.client.post("/v1/datasets/check", files=parts, headers=api.headers("owner"))


@pytest.mark.parametrize("packed", [False, True])
def test_a_hospitals_table(api: Api, tmp_path: Path, packed: bool) -> None:
    content = gzip.compress(HOSPITAL.encode()) if packed else HOSPITAL.encode()
    path = tmp_path / "stays 2024.csv"
    path.write_bytes(content)
    found = proposal_of(path, "outcome")
    assert found.spec["csv"] == {"separator": ";", "decimal": ","} and found.spec["name"] == "stays-2024"
    assert found.spec["task"] == {"kind": "classification", "label": "outcome", "classes": ["no", "yes"]}
    columns = {each["name"]: each for each in found.spec["features"]["columns"]}
    assert set(columns) == {"age", "sex", "admitted", "weight"}, "not the person's id"
    assert columns["age"] == {"name": "age", "kind": "number", "range": [0.0, 110.0], "missing": "flag"}
    assert columns["admitted"]["format"] == "%d.%m.%Y"
    privacy = found.spec["privacy"]
    assert privacy["records"] == 940, "an exact number would become public"
    assert (privacy["unit"], privacy["user_column"], privacy["max_records_per_user"]) == ("user", "patient_id", 1)
    origins = {row.name: (row.use, row.origin) for row in found.rows}
    assert origins["age"] == origins["weight"] == ("feature", "name") and origins["admitted"] == ("feature", "data")
    assert origins["outcome"] == ("predicted", "data") and origins["patient_id"][0] == "tells people apart"
    answer = checked(api, found.spec, content)
    assert answer.status_code == 200, answer.text
    assert answer.json()["read"]["records"] == 943 and answer.json()["warnings"] == []


@pytest.mark.parametrize(
    ("name", "values", "is_person"),
    [
        ("Patient ID", "ab", True),
        ("patientId", "ab", True),
        ("patient_nr", "ab", True),
        ("MRN", "ab", True),
        ("Participant-No", "ab", True),
        ("id", "aab", True),
        ("id", "abc", False),  # it tells records apart
        ("student", "ab", False),  # yes or no
        ("zip_code", "aab", False),
        ("paid", "aab", False),
    ],
)
def test_a_column_that_looks_like_a_person_s_id(tmp_path: Path, name: str, values: str, is_person: bool) -> None:
    path = tmp_path / "d.csv"
    path.write_text(f"{name},age,y\n" + "".join(f"{value},{40 + at},{at % 2}\n" for at, value in enumerate(values)))
    assert read_sheet(path).persons == [name] * is_person


def test_people_are_counted_where_people_are_declared(tmp_path: Path) -> None:
    """1,400 people were declared "from the file's 3000 records"."""
    path = tmp_path / "d.csv"
    path.write_text("Patient ID,age,y\n" + "".join(f"{at // 2},{at % 90},{at % 2}\n" for at in range(400)))
    sheet = read_sheet(path)
    notes = {person: propose(sheet, "y", person).notes for person in (None, "Patient ID")}
    assert any("from the file's 400 records" in note for note in notes[None])
    people = "the people that Patient ID tells apart in the file's 400 records"
    assert any(people in note for note in notes["Patient ID"])


@pytest.mark.parametrize(("text", "label", "kind"), [(REVIEWS, "label", "text"), (CSV, "y", "table")])
def test_texts_and_numbers(api: Api, tmp_path: Path, text: str, label: str, kind: str) -> None:
    path = tmp_path / "d.csv"
    path.write_text(text)
    found = proposal_of(path, label)
    assert found.spec["features"]["kind"] == kind and "csv" not in found.spec
    assert checked(api, found.spec, text.encode()).status_code == 200


@pytest.mark.parametrize("format", ["jsonl", "parquet", "npz", "arrow"])
def test_other_formats(tmp_path: Path, format: str) -> None:
    path = write(tmp_path / "d.npz", format, number_rows(150))
    found = proposal_of(path, read_sheet(path).labels[-1])
    declared = DatasetSpec.model_validate(found.spec)
    assert (declared.format, declared.privacy.records) == (format, 150)
    assert declared.task.kind == ("classification" if format == "npz" else "regression")


def test_the_command(tmp_path: Path) -> None:
    path, to = tmp_path / "d.csv", tmp_path / "spec.json"
    path.write_text(CSV)
    ran = CliRunner().invoke(app, ["datasets", "init", str(path), "--label", "y", "--to", str(to)])
    assert ran.exit_code == 0, ran.output
    assert DatasetSpec.model_validate_json(to.read_text()).task.kind == "classification"
    assert "Check:" in ran.stderr and "gdp" in ran.stderr
    kept = to.read_text()
    assert CliRunner().invoke(app, ["datasets", "init", str(path), "--label", "y", "--to", str(to)]).exit_code == 2
    assert to.read_text() == kept, "an edited declaration is not overwritten"


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02\x03", b"a\n1\n", b'{"a": \n'])
def test_what_cannot_be_guessed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError):
        read_sheet(path)


def test_nobody_but_the_owner_chooses_what_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(HOSPITAL)
    sheet = read_sheet(path)
    for label, person in ((None, None), ("nope", None), ("outcome", "nope"), ("outcome", "outcome")):
        with pytest.raises(UnknownColumnError):
            propose(sheet, label, person)
    ran = CliRunner().invoke(app, ["datasets", "init", str(path)])
    assert ran.exit_code == 2 and all(each in ran.output for each in ("--label", "patient_id", "outcome"))


def test_a_range_is_of_the_column_s_name_and_says_where_it_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text(
        "patientAge,height,sum,sex,y\n" + "".join(f"{40 + i},{1.5 + i / 100},{10**i},F,{i}\n" for i in range(6))
    )
    rows = {row.name: row for row in propose(read_sheet(path), "y").rows}
    assert rows["patientAge"].column["range"] == [0.0, 110.0] and rows["patientAge"].unit == "years"
    assert "unit" in rows["height"].doubt, "metres in a column of centimetres"
    assert rows["sum"].column["scale"] == "log" and rows["sum"].origin == "data"
    assert rows["sex"].column["values"] == ["F", "M"], "both, though one alone occurs"


@pytest.mark.parametrize(("name", "origin"), [("age", "name"), ("sum", "data")])
def test_a_label_s_range_says_where_it_comes_from(tmp_path: Path, name: str, origin: str) -> None:
    path = tmp_path / "d.csv"
    path.write_text(f"{name},x\n" + "".join(f"{i},{i}\n" for i in range(60)))
    rows = {row.name: row for row in propose(read_sheet(path), name).rows}
    assert (rows[name].use, rows[name].origin) == ("predicted", origin) and "range" in rows[name].column


def test_of_many_columns_nothing_is_taken_from_the_cells(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(203)]
    rows = [[*names, "y"], *([f"secret{i % 3}" for _ in names] + [str(i % 2)] for i in range(40))]
    path = tmp_path / "wide.csv"
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    with pytest.raises(UnreadableFileError, match="203 columns are too many"):
        proposal_of(path, "y")
    path.write_text("".join(",".join(["age" if row is rows[0] else "40", *row]) + "\n" for row in rows))
    proposal = proposal_of(path, "y")
    assert proposal.spec["features"] == {
        "kind": "table",
        "columns": [{"name": "age", "kind": "number", "range": [0.0, 110.0]}],
    }
    assert "secret" not in json.dumps(proposal.spec) and {row.use for row in proposal.rows[1:-1]} == {
        "left out: declare it yourself, of so many columns"
    }


def test_the_command_lists_wrong_cells(tmp_path: Path) -> None:
    """At most ten, of columns that are mostly numbers or dates."""
    lines = [f"{'n/a' if i in (4, 9) else i * 7},2024-01-{i % 28 + 1:02},{i % 2}" for i in range(60)]
    path = tmp_path / "wrong.csv"
    path.write_text("\n".join(["code,day,y", *lines[:30], "1,yesterday,", *lines[30:]]) + "\n")
    done = CliRunner().invoke(app, ["datasets", "init", str(path), "--label", "y", "--each-record"])
    assert done.exit_code == 0, done.output
    for said in ("record 5, code: 'n/a'", "record 10, code: 'n/a'", "record 31, day: 'yesterday'", "record 31, y: ''"):
        assert said in done.output


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_day_that_python_lacks_is_named(tmp_path: Path, ending: str) -> None:
    """A database's "no end" is often such a day."""
    days = pa.array([0, 2**31 - 1, 0], pa.date32())
    table = pa.table({"outcome": [0, 1, 0], "until": days})
    path = tmp_path / f"stays.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    with pytest.raises(UnreadableFileError, match="row 2 of column `until` is no day of the years 1 to 9999"):
        read_sheet(path)
    times = pa.table({"outcome": [0, 1], "until": pa.array([0, 2**55], pa.timestamp("ms"))})
    pq.write_table(times, path)
    with pytest.raises(UnreadableFileError, match="row 2 of column `until`"):
        read_sheet(path)
    assert "row 2 of column `until`" in CliRunner().invoke(app, ["datasets", "init", str(path)]).output


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_takes_the_place_of_the_filter(tmp_path: Path, plan: str) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(HOSPITAL)
    to = tmp_path / "stays.json"
    words = ["datasets", "init", str(path), "--label", "outcome", "--plan", plan, "--to", str(to)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    privacy = DatasetSpec.model_validate_json(to.read_text()).privacy
    assert (privacy.plan, privacy.filter) == (plan, filter_of_plan(plan))
    assert CliRunner().invoke(app, [*words, "--plan", "all"]).exit_code == 2


def test_a_plan_is_said_in_one_way_everywhere() -> None:
    """The client imports nothing of the service."""
    assert PLANS == BUYS and list(PLANS) == list(filter_names.PLANS) == list(PlanName)
    assert with_plan({"name": "a"}, None) == {"name": "a"}
    assert with_plan({"privacy": {"filter": "gdp", "records": 1}}, "mixed") == {
        "privacy": {"records": 1, "plan": "mixed"}
    }
