"""A certificate's page: what stands on it, that it loads nothing, and that no forged document gets one."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.db.database import Database
from scrimp import certificate_page
from scrimp.certificate_page import Signer, page
from scrimp.cli import app
from scrimp.explain import declared
from tests.ledger.support import open_ledger
from tests.ledger.test_certificates import document, issue, succeeded

SIGNER = Signer(base64.b64encode(bytes(32)).decode(), True)


@pytest.fixture
def signed(db: Database) -> dict[str, Any]:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    return json.loads(json.dumps(document(db, job_id)))  # type: ignore[no-any-return]


def test_a_page_says_who_promises_what(signed: dict[str, Any]) -> None:
    body = signed["certificate"]
    facts = {"curators": ["A & B"], "intended_use": "<b>Triage</b>", "data_domain": "patients", "name": "A model"}
    made = page(body, SIGNER, facts)
    train, held = declared(body)
    for each in (
        "<h1>A model</h1>",
        "A &amp; B",
        "&lt;b&gt;Triage&lt;/b&gt;",
        f"{train:,} to train on, {held:,} held out",
        "2.72 times",
        "1 in 100,000",
        "<td>0.1 %</td><td>0.24 %</td><td>0.1 %</td>",
        "<td>10 %</td><td>15.55 %</td>",
        "how long the job ran",
        "6668 7aad f862 bd77 6c8f c18b 8e9f 8e20",
        "scrimp audit-bundle certificate.json --public-key",
        str(body["issued_at"])[:10],
    ):
        assert each in made, each
    assert "http" not in made.replace('http-equiv="Content-Security-Policy"', "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    bare = page(body, Signer(SIGNER.key, False))
    assert "The certificate does not say" in bare and "anybody can sign a document" in bare
    assert f"--public-key {SIGNER.key}" not in bare, "a key that nobody named is not to be trusted"


def test_declared_units_follow_from_batches_and_rates(signed: dict[str, Any]) -> None:
    body = copy.deepcopy(signed["certificate"])
    training = body["mechanism"]["training"]
    training |= {"expected_batch_size": 64, "sample_rate": 0.01}
    assert declared(body)[0] == 6400
    training |= {"sample_rate": 1.0, "sampling": "cyclic", "cycle": 20}
    assert declared(body)[0] == 1280
    study = {"study": {"runs": [{"mechanism": body["mechanism"]}] * 2}, "mechanism": None}
    assert declared(body | study)[0] == 1280


def test_the_command_writes_pages_of_authentic_documents_alone(
    signed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "certificate.json", tmp_path / "page.html"
    (facts := tmp_path / "facts.toml").write_text('curators = ["Clinic"]\n')

    def run(content: dict[str, Any], *more: str) -> Any:
        file.write_text(json.dumps(content))
        return CliRunner().invoke(app, ["certificates", "page", str(file), *more])

    done = run(signed, "--html", str(out), "--facts", str(facts), "--public-key", signed["public_key"])
    assert done.exit_code == 0, done.output
    assert "Clinic" in out.read_text() and "was checked with a key" in out.read_text()
    out.unlink()
    forged = copy.deepcopy(signed)
    forged["certificate"]["epsilon"]["value"] = 0.1
    refused = run(forged, "--html", str(out))
    assert refused.exit_code == 1 and "no page was written" in refused.stderr and not out.exists()
    assert run(signed, "--html", str(out), "--public-key", SIGNER.key).exit_code == 1
    assert run(signed).exit_code == 2
    facts.write_text('owner = "Clinic"\n')
    assert run(signed, "--html", str(out), "--facts", str(facts)).exit_code == 2
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    without = run(signed, "--pdf", str(tmp_path / "page.pdf"))
    assert without.exit_code == 1 and "--pdf needs Chromium" in without.stderr


def test_the_fingerprint_is_a_qr_code_where_segno_is_installed(
    signed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("segno")
    made = page(signed["certificate"], SIGNER)
    assert "viewBox" in made.split("<svg", 1)[1].split(">", 1)[0], "the style sizes it: without a box it is cut off"
    monkeypatch.setattr(certificate_page, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert "<svg" not in page(signed["certificate"], SIGNER)


@pytest.mark.browser
def test_chromium_prints_it_and_narrow_screens_fit(signed: dict[str, Any], tmp_path: Path) -> None:
    path = next(filter(None, map(shutil.which, certificate_page.BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    certificate_page.print_pdf(page(signed["certificate"], SIGNER), tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
