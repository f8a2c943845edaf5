"""One command for a reader of certificates: its exit status is the worst of all checks."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.db.database import Database
from scrimp.audit_bundle import Verdict, delivered
from scrimp.cli import app
from tests.ledger.support import open_ledger
from tests.ledger.test_certificates import document, issue, succeeded


@pytest.fixture
def signed(db: Database) -> dict[str, Any]:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    return json.loads(json.dumps(document(db, job_id)))  # type: ignore[no-any-return]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["audit-bundle", *map(str, arguments)])


def test_the_status_is_the_worst_of_all_files(signed: dict[str, Any], tmp_path: Path) -> None:
    key = ("--public-key", signed["public_key"])
    (good := tmp_path / "good.json").write_text(json.dumps(signed))
    (envelope := tmp_path / "envelope.json").write_text(json.dumps(signed["envelope"]))
    (other := tmp_path / "model.safetensors").write_bytes(b"another model")
    wrong = copy.deepcopy(signed)
    wrong["certificate"]["epsilon"]["value"] = 0.5
    (forged := tmp_path / "forged.json").write_text(json.dumps(wrong))
    missing = tmp_path / "missing.json"
    for files, status in (
        ((good, envelope, *key), 0),
        ((good,), 2),
        ((good, missing, *key), 2),
        ((good, other, *key), 1),
        ((good, forged, missing, *key), 1),
        ((good, "--public-key", "A" * 43 + "="), 1),
    ):
        assert run(*files).exit_code == status, files
    said, epsilon = run(good, *key).stdout, signed["certificate"]["epsilon"]["value"]
    for each in (
        "the signature and all proofs hold",
        f"ε = {epsilon:.6f}; recomputed 0.999981",
        "finds at most 0.24 %",
    ):
        assert each in said
    assert "Trust model" not in run(good, "--brief", *key).stdout
    (found, fault) = json.loads(run(good, forged, "--json", *key).stdout)
    assert (found["status"], fault["status"]) == (0, 1) and found["words"]["Unit of privacy"]
    assert [each["check"] for each in fault["checks"] if each["status"] == 1] == ["signature", "numbers"]


def test_delivered_files_are_those_that_a_certificate_names(signed: dict[str, Any], tmp_path: Path) -> None:
    (model := tmp_path / "model.safetensors").write_bytes(b"weights")
    assert delivered(model, {hashlib.sha256(b"other").hexdigest(): "model.safetensors"}).verdict is Verdict.FAULT
    assert delivered(model, {hashlib.sha256(b"weights").hexdigest(): "model.safetensors"}).verdict is Verdict.HOLDS
    assert Verdict.worst([Verdict.UNKNOWN, Verdict.FAULT, Verdict.HOLDS]) is Verdict.FAULT
    assert Verdict.worst([Verdict.UNKNOWN, Verdict.HOLDS]) is Verdict.UNKNOWN
    assert Verdict.worst([]) is Verdict.HOLDS
