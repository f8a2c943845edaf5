"""Checks an egress, a signed folder of a job's files, on the reader's side and offline.

    manifest.json signs the SHA-256 and the size of every other file, and what binds them to one egress: id, number,
    recipient, time, job and data set. `certificate.json`, `log.json` and `statement.json` are checked against each
    other: the certificate's charge is in a signed checkpoint, and among the entries of the statement.

Deliberately independent of the service's own code (app.egress), which makes such folders.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from scrimp.errors import ScrimpError
from scrimp.key_history import Doubt, Doubted, Trust
from scrimp.recompute import is_signed_by
from scrimp.signatures import problem_of
from scrimp.statement import believed, covered
from scrimp.transparency import ED25519, LOG, Key, Note, NotProven, begins_with, decoded, includes, leaf_of

MANIFEST = "manifest.json"
MODEL = "model/"
TYPES = (
    "application/vnd.in-toto+json",
    "https://in-toto.io/Statement/v1",
    "https://scrimp.example.org/egress/v1",
)
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """What a reader expects of an egress; an earlier or another one that is presented in its place is found by it.

    Attributes:
        job, recipient: as the manifest must say.
        since: the folder was made at this time or later.
        notes: checkpoints from elsewhere: the statement must cover all their entries.
    """

    job: str | None = None
    recipient: str | None = None
    since: datetime | None = None
    notes: tuple[Note, ...] = ()


ANYTHING = Expected()


@dataclass(frozen=True)
class Examined:
    """What was found.

    Attributes:
        manifest: what is signed; {} if nothing is.
        faults: what does not hold, and what nothing at hand tells (`Doubt`).
        signer_checked: the reader named the key.
    """

    manifest: Json
    faults: list[str]
    signer_checked: bool
    files: dict[str, str] = field(default_factory=dict)  # name → SHA-256

    @property
    def holds(self) -> bool:
        """True if nothing is wrong."""
        return not self.faults

    @property
    def refuted(self) -> bool:
        """True if something is wrong, beside what nothing tells."""
        return any(not isinstance(each, Doubt) for each in self.faults)


def examine(folder: Path, trusted: Sequence[str] | Trust = (), expected: Expected = ANYTHING) -> Examined:
    """Examines a folder.

    Args:
        trusted: base64 of the keys that the reader trusts, or a root's; after a rotation the certificate may have
            another one than the manifest. Without any, the certificate's own key is used: this shows that the folder
            is intact, not who signed it.
    """
    trust = trusted if isinstance(trusted, Trust) else Trust(tuple(trusted))
    checked = bool(trust.keys)
    try:
        envelope, document = _json(folder / MANIFEST), _json(folder / "certificate.json")
        keys = trust.keys or (str(document["public_key"]),)
        key = next((each for each in keys if is_signed_by(envelope, _raw(each))), None)
        if key is None:
            return Examined({}, ["no trusted key signed the manifest"], checked)
        statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
        if (envelope["payloadType"], statement["_type"], statement["predicateType"]) != TYPES:
            return Examined({}, ["the manifest is not that of an egress"], checked)
        manifest: Json = statement["predicate"]
        if manifest["version"] != 1:
            return Examined(manifest, ["the manifest has an unknown version: read it with a newer scrimp"], True)
        signed = {str(each["name"]): str(each["digest"]["sha256"]) for each in statement["subject"]}
        faults = [*_file_faults(folder, signed, manifest["sizes"]), *_unexpected(manifest, expected)]
        if not faults:
            faults = list(_content_faults(folder, envelope, signed, replace(trust, keys=keys), key, expected.notes))
        return Examined(manifest, faults, checked, signed)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Examined({}, [f"it cannot be read as an egress: {error!r}"], checked)


def _is_entry(path: Path) -> bool:
    """A file, or a link to whatever: a link to a folder is a folder to `is_dir`."""
    return path.is_symlink() or not path.is_dir()


def _file_faults(folder: Path, signed: Mapping[str, str], sizes: Mapping[str, int]) -> Iterator[str]:
    """Files that are missing, that nobody signed, or that are not what was signed."""
    if set(sizes) != set(signed):
        yield "the manifest states other sizes than files"
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if _is_entry(path)}
    for name in sorted(set(signed) - set(files)):
        yield f"{name} is missing"
    for name, path in sorted(files.items()):
        if path.is_symlink() or any(each.is_symlink() for each in path.parents if folder in each.parents):
            yield f"{name} is a link"
        elif name == MANIFEST:
            continue
        elif name not in signed:
            yield f"{name} is not in the manifest"
        elif path.stat().st_size != sizes.get(name) or _digest(path) != signed[name]:
            yield f"{name} is not the file that was signed"


def _unexpected(manifest: Json, expected: Expected) -> Iterator[str]:
    for name in ("job", "recipient"):
        wanted = getattr(expected, name)
        if wanted is not None and manifest[name] != wanted:
            yield f"it is an egress with {name} {manifest[name]!r}, not {wanted!r}"
    if expected.since is not None and _moment(manifest["made_at"]) < expected.since:
        yield f"it was made at {manifest['made_at']}, before {expected.since.isoformat()}: an earlier egress"


def _content_faults(
    folder: Path, sealed: Json, signed: Mapping[str, str], trust: Trust, signer: str, notes: Sequence[Note]
) -> Iterator[str]:
    """What does not hold of a folder whose files were signed.

    Args:
        sealed: the manifest's envelope.
        trust: with the keys that are accepted here.
        signer: the manifest's key.
    """
    key, manifest = _raw(signer), json.loads(base64.b64decode(sealed["payload"], validate=True))["predicate"]
    document = _json(folder / "certificate.json")
    body = document["certificate"]
    if document["public_key"] not in trust.keys:
        yield "the certificate is signed by a key that is not trusted: name that too, if the service's key was rotated"
    elif (problem := problem_of(document, document["public_key"])) is not None:
        yield f"certificate.json: {problem}"
    if (body["job"], body["dataset"]["id"]) != (manifest["job"], manifest["dataset"]):
        yield "the certificate is of another job or data set than the manifest says"
    yield from _model_faults(document, signed)
    stated = _json(folder / "statement.json")
    try:
        summed, _ = believed(stated, replace(trust, keys=(signer,)), notes)
    except Doubted as error:
        yield Doubt(f"statement.json: {error}")
        return
    except NotProven as error:
        yield f"statement.json: {error}"
        return
    ledgers = {str(each["id"]): each for each in stated["ledgers"]}
    if summed.dataset != manifest["dataset"]:
        yield "the statement is of another data set than the manifest says"
    entries_by_id = {each["id"]: each["entries"] for each in manifest["ledgers"]}
    if entries_by_id != {each.id: each.entries for each in summed.ledgers}:
        yield "the statement covers other entries than the manifest says"
    log = {str(each["id"]): each for each in _json(folder / "log.json")["ledgers"]}
    charged = _charged(body)
    if set(log) != set(charged):
        yield "log.json has other ledgers than the certificate"
    for name in sorted(set(log) & set(charged)):
        yield from _charge_faults(name, log[name], charged[name], ledgers, body, key)
    for note in notes:
        yield from _age_faults(note, ledgers, key)
    all_notes = [*notes, *(Note.parse(each["checkpoint"]) for each in stated["ledgers"])]
    problem = trust.problem(signer, _moment(manifest["made_at"]), covered(stated, summed), notes, sealed)
    if problem is not None:
        yield type(problem)(f"manifest.json: {problem}")
    problem = trust.problem_with_certificate(document["public_key"], document, all_notes)
    if problem is not None:
        yield type(problem)(f"certificate.json: {problem}")


def _model_faults(document: Json, signed: Mapping[str, str]) -> Iterator[str]:
    """Every delivered file must be one that the certificate names, and each file of its job must be there."""
    envelope = document.get("envelope")
    model = {name.removeprefix(MODEL): digest for name, digest in signed.items() if name.startswith(MODEL)}
    if envelope is None:  # issued before there were envelopes: it names the weights alone
        wanted = document["certificate"]["model_sha256"]
        if wanted is not None and wanted not in model.values():
            yield "the folder lacks the model that the certificate names"
        return
    statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    for name, digest in model.items():
        if digests.get(name) != digest:
            yield f"{MODEL}{name} is not a file that the certificate names"
    for name in sorted(set(digests) - set(model)):
        if "/" not in name and not name.startswith("ledger entry "):  # weights of a study's trials stay
            yield f"the folder lacks {name}, which the certificate names"


def _charged(body: Json) -> dict[str, Json]:
    """The ledgers that a certificate names, by their data sets, or blocks."""
    ledger = body["ledger"]
    if isinstance(ledger, list):
        return {str(each["dataset"]): each for each in ledger}
    return {str(body["dataset"]["id"]): ledger}


def _charge_faults(
    name: str, proven: Json, settled: Json, ledgers: Mapping[str, Json], body: Json, key: bytes
) -> Iterator[str]:
    """What does not show that the certificate's charge is in the log, and the same in the statement."""
    note, proof = Note.parse(proven["checkpoint"]), proven["proof"]
    seq, head = int(settled["entry_seq"]), str(settled["head"])
    if note.origin != f"{LOG}/{name}" or note.signed_by(Key(LOG, ED25519, key)) is None:
        yield f"log.json: the checkpoint of {name} is not signed by the manifest's key"
    inside = (proof["entry"], proof["hash"]) == (seq, head)
    if not inside or not includes(seq - 1, note.size, leaf_of(head), decoded(proof["path"]), note.root):
        yield f"log.json: no proof that entry {seq} of {name} is in the checkpoint"
    stated = ledgers.get(name)
    if stated is None:
        yield f"the statement lacks {name}, which the job was charged on"
        return
    if Note.parse(stated["checkpoint"]).body != note.body:
        yield f"log.json and statement.json have different checkpoints of {name}"
    entry = next((each for each in stated["entries"] if each["seq"] == seq), None)
    if entry is None or (entry["hash"], entry["job_id"], entry["kind"]) != (head, body["job"], "post"):
        yield f"the statement's entry {seq} of {name} is not the charge that the certificate names"
    elif body.get("study") is None and (entry["train"], entry["holdout"]) != (
        body["charge"]["train"],
        body["charge"]["holdout"],
    ):
        yield f"the statement's entry {seq} of {name} charges another amount than the certificate says"


def _age_faults(note: Note, ledgers: Mapping[str, Json], key: bytes) -> Iterator[str]:
    name = note.origin.removeprefix(f"{LOG}/")
    stated = ledgers.get(name)
    if stated is None or note.signed_by(Key(LOG, ED25519, key)) is None:
        yield f"the checkpoint of {note.origin} that was given is of no ledger here, or of another signer"
    elif note.size > len(stated["entries"]):
        yield f"the folder is older than the checkpoint that was given: {len(stated['entries'])} of {note.size} entries"
    elif not begins_with(note, name, [each["hash"] for each in stated["entries"]]):
        yield f"the statement contradicts the checkpoint of {note.size} entries that was given"


def unpack(archive: Path, folder: Path) -> list[str]:
    """Unpacks an egress into a folder that is empty or new. Returns the files' names.

    Raises:
        ScrimpError: the folder has files, or the archive names a file outside of it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScrimpError(f"{folder} is not an empty folder: name a new one")
    with zipfile.ZipFile(archive) as packed:
        names = packed.namelist()
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or name.endswith("/"):
                raise ScrimpError(f"the archive has a file of an unsafe name: {name!r}")
        folder.mkdir(parents=True, exist_ok=True)
        packed.extractall(folder)
    return names


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _raw(key: str) -> bytes:
    return base64.b64decode(key, validate=True)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
