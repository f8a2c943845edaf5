"""The annex of a DPIA: the folder's own answers, and a form of what it leaves open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scrimp.cli import app
from scrimp.dpia import ANSWERS, Missing, annex, missing
from scrimp.egress import examine
from scrimp.models import Safeguard
from tests.datasets.test_governance import RULES, USE
from tests.egress.conftest import World
from tests.factories import add_dataset

# Of every folder, whatever the owner declared: these nobody but a person can answer.
ALWAYS = {
    ("1. Identify the need for a DPIA", "Why a DPIA is needed"),
    ("2. Describe the processing", "Kinds of data, special categories, number of people"),
    (
        "2. Describe the processing",
        "Context: relationship with the people, their expectations, children, prior concerns",
    ),
    ("3. Consider consultation", ""),
    ("4. Assess necessity and proportionality", "International transfers"),
    ("5. Identify and assess risks", "Risks of the model's use (wrong answers, unfairness)"),
    ("7. Sign off and record outcomes", "Advice of the data protection officer, and the decision"),
}
DECLARED = {
    ("1. Identify the need for a DPIA", "Purpose"),
    ("2. Describe the processing", "Area"),
    ("2. Describe the processing", "Retention"),
    ("2. Describe the processing", "Purposes"),
    ("2. Describe the processing", "Permit"),
    ("4. Assess necessity and proportionality", "Lawful basis"),
    ("4. Assess necessity and proportionality", "Controller"),
    ("7. Sign off and record outcomes", "Contact"),
}
FORGED = "A clinic.\n\n## 8. The officer's advice\n\n**Approved**. Permit: **Not covered**"


@pytest.fixture(scope="module")
def bare(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a data set whose owner declared nothing."""
    return shared.made(shared.first, tmp_path_factory.mktemp("bare") / "folder", recipient=FORGED)


@pytest.fixture(scope="module")
def governed(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rules = RULES | {"retention": "ten years. Then it is deleted.", "legal_basis": FORGED}
    privacy = {"sensitivity": "private", "records": 25_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "gdp"}
    parts = shared.scene._parts("governed")
    owner = shared.scene.owner.id
    dataset = add_dataset(shared.db, owner=owner, name="governed", parts=parts, privacy=privacy, governance=rules)
    job = shared.finished("governed", dataset, use=USE)
    return shared.made(job, tmp_path_factory.mktemp("governed") / "folder")


def ran(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["dpia", str(folder), *words])


def left_open(folder: Path) -> set[tuple[str, str]]:
    done = ran(folder, "--json")
    assert done.exit_code == 0, done.output
    return {(each["step"], each["subject"]) for each in json.loads(done.stdout)["missing"]}


def test_what_no_folder_knows_is_always_in_the_form(bare: Path, governed: Path) -> None:
    assert left_open(bare) == ALWAYS | DECLARED
    assert left_open(governed) == ALWAYS


def test_the_annex_has_the_folder_s_answers_word_by_word(shared: World, governed: Path) -> None:
    done = ran(governed, "--public-key", shared.key)
    assert done.exit_code == 0, done.output
    body = (governed / ANSWERS).read_text().partition("\n")[2].strip()
    assert body in done.stdout
    assert RULES["controller"] in body and RULES["region"] in body and USE["permit"] in body
    form = done.stdout.partition("## To be added by a person\n\n")[2].splitlines()
    assert len(form) == len(ALWAYS) and all(line.startswith("* [ ] ") for line in form)
    assert "a key that the reader named" in done.stdout
    assert "a key that nobody checked" in ran(governed).stdout


def test_each_mark_in_the_answers_is_in_the_form(bare: Path, governed: Path) -> None:
    """So that no wording of an answer hides what is open."""
    for folder in (bare, governed):
        text = (folder / ANSWERS).read_text()
        assert len(missing(text)) == text.partition("\n## ")[2].count("**Not covered**") > 0


def test_the_form_says_why_where_it_is_known(bare: Path) -> None:
    found = missing((bare / ANSWERS).read_text())
    assert Missing("2. Describe the processing", "Purposes", "the owner declared none") in found
    assert "* [ ] 2. Describe the processing: Purposes (the owner declared none)\n" in ran(bare).stdout


@pytest.mark.parametrize("name", ["bare", "governed"])
def test_nobody_s_words_add_a_step_or_an_answer(request: pytest.FixtureRequest, name: str) -> None:
    """The recipient is a caller's words, and the folder is signed: FORGED is in both folders."""
    folder: Path = request.getfixturevalue(name)
    for path in (folder / "answers").iterdir():
        text = path.read_text()
        assert not [line for line in text.splitlines() if line.startswith("## 8.")], path
        assert "**Approved**" not in text, path
    assert "8. The officer's advice" in ran(folder).stdout


@pytest.mark.parametrize("change", [ANSWERS, "manifest.json", "page.html"])
def test_there_is_no_annex_of_a_folder_that_was_changed(
    shared: World, governed: Path, tmp_path: Path, change: str
) -> None:
    copy = shutil.copytree(governed, tmp_path / "copy")
    (copy / change).write_text((copy / change).read_text().replace("e", "a", 1))
    done = ran(copy, "--public-key", shared.key)
    assert done.exit_code == 1 and "does not hold" in done.output and "# Annex" not in done.output


def test_there_is_no_annex_under_another_key(governed: Path) -> None:
    done = ran(governed, "--public-key", "A" * 43 + "=")
    assert done.exit_code == 1 and "no trusted key signed" in done.output


def test_answers_without_a_mark_leave_nothing_open() -> None:
    said: Any = missing("# T\n\n## 1. Need\n\nPurpose: care. Not covered by the guarantee: durations.\n")
    assert said == []


def test_safeguards_of_the_service_are_told_as_unsigned(shared: World, governed: Path) -> None:
    items = shared.call("GET", "/v1/safeguards").json()["items"]
    text = annex(governed, examine(governed, [shared.key]), [Safeguard.model_validate(each) for each in items])
    told = text.partition("## Safeguards of the service")[2].partition("## To be added")[0]
    assert "not signed" in told and told.count("\n| ") == 1 + len(items)
    assert "| encryption in transit | **no** |" in told
