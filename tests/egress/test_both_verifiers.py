"""`scrimp verify-egress` and docs/verify.mjs check the same: one table of forged folders, each signed by the service.

A forger who has the signing key can sign any manifest: these folders differ from an honest one in what the manifest's
files say together. So each is found by the check that it is about, and by no signature of the manifest.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger.signer import public_key
from app.ledger.signing_keys import publish
from app.ledger.transparency import attestations, notes
from app.ledger.transparency.notes import Checkpoint
from scrimp.egress import Expected, examine
from scrimp.transparency import Note, leaf_of, root_of
from tests.egress.conftest import World
from tests.node import by_node, needs_node

EGRESS = "https://scrimp.example.org/egress/v1"
Json = dict[str, Any]


class Forged:
    """A folder that is changed and signed again.

    Attributes:
        said: what its JSON files and the manifest say, to be changed.
    """

    def __init__(self, folder: Path, key: Ed25519PrivateKey) -> None:
        self.folder, self.key, self.sizes = folder, key, 0
        names = ("certificate.json", "log.json", "statement.json")
        self.said: dict[str, Json] = {name: json.loads((folder / name).read_text()) for name in names}
        envelope = json.loads((folder / "manifest.json").read_text())
        self.manifest: Json = json.loads(base64.b64decode(envelope["payload"]))["predicate"]

    @property
    def ledger(self) -> Json:
        found: Json = self.said["statement.json"]["ledgers"][0]
        return found

    def chain(self) -> None:
        """Chains the statement's entries anew, and signs their checkpoint, in log.json too."""
        before = hashlib.sha256(b"scrimp/ledger/v1:" + self.ledger["id"].encode()).hexdigest()
        for entry in self.ledger["entries"]:
            entry["prev_hash"] = before
            bare = {name: each for name, each in entry.items() if name != "hash"}
            text = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            entry["hash"] = before = hashlib.sha256(text.encode()).hexdigest()
        self.note(len(self.ledger["entries"]))

    def note(self, size: int) -> None:
        root = root_of([leaf_of(each["hash"]) for each in self.ledger["entries"][:size]])
        note = notes.sign(Checkpoint(self.ledger["id"], size, root), self.key)
        self.ledger["checkpoint"] = self.said["log.json"]["ledgers"][0]["checkpoint"] = note
        self.manifest["ledgers"][0]["entries"] = size

    def sign(self) -> Path:
        for name, said in self.said.items():
            (self.folder / name).write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n")
        files = {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != "manifest.json"
        }
        self.manifest["sizes"] = {name: len(content) + self.sizes for name, content in files.items()}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        statement = attestations.about(digests, EGRESS, self.manifest)
        text = attestations.seal(statement, self.key).model_dump_json(by_alias=True, indent=1)
        (self.folder / "manifest.json").write_text(text)
        return self.folder


def balance(f: Forged) -> None:
    f.ledger["entries"][-1]["memo"]["balance"]["train"]["spent"] += 1
    f.chain()


def overspent(f: Forged) -> None:
    for entry in f.ledger["entries"]:
        if entry["kind"] == "open":
            entry["train"] = 1
        entry["memo"]["balance"]["train"]["budget"] = 1
    f.chain()


def worth(f: Forged) -> None:
    f.ledger["entries"][0]["memo"]["cap_epsilon"] = 1.5
    f.chain()


def settled_twice(f: Forged) -> None:
    posted = next(each for each in f.ledger["entries"] if each["kind"] == "post")
    f.ledger["entries"].append({**copy.deepcopy(posted), "seq": len(f.ledger["entries"]) + 1})
    f.chain()


def negative(f: Forged) -> None:
    f.ledger["entries"][1]["train"] = -1
    f.chain()


def other_entry(f: Forged) -> None:
    f.ledger["entries"][0]["memo"]["cap_epsilon"] = 4.5


def other_number(f: Forged) -> None:
    f.ledger["entries"][0]["seq"] = 2
    f.chain()


def shorter(f: Forged) -> None:
    f.note(len(f.ledger["entries"]) - 1)


def same_ledger_twice(f: Forged) -> None:
    f.said["statement.json"]["ledgers"].append(copy.deepcopy(f.ledger))


def no_ledger(f: Forged) -> None:
    f.said["statement.json"]["ledgers"] = []


def version(f: Forged) -> None:
    f.said["statement.json"]["version"] = 5


def covered(f: Forged) -> None:
    f.manifest["ledgers"][0]["entries"] += 1


def other_dataset(f: Forged) -> None:
    f.manifest["dataset"] = "ds_other"


def other_job(f: Forged) -> None:
    f.manifest["job"] = "job_other"


def sizes(f: Forged) -> None:
    f.sizes = 1


def manifest_version(f: Forged) -> None:
    f.manifest["version"] = 2


def log_is_empty(f: Forged) -> None:
    f.said["log.json"]["ledgers"] = []


def log_of_more(f: Forged) -> None:
    f.said["log.json"]["ledgers"].append({**copy.deepcopy(f.said["log.json"]["ledgers"][0]), "id": "ds_other"})


def log_s_checkpoint(f: Forged) -> None:
    whole = f.said["log.json"]["ledgers"][0]["checkpoint"]
    f.note(len(f.ledger["entries"]))
    stranger = Ed25519PrivateKey.generate()
    note = Note.parse(whole)
    f.said["log.json"]["ledgers"][0]["checkpoint"] = notes.sign(
        Checkpoint(f.ledger["id"], note.size, note.root), stranger
    )


def log_s_proof(f: Forged) -> None:
    f.said["log.json"]["ledgers"][0]["proof"]["path"] = []


def certificate_s_charge(f: Forged) -> None:
    f.said["certificate.json"]["certificate"]["charge"]["train"] += 1


def certificate_s_signature(f: Forged) -> None:
    f.said["certificate.json"]["signature"] = "A" * 86 + "=="


def model_more(f: Forged) -> None:
    (f.folder / "model" / "more.bin").write_bytes(b"more")


def model_less(f: Forged) -> None:
    (f.folder / "model" / "model.safetensors").unlink()


TABLE: dict[Callable[[Forged], None], str] = {
    balance: "states balances that do not follow from the entries",
    overspent: "overspends the budget",
    worth: "grants a budget that is worth",
    settled_twice: "settles a hold that does not exist",
    negative: "has a negative amount",
    other_entry: "entry 1 does not fit into the chain",
    other_number: "entry 1 does not fit into the chain",
    shorter: "the entries are not those of the checkpoint",
    same_ledger_twice: "a block is stated twice",
    no_ledger: "the first ledger is not the data set's own",
    version: "of an unknown version",
    covered: "the statement covers other entries than the manifest says",
    other_dataset: "another job or data set than the manifest says",
    other_job: "another job or data set than the manifest says",
    sizes: "is not the file that was signed",
    manifest_version: "unknown version",
    log_is_empty: "log.json has other ledgers than the certificate",
    log_of_more: "log.json has other ledgers than the certificate",
    log_s_checkpoint: "is not signed by the manifest's key",
    log_s_proof: "log.json: no proof that entry",
    certificate_s_charge: "charges another amount than the certificate says",
    certificate_s_signature: "certificate.json: ",
    model_more: "model/more.bin is not a file that the certificate names",
    model_less: "the folder lacks model.safetensors, which the certificate names",
}


@pytest.fixture(scope="module")
def honest(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared.made(shared.first, tmp_path_factory.mktemp("honest") / "folder")


@needs_node
def test_what_is_signed_again_without_a_change_holds(shared: World, honest: Path, tmp_path: Path) -> None:
    folder = Forged(shutil.copytree(honest, tmp_path / "copy"), shared.scene.signing_key).sign()
    assert examine(folder, [shared.key]).faults == []
    answer = by_node(folder, "--public-key", shared.key)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_node
@pytest.mark.parametrize("forge", TABLE, ids=lambda forge: forge.__name__)
def test_both_find_what_does_not_hold_together(
    shared: World, honest: Path, tmp_path: Path, forge: Callable[[Forged], None]
) -> None:
    forged = Forged(shutil.copytree(honest, tmp_path / "copy"), shared.scene.signing_key)
    forge(forged)
    folder = forged.sign()
    assert TABLE[forge] in "\n".join(examine(folder, [shared.key]).faults)
    answer = by_node(folder, "--public-key", shared.key)
    assert answer.returncode == 1 and TABLE[forge] in answer.stdout + answer.stderr, answer.stdout + answer.stderr


@needs_node
def test_both_refuse_another_egress_in_its_place(shared: World, honest: Path, tmp_path: Path) -> None:
    made = str(examine(honest, [shared.key]).manifest["made_at"])
    known = ("--public-key", shared.key)
    assert by_node(honest, *known, "--job", shared.first, "--since", made).returncode == 0
    for words in (("--job", "job_x"), ("--recipient", "Somebody else"), ("--since", "2999-01-01T00:00:00Z")):
        assert by_node(honest, *known, *words).returncode == 1
    later = shared.finished("later")
    shared.relay.next_sweep = 0.0
    shared.let_out()
    assert later
    kept = tmp_path / "checkpoint"
    kept.write_text(
        shared.call("GET", "/v1/ledger/checkpoint", params={"dataset": shared.dataset}).json()["checkpoint"]
    )
    answer = by_node(honest, *known, "--checkpoint", kept)
    assert answer.returncode == 1 and "the folder is older than the checkpoint" in answer.stdout
    assert examine(honest, [shared.key], Expected(notes=(Note.parse(kept.read_text()),))).faults


@needs_node
def test_both_read_an_egress_from_after_a_rotation(world: World, tmp_path: Path) -> None:
    """The certificate has the old key's signature, manifest and checkpoints the new one's."""
    assert world.first
    world.relay.run_once()
    new = Ed25519PrivateKey.generate()
    publish(world.db, new)
    world.relay.signing_key = new
    folder = world.made(world.first, tmp_path / "folder")
    keys = [public_key(new), world.key]
    assert examine(folder, keys).faults == []
    answer = by_node(folder, "--public-key", keys[0], "--public-key", keys[1])
    assert answer.returncode == 0, answer.stdout + answer.stderr
    alone = "the certificate is signed by a key that is not trusted"
    assert alone in examine(folder, keys[:1]).faults[0]
    answer = by_node(folder, "--public-key", keys[0])
    assert answer.returncode == 1 and alone in answer.stdout
    assert by_node(folder, "--public-key", keys[1]).returncode == 1
