"""What a reader may require of a certificate, by both verifiers: a signer, a checkpoint, a witness."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from app.db.database import Database
from app.ledger.schemas import ProofView
from app.ledger.transparency import checkpoints
from app.ledger.transparency.heads import Heads
from scrimp.cli import app
from scrimp.signatures import problem_of
from scrimp.transparency import COSIGNATURE, Key, Note
from scrimp.witness import Witness
from tests.ledger.support import open_ledger, signed_document
from tests.ledger.test_anchors import unheard
from tests.ledger.test_attestations import OTHER, STRANGER, TRUSTED
from tests.ledger.test_certificates import KEY, document, issue, succeeded
from tests.ledger.test_checkpoints import READER, db, heads, lengthen
from tests.node import by_node, needs_node

__all__ = ["db", "heads"]  # fixtures
SIZE, LATER = 302, 500
Verify = Callable[..., tuple[int, str]]


def by_command(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["certificates", "verify", *map(str, words)])
    return done.exit_code, " ".join(done.output.split())


def by_script(*words: str | Path) -> tuple[int, str]:
    done = by_node(*words)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(params=[by_command, pytest.param(by_script, marks=needs_node)])
def verify(request: pytest.FixtureRequest) -> Verify:
    """One of the verifiers."""
    found: Verify = request.param
    return found


@dataclass(frozen=True)
class Evidence:
    """Files: certificates, checkpoints and proofs of one ledger; and the witness's key.

    Attributes:
        signed: the certificate, which carries the checkpoint of SIZE entries.
        bare: the same, without a checkpoint.
        cosigned, later: checkpoints of SIZE and of LATER entries, which the witness cosigned.
        since, of_entry: proofs that lead to `later`, from the certificate's checkpoint and from its entry.
    """

    folder: Path
    document: dict[str, Any]
    witness: Witness
    signed: Path
    bare: Path
    cosigned: Path
    later: Path
    since: Path
    of_entry: Path

    def write(self, name: str, content: object) -> Path:
        return written(self.folder, name, content)


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def evidence(db: Database, heads: Heads, tmp_path: Path) -> Evidence:
    dataset = open_ledger(db)
    lengthen(db, dataset, SIZE - 2)
    job_id = succeeded(db, dataset)
    checkpoints.sign_due(db, heads, KEY, unheard)
    assert issue(db, job_id)
    found = json.loads(json.dumps(document(db, job_id)))
    witness = Witness(tmp_path / "state", "witness.example.org/w1", Ed25519PrivateKey.generate(), [[READER]])
    first = str(heads.checkpoint(dataset))
    cosigned = first + witness.add(f"old 0\n\n{first}")
    lengthen(db, dataset, LATER)
    checkpoints.sign_due(db, heads, KEY, unheard)
    second = str(heads.checkpoint(dataset))
    with db.read() as session:
        path = checkpoints.consistency(session, dataset, SIZE, LATER)
        inclusion = checkpoints.inclusion(session, dataset, SIZE, LATER)
    since = ProofView(dataset=dataset, size=LATER, since=SIZE, path=path)
    head = found["certificate"]["ledger"]["head"]
    of_entry = ProofView(dataset=dataset, size=LATER, entry=SIZE, hash=head, path=inclusion)
    later = second + witness.add("\n".join([f"old {SIZE}", *path, "", second]))
    ledger = {
        name: value for name, value in found["certificate"]["ledger"].items() if name not in ("checkpoint", "proofs")
    }
    return Evidence(
        tmp_path,
        found,
        witness,
        written(tmp_path, "certificate.json", found),
        written(tmp_path, "bare.json", signed_document(found["certificate"] | {"ledger": ledger}, KEY, {})),
        written(tmp_path, "cosigned", cosigned),
        written(tmp_path, "later", later),
        written(tmp_path, "since.json", since.model_dump(mode="json")),
        written(tmp_path, "entry.json", of_entry.model_dump(mode="json")),
    )


def test_without_a_trusted_key_nothing_is_accepted(evidence: Evidence, verify: Verify) -> None:
    """A forger's certificate carries the forger's key: its signature holds.

    Attack (Reliability): A forger's certificate is verified without a key
    Now: exit code 2, "intact; signer not checked"
    """
    forged = copy.deepcopy(evidence.document["certificate"])
    forged["epsilon"]["value"] = 0.01
    forged["ledger"] = {name: forged["ledger"][name] for name in ("entry_seq", "balance_after", "head")}
    path = evidence.write("forged.json", signed_document(forged, STRANGER, {}))
    for unchecked in (path, evidence.signed):
        status, said = verify(unchecked)
        assert status == 2 and "intact; signer not checked: give --public-key" in said
    assert verify(path, "--public-key", TRUSTED)[0] == 1
    assert verify(evidence.signed, "--public-key", OTHER)[0] == 1
    assert verify(evidence.signed, "--public-key", TRUSTED)[0] == 0
    changed = copy.deepcopy(evidence.document)
    changed["certificate"]["epsilon"]["value"] = 0.01
    assert verify(evidence.write("changed.json", changed))[0] == 1, "not even intact"
    assert verify(evidence.write("envelope.json", evidence.document["envelope"]))[0] == 2


def test_a_script_reads_that_the_signer_was_not_checked(evidence: Evidence) -> None:
    for words, status, valid in (([], 2, False), (["--public-key", TRUSTED], 0, True)):
        done = CliRunner().invoke(app, ["certificates", "verify", str(evidence.signed), "--json", *words])
        said = json.loads(done.stdout)
        assert done.exit_code == status
        assert (said["valid"], said["intact"], said["signer_checked"]) == (valid, True, bool(words))
    assert problem_of(evidence.document) is None, "intact"


def test_a_checkpoint_may_be_required(evidence: Evidence, verify: Verify) -> None:
    """Attack (Reliability): A certificate whose charge a rewound ledger has lost
    Now: `--require-checkpoint` and `--witness KEY` refuse it, in both verifiers
    Also: tests/ledger/test_required.py::test_a_witness_may_be_required
    """
    key = ("--public-key", TRUSTED)
    assert verify(evidence.bare, *key)[0] == 0
    for words in (("--require-checkpoint",), ("--witness", str(evidence.witness.key))):
        status, said = verify(evidence.bare, *key, *words)
        assert status == 1 and "it has no checkpoint" in said
    assert verify(evidence.signed, *key, "--require-checkpoint")[0] == 0
    assert verify(evidence.signed, "--require-checkpoint")[0] == 2, "who signed it is still not checked"
    assert verify(evidence.bare, "--require-checkpoint")[0] == 1


def test_a_witness_may_be_required(evidence: Evidence, verify: Verify) -> None:
    """Its cosignature comes after the certificate, so the checkpoint comes from the witness or the service."""
    one = ("--public-key", TRUSTED, "--witness", str(evidence.witness.key))
    other = str(
        Key("witness.example.org/w2", COSIGNATURE, Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    )
    impostor = str(Key(evidence.witness.key.name, COSIGNATURE, READER.raw))
    status, said = verify(evidence.signed, *one)
    assert status == 1 and f"witness.example.org/w1 did not cosign the checkpoint of {SIZE} entries" in said
    assert verify(evidence.signed, *one, "--checkpoint", evidence.cosigned)[0] == 0
    for key in (other, impostor):
        status, said = verify(evidence.signed, *one, "--witness", key, "--checkpoint", evidence.cosigned)
        assert status == 1 and "did not cosign" in said
    for key in (str(READER), "nonsense", str(evidence.witness.key)[:-4] + "AAA="):
        assert verify(evidence.signed, "--public-key", TRUSTED, "--witness", key)[0] == 2, "no witness's key"
    carried = evidence.document["certificate"]
    ledger = carried["ledger"] | {"checkpoint": evidence.cosigned.read_text()}
    path = evidence.write("carried.json", signed_document(carried | {"ledger": ledger}, KEY, {}))
    assert verify(path, *one)[0] == 0


@pytest.mark.parametrize("name", ["since", "of_entry"])
def test_a_proof_leads_to_a_later_checkpoint(evidence: Evidence, verify: Verify, name: str) -> None:
    words = ("--public-key", TRUSTED, "--witness", str(evidence.witness.key), "--checkpoint", evidence.later)
    status, said = verify(evidence.signed, *words)
    assert status == 1 and f"no proof leads to the checkpoint of {LATER} entries" in said
    path: Path = getattr(evidence, name)
    proof = json.loads(path.read_text())
    assert verify(evidence.signed, *words, "--proof", path)[0] == 0
    wrong = [
        {"size": LATER - 1},
        {"path": proof["path"][1:]},
        {"path": [*proof["path"], proof["path"][0]]},
        {"path": []},
    ]
    wrong += [{"since": SIZE - 1}] if name == "since" else [{"entry": SIZE - 1}, {"hash": "00" * 32}]
    for change in wrong:
        broken = evidence.write("broken.json", proof | change)
        assert verify(evidence.signed, *words, "--proof", broken)[0] == 1, change
    assert verify(evidence.bare, *words, "--proof", path)[0] == (0 if name == "of_entry" else 1)


def test_another_checkpoint_shows_nothing(evidence: Evidence, verify: Verify) -> None:
    """One of another ledger, one that the service did not sign, and a file that is none."""
    key = ("--public-key", TRUSTED, "--checkpoint")
    note = Note.parse(evidence.cosigned.read_text())
    foreign = evidence.write("foreign", evidence.cosigned.read_text().replace(note.origin, note.origin + "x"))
    status, said = verify(evidence.signed, *key, foreign)
    assert status == 1 and "the certificate names no such ledger" in said
    lines = evidence.cosigned.read_text().splitlines(keepends=True)
    unsigned = evidence.write("unsigned", "".join(line for line in lines if not line.startswith("\u2014 scrimp")))
    status, said = verify(evidence.signed, *key, unsigned)
    assert status == 1 and "did not sign the checkpoint that was given" in said
    assert verify(evidence.signed, *key, evidence.write("none", "no note"))[0] == 2
