"""A certificate as a record of the public registry: what it says, and that it is YAML."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.db.database import Database
from scrimp.cli import app
from scrimp.registry import FACTS, LISTS, as_yaml, missing, record, template
from tests.ledger.support import open_ledger
from tests.ledger.test_certificates import document, issue, succeeded

GIVEN: dict[str, Any] = {
    name: ["Ann Ode", "Bo: the second"] if name in LISTS else f'{name} with "quotes", a # and: colons' for name in FACTS
}


@pytest.fixture
def signed(db: Database) -> dict[str, Any]:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    return json.loads(json.dumps(document(db, job_id)))  # type: ignore[no-any-return]


def test_the_record_has_the_registrys_sections(signed: dict[str, Any]) -> None:
    """The members of the registry's records of tier 3, as published in 2026."""
    made = record(signed["certificate"], GIVEN)
    sections = made["deployment"]
    assert list(sections) == [
        *("product", "dp_flavor", "privacy_loss", "model", "accounting", "implementation", "resources"),
    ]
    assert made["tier"] == 3 and made["status"] == "Draft"
    said = signed["certificate"]["epsilon"]
    assert sections["privacy_loss"]["privacy_parameters"] == {"epsilon": said["value"], "delta": said["delta"]}
    assert sections["product"]["publication_date"] == signed["certificate"]["issued_at"][:10]
    assert "50 steps of clipped gradients' sums" in sections["implementation"]["mechanisms"]
    assert "if analysts collude" in sections["model"]["access_type_description"]


def test_it_reads_back_as_yaml(signed: dict[str, Any]) -> None:
    made = record(signed["certificate"], GIVEN)
    assert yaml.safe_load(as_yaml(made)) == made


def test_a_template_names_every_fact_and_is_not_whole() -> None:
    empty = tomllib.loads(template())
    assert set(empty) == set(FACTS) == set(missing(empty))
    assert missing(GIVEN) == []
    assert missing(GIVEN | {"authors": "Ann"}) == ["authors"] and missing(GIVEN | {"colour": "red"}) == ["colour"]


def test_the_command(signed: dict[str, Any], tmp_path: Path) -> None:
    certificate, facts = tmp_path / "certificate.json", tmp_path / "facts.toml"
    certificate.write_text(json.dumps(signed))
    runner = CliRunner()
    asked = runner.invoke(app, ["certificates", "registry", str(certificate)])
    assert asked.exit_code == 0
    facts.write_text(asked.output)
    refused = runner.invoke(app, ["certificates", "registry", str(certificate), "--facts", str(facts)])
    assert refused.exit_code == 2 and "name" in refused.output
    facts.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in GIVEN.items()))
    done = runner.invoke(app, ["certificates", "registry", str(certificate), "--facts", str(facts)])
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.output) == record(signed["certificate"], GIVEN)
