"""`scrimp datasets slots` and what other commands say about slots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.database import Database
from app.db.models import Dataset
from app.settings import Settings
from core.privacy.slot_numbers import default_slots
from tests.cli.conftest import Cli
from tests.e2e.conftest import csv_spec, write_csv

TRAIN, HOLDOUT = default_slots(1500, all_units=2000), default_slots(500, all_units=2000)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def before_slots(cli: Cli, dataset: str) -> Iterator[str]:
    """A data set as it was registered before there were slots."""
    db = Database.of(Settings(home=cli.folder / "home"))
    with db.write() as session:
        row = session.query(Dataset).filter_by(name=dataset).one()
        shape = row.shape
        row.shape = shape.model_copy(update={"slots": None})
    yield dataset
    with db.write() as session:
        session.query(Dataset).filter_by(name=dataset).one().shape = shape
    db.close()


def test_they_are_shown_with_their_default(cli: Cli, dataset: str) -> None:
    shown = words(cli("datasets", "slots", dataset).output)
    said = f"{TRAIN:,} to train on, {HOLDOUT:,} held out"
    assert f"slots {said} by default {said}" in shown and "before you count them" in shown
    assert f"slots {said}" in words(cli("datasets", "show", dataset).output)


def test_they_are_declared_for_later_jobs(cli: Cli, dataset: str) -> None:
    dry = words(cli("datasets", "slots", dataset, "--train", "4000", "--dry-run").output)
    assert f"slots {TRAIN:,} to train on" in dry and f"they would be 4,000 to train on, {HOLDOUT:,} held out" in dry
    found = cli.json("datasets", "slots", dataset, "--train", "4000")
    assert (found["shape"]["slots"]["train"], found["privacy"]["slots"]) == (
        {"units": 4000, "rows": 4000},
        {"train": 4000},
    )
    both = cli.json("datasets", "slots", dataset, "--holdout", "900")
    assert both["privacy"]["slots"] == {"train": 4000, "holdout": 900}, "what is not named stays"
    fewer = words(cli("datasets", "declare", dataset, "--records", "1800").output)
    assert "public sizes 1,350 to train on, 450 held out slots 4,000 to train on, 900 held out" in fewer
    refused = cli("datasets", "slots", dataset, "--train", "1350", "--holdout", "450")
    assert refused.exit_code == 1 and "before you count them. Only you are told" in words(refused.stderr)
    assert cli("datasets", "declare", dataset, "--records", "2000").exit_code == 0
    back = cli.json("datasets", "slots", dataset, "--default")
    assert "slots" not in back["privacy"] and back["shape"]["slots"]["holdout"]["units"] == HOLDOUT
    assert cli("datasets", "slots", dataset, "--train-rows", "4000").exit_code == 1, "a record is a unit"
    assert cli("datasets", "slots", dataset, "--train", "0").exit_code == 2


def test_data_from_before_slots(cli: Cli, before_slots: str) -> None:
    for command in ("show", "slots"):
        assert "not stated: jobs compute twice the declared number" in words(
            cli("datasets", command, before_slots).output
        )
    assert "warning: registered before there were slots" in words(cli("datasets", "slots", before_slots).output)
    assert cli.json("datasets", "slots", before_slots, "--default")["shape"]["slots"]["train"]["units"] == TRAIN


def test_public_data_have_none(cli: Cli) -> None:
    spec = csv_spec("open") | {"privacy": {"sensitivity": "public"}}
    rows = write_csv(cli.folder / "open.csv", rows=50, seed=5)
    assert cli("datasets", "add", cli.file("open.json", spec), "--file", str(rows)).exit_code == 0
    assert "it has no slots" in words(cli("datasets", "slots", "open").output)
    assert "slots" not in cli("datasets", "show", "open").output


def test_a_check_suggests_them_by_the_file(cli: Cli) -> None:
    """Twenty copies of each record: the sides of the split spread more than four times as far."""
    once, copies = write_csv(cli.folder / "once.csv", rows=100, seed=9), cli.folder / "copies.csv"
    shutil.copy(once, copies)
    with copies.open("a") as file:
        file.write("".join(once.read_text().splitlines(keepends=True)[1:]) * 19)
    units = {}
    for name, path in (("apart", write_csv(cli.folder / "apart.csv", seed=10)), ("copies", copies)):
        spec = csv_spec(name, slots={"train": 3000, "holdout": 2000})
        found = cli.json("datasets", "check", cli.file(f"{name}.json", spec), "--file", str(path))
        units[name] = found["suggested_slots"]["train"]["units"]
        assert found["read"]["train"] <= units[name]
    assert units == {"apart": 1760, "copies": 2160}
    shown = words(cli("datasets", "check", cli.file("copies.json", spec), "--file", str(Path(copies))).output)
    assert "`slots` to declare 2,160 to train on, 1,110 held out (shown to you alone). Choose the number from" in shown
    assert "twice the declared number hides how many there are within a factor of two" in shown


def test_a_block_declares_its_own(cli: Cli, dataset: str) -> None:
    rows = str(write_csv(cli.folder / "month.csv", rows=200, seed=11))
    asked = ("blocks", "add", dataset, "2026-11", "--records", "200", "--file", rows)
    assert cli(*asked, "--slots", "{").exit_code == 2
    (made,) = cli.json(*asked, "--slots", '{"train": 400}')
    assert made["shape"]["slots"]["train"]["units"] == 400
    assert made["shape"]["slots"]["holdout"]["units"] == default_slots(50, all_units=200)
