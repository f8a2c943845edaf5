"""The in-toto statement of a certificate: read by Node, which shares no code with the service; forged in every way."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from app.db.database import Database
from app.db.models import Artifact
from app.ledger import certificates
from app.ledger.signer import public_key
from app.ledger.transparency import attestations, certificate_signatures
from app.ledger.transparency.attestations import Statement
from scrimp.cli import app
from scrimp.recompute import recompute
from scrimp.signatures import is_authentic, problem_of
from tests.ledger.support import open_ledger, sealed, signed_document
from tests.ledger.test_certificates import KEY, document, issue, succeeded
from tests.node import VERIFIER, by_node, needs_node

TRUSTED = public_key(KEY)
STRANGER = Ed25519PrivateKey.generate()
OTHER = public_key(STRANGER)
MODEL = b"the weights"


@pytest.fixture
def signed(db: Database) -> dict[str, Any]:
    """The certificate of a job that delivered a model and its card."""
    job_id = succeeded(db, open_ledger(db))
    with db.write() as session:
        session.get_one(Artifact, (job_id, "model.safetensors")).sha256 = hashlib.sha256(MODEL).hexdigest()
        session.add(Artifact(job_id=job_id, name="README.md", sha256="cd" * 32, size_bytes=10, path="y"))
    assert issue(db, job_id)
    return json.loads(json.dumps(document(db, job_id)))  # type: ignore[no-any-return]


def test_the_statement_names_what_was_delivered_and_holds_the_certificate(signed: dict[str, Any]) -> None:
    statement = attestations.opened(signed["envelope"], TRUSTED)
    assert statement.type_ == "https://in-toto.io/Statement/v1"
    assert [each.model_dump() for each in statement.subject] == [
        {"name": "README.md", "digest": {"sha256": "cd" * 32}},
        {"name": "model.safetensors", "digest": {"sha256": hashlib.sha256(MODEL).hexdigest()}},
    ]
    assert statement.predicate == signed["certificate"]
    assert signed["envelope"]["signatures"][0]["keyid"] == hashlib.sha256(base64.b64decode(TRUSTED)).hexdigest()


def test_a_job_that_delivered_nothing_is_named_by_its_ledger_entry(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db))
    with db.write() as session:
        session.delete(session.get_one(Artifact, (job_id, "model.safetensors")))
    assert issue(db, job_id)
    found = document(db, job_id)
    ledger = found["certificate"]["ledger"]
    [subject] = attestations.opened(found["envelope"], TRUSTED).subject
    assert subject.model_dump() == {"name": f"ledger entry {ledger['entry_seq']}", "digest": {"sha256": ledger["head"]}}


def forgeries(envelope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Envelopes that nobody should believe."""
    payload = base64.b64decode(envelope["payload"])
    flipped = bytearray(payload)
    flipped[len(payload) // 2] ^= 1
    named: tuple[dict[str, Any], ...] = (
        {"payload": base64.b64encode(bytes(flipped)).decode()},
        {"payloadType": "text/plain"},
        {"signatures": []},
    )
    made = {f"{next(iter(each))} changed": envelope | each for each in named}
    cut = copy.deepcopy(envelope)
    cut["signatures"][0]["sig"] = base64.b64encode(base64.b64decode(cut["signatures"][0]["sig"])[::-1]).decode()
    made["signature reversed"] = cut
    resigned = sealed(Statement.model_validate(json.loads(payload)), Ed25519PrivateKey.generate())
    made["another key, the old hint"] = resigned | {
        "signatures": [resigned["signatures"][0] | {"keyid": envelope["signatures"][0]["keyid"]}]
    }
    # Valid for a reader who joins type and payload without their lengths.
    made["bytes moved into the type"] = envelope | {"payloadType": f"{envelope['payloadType']} {len(payload)} {{"}
    return made


def test_no_forgery_is_believed(signed: dict[str, Any]) -> None:
    for name, forged in forgeries(signed["envelope"]).items():
        with pytest.raises(attestations.NotAuthentic):
            raise AssertionError(f"{name}: {attestations.opened(forged, TRUSTED)}")
        assert not certificates.verify(signed | {"envelope": forged}), name
        assert problem_of(signed | {"envelope": forged}) is not None and not is_authentic(forged, TRUSTED), name
    with pytest.raises(attestations.NotAuthentic):
        attestations.opened(signed["envelope"], OTHER)


@pytest.mark.parametrize(
    "broken", [{}, {"payload": 3}, {"payload": "%", "payloadType": "x", "signatures": []}, {"payload": "ü"}, []]
)
def test_what_is_no_envelope_is_said_to_be_none(broken: Any) -> None:
    with pytest.raises(attestations.NotAuthentic, match="not a DSSE envelope"):
        attestations.opened(broken, TRUSTED)


def test_an_envelope_with_another_body_is_found(signed: dict[str, Any]) -> None:
    """Signed by the same key, for another job."""
    other = attestations.statement(signed["certificate"] | {"job": "job_other"}, {"model.safetensors": "ab" * 32})
    resealed = signed | {"envelope": sealed(other, KEY)}
    assert certificates.verify(signed) and is_authentic(signed, TRUSTED) and is_authentic(signed["envelope"], TRUSTED)
    assert not certificates.verify(resealed) and problem_of(resealed) is not None
    assert not is_authentic(signed, OTHER) and not is_authentic(signed["envelope"], OTHER)


def test_a_certificate_of_an_earlier_version_still_verifies(signed: dict[str, Any]) -> None:
    """The signed version says whether there must be an envelope."""
    earlier = certificate_signatures.sign(signed["certificate"] | {"version": 1}, KEY).model_dump(exclude={"envelope"})
    assert certificates.verify(earlier, TRUSTED)
    assert certificates.verify(earlier | {"envelope": None}, TRUSTED)
    stripped = {name: signed[name] for name in signed if name != "envelope"}
    assert not certificates.verify(stripped, TRUSTED)
    assert is_authentic(earlier, TRUSTED) and not is_authentic(stripped, TRUSTED)


@pytest.mark.parametrize("key", ["AAAA", "", "ü", None])
def test_a_key_that_is_none_is_said_to_be_none(signed: dict[str, Any], key: Any, tmp_path: Path) -> None:
    with pytest.raises(attestations.NotAuthentic):
        attestations.opened(signed["envelope"], key)
    if key:
        path = tmp_path / "certificate.dsse.json"
        path.write_text(json.dumps(signed["envelope"]))
        assert CliRunner().invoke(app, ["certificates", "verify", str(path), "--public-key", key]).exit_code == 2


def test_a_malformed_signature_hides_no_valid_one(signed: dict[str, Any]) -> None:
    envelope = copy.deepcopy(signed["envelope"])
    envelope["signatures"] = [{"sig": "ü"}, {}, *envelope["signatures"]]
    assert attestations.opened(envelope, TRUSTED).predicate == signed["certificate"]


@pytest.mark.parametrize("kind", ["type_", "predicate_type"])
def test_a_statement_about_something_else_is_refused(signed: dict[str, Any], kind: str) -> None:
    statement = attestations.statement(signed["certificate"], {}).model_copy(update={kind: "https://example.org/other"})
    with pytest.raises(attestations.NotAuthentic, match="not a statement about a certificate"):
        attestations.opened(sealed(statement, KEY), TRUSTED)
    assert recompute(sealed(statement, KEY), TRUSTED, "it") == 1


@pytest.mark.parametrize("name", ["_type", "predicateType"])
def test_a_statement_that_does_not_say_what_it_is_is_refused(signed: dict[str, Any], name: str) -> None:
    said = json.loads(base64.b64decode(signed["envelope"]["payload"]))
    del said[name]
    payload = json.dumps(said).encode()
    signature = KEY.sign(attestations.encoded(attestations.PAYLOAD_TYPE, payload))
    signatures = [{"sig": base64.b64encode(signature).decode()}]
    envelope = signed["envelope"] | {"payload": base64.b64encode(payload).decode(), "signatures": signatures}
    with pytest.raises(attestations.NotAuthentic):
        attestations.opened(envelope, TRUSTED)


def test_a_whole_document_must_agree_with_its_envelope(signed: dict[str, Any], tmp_path: Path) -> None:
    """What a reader sees is `certificate`; what is signed for other tools is in the envelope."""
    changed = copy.deepcopy(signed)
    changed["certificate"]["epsilon"]["value"] = 0.1
    foreign = signed | {"envelope": sealed(attestations.statement(signed["certificate"], {}), STRANGER)}
    for forged in (changed, foreign):
        assert not certificates.verify(forged, TRUSTED)
        assert recompute(forged, TRUSTED, "it") == 1
        if shutil.which("node"):
            path = tmp_path / "forged.json"
            path.write_text(json.dumps(forged))
            assert by_node(path, "--public-key", TRUSTED).returncode == 1


@needs_node
def test_another_language_verifies_it(signed: dict[str, Any], tmp_path: Path) -> None:
    whole, alone, model = tmp_path / "certificate.json", tmp_path / "certificate.dsse.json", tmp_path / "model"
    whole.write_text(json.dumps(signed))
    alone.write_text(json.dumps(signed["envelope"]))
    model.write_bytes(MODEL)
    for path in (whole, alone):
        found = by_node(path, "--public-key", TRUSTED, model)
        assert found.returncode == 0, found.stderr
        assert f"certificate of {signed['certificate']['job']}" in found.stdout
        assert "is model.safetensors" in found.stdout
    model.write_bytes(MODEL[::-1])
    assert by_node(whole, "--public-key", TRUSTED, model).returncode == 1
    assert by_node(whole, "--public-key", OTHER).returncode == 1


@needs_node
def test_a_warm_node_answers_as_the_command_does(signed: dict[str, Any], tmp_path: Path) -> None:
    path, empty = tmp_path / "certificate.json", tmp_path / "empty.json"
    path.write_text(json.dumps(signed))
    empty.write_text("{}")
    known = ("--public-key", TRUSTED)
    for words in ((path, *known), (path,), (path, *known, path), (path, "--public-key", OTHER), (empty,), ("--x",), ()):
        line = ["node", VERIFIER, *words]
        command, warm = subprocess.run(line, capture_output=True, text=True, check=False), by_node(*words)
        assert (warm.returncode, warm.stdout, warm.stderr) == (command.returncode, command.stdout, command.stderr)


@needs_node
def test_another_language_believes_no_forgery(signed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "forged.json"
    for name, forged in forgeries(signed["envelope"]).items():
        path.write_text(json.dumps(forged))
        assert by_node(path, "--public-key", TRUSTED).returncode == 1, name
    path.write_text("{}")
    assert by_node(path, "--public-key", TRUSTED).returncode == 2


@needs_node
@pytest.mark.parametrize("other", ["certificate", "public_key", "algorithm", "keyid"])
def test_another_language_believes_no_document_that_says_otherwise(
    signed: dict[str, Any], tmp_path: Path, other: str
) -> None:
    """The envelope is intact; what the document shows around it is not, or is missing."""
    path, [signature] = tmp_path / "certificate.json", signed["envelope"]["signatures"]
    for value in ("x", None):
        changed = signed | {other: value}
        if other == "keyid":
            changed = signed | {"envelope": signed["envelope"] | {"signatures": [signature | {"keyid": value}]}}
        if value is None:
            changed.pop(other, None)
        path.write_text(json.dumps(changed))
        assert by_node(path, "--public-key", TRUSTED).returncode == 1


def test_a_proof_that_fails_is_told_from_a_signature_that_does(signed: dict[str, Any], tmp_path: Path) -> None:
    path, body = tmp_path / "certificate.json", signed["certificate"]
    wrong = body | {"ledger": body["ledger"] | {"checkpoint": "no note", "proofs": []}}
    for shown_as, told in (
        (signed_document(wrong, KEY, {}), "the proof does NOT hold"),
        (signed | {"certificate": wrong}, "the signature does NOT hold"),
    ):
        path.write_text(json.dumps(shown_as))
        shown = CliRunner().invoke(app, ["certificates", "verify", str(path), "--public-key", TRUSTED])
        assert shown.exit_code == 1 and told in " ".join(shown.output.split())


def test_the_command_line_verifies_and_recomputes_an_envelope(signed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "certificate.dsse.json"
    path.write_text(json.dumps(signed["envelope"]))
    run = CliRunner().invoke
    assert run(app, ["certificates", "verify", str(path), "--public-key", TRUSTED]).exit_code == 0
    assert run(app, ["certificates", "verify", str(path), "--public-key", OTHER]).exit_code == 1
    assert "give --public-key" in " ".join(run(app, ["certificates", "verify", str(path)]).output.split())
    assert recompute(signed["envelope"], TRUSTED, "it") == 0
    assert recompute(signed["envelope"], OTHER, "it") == 1
    for name, forged in forgeries(signed["envelope"]).items():
        assert recompute(forged, TRUSTED, "it") in (1, 2), name
