"""What others published and what others read: foreign notes, the reference's proofs, DSSE by its own library.

The notes are of the Go checksum database (sum.golang.org), recorded between 2021 and 2026 from /latest and /lookup; the
entries in rekor.json are of Sigstore's Rekor, as a package on PyPI brings them.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from app.db.database import Database
from app.ledger.signer import public_key
from app.ledger.transparency import attestations
from app.ledger.transparency.ledger_tree import Tree
from core.merkle import leaf
from scrimp.transparency import Key, Note, NotProven, follows, includes, root_of
from tests.ledger.support import open_ledger
from tests.ledger.test_certificates import KEY, document, issue, succeeded
from tests.ledger.test_merkle import INPUTS, ROOTS

SUMDB = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
NOTES = (
    (
        3_935_567,
        "SapHtgdNCeF00Cx8kqztePV24kgzNg++Xovae42HAMw=",
        "Az3grsm7Wm4CVNR1RHq9BFnu9jzcRlU2uw7lr0gfUWgO6+rqPNjT+fUTl9gH0NRTgdwW9nItuQSMbhSaLCsk8YeYSAs=",
    ),
    (
        6_476_701,
        "mb8QLQIs0Z0yP5Cstq6guj87oXWeC9gEM8oVikmm9Wk=",
        "Az3grsLX85Gz+s1SiTbgkuqxgItqFq7gsMUEyVnrsa9LM7Us9S+1xbFIGu95949rj4nPRYfvimWEPWL+o3GeoWwOoAw=",
    ),
    (
        15_067_302,
        "gJyioq6dwR9n+NjEWORfYmH+ubeYm3kH42BBQ0bTpYI=",
        "Az3grp1rvWOs5NKlr/xR4GLN/CDyzzakmt1o61uSxYKpK1SerqOP2ClbX/peKUZjYnyomH5Xz7GZG3TpB7OeKn4E2ww=",
    ),
    (
        28_891_140,
        "++pUIeKTwGvykMUkmM3AT97PwQipMT6H/p7t86E0Sp0=",
        "Az3grqNvOILDz7xwAKugtVFZwd+I9IyB/mHrUYzcVaS9zKsRVdRLNGLFpnAcLhyoBBkdIYEzK/+7Eu4wanYttLrPsQo=",
    ),
    (
        65_209_736,
        "5+uGFjx6xBZG8ip1+wi77v+grwbhhukIrxEUS8PXvRo=",
        "Az3grnbssgK7ubgFX36gVETtNv0U23qxyAhAMai2QUfeGa3nB/akvkMdlUErfcZz7l/R3cVtYspg3dxXABkGZZKdsQ8=",
    ),
)
REKOR = json.loads((Path(__file__).parent / "rekor.json").read_text())["entries"]
# Of the tests of Certificate Transparency's reference implementation, over the eight leaves: (leaf from 1, size, path).
L1, L2 = ROOTS[0], "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
L34 = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
L5678 = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
L5, L56 = (
    "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
)
L78 = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
INCLUSION = [
    (1, 1, []),
    (1, 8, [L2, L34, L5678]),
    (6, 8, [L5, L78, ROOTS[3]]),
    (3, 3, [ROOTS[1]]),
    (2, 5, [L1, L34, L5]),
]
CONSISTENCY = [(1, 8, [L2, L34, L5678]), (6, 8, [L56, L78, ROOTS[3]]), (2, 5, [L34, L5])]


def note_of(size: int, root: str, signature: str) -> str:
    return f"go.sum database tree\n{size}\n{root}\n\n\u2014 sum.golang.org {signature}\n"


@pytest.mark.parametrize(("size", "root", "signature"), NOTES, ids=[str(each[0]) for each in NOTES])
def test_the_reader_opens_another_logs_notes(size: int, root: str, signature: str) -> None:
    key, note = Key.parse(SUMDB), Note.parse(note_of(size, root, signature))
    assert str(key) == SUMDB
    assert (note.origin, note.size, note.root) == ("go.sum database tree", size, base64.b64decode(root))
    assert note.signed_by(key) == 0
    for changed in (
        note_of(size + 1, root, signature),
        note_of(size, NOTES[0][1] if root != NOTES[0][1] else NOTES[1][1], signature),
        note_of(size, root, next(each for _, _, each in NOTES if each != signature)),
    ):
        assert Note.parse(changed).signed_by(key) is None
    with pytest.raises(NotProven):
        Note.parse(note_of(size, root, signature).replace("\n\n", "\n"))


@pytest.mark.parametrize(("entry", "size", "path"), INCLUSION)
def test_inclusion_proofs_are_the_published_ones(entry: int, size: int, path: list[str]) -> None:
    leaves = [leaf(bytes.fromhex(each)) for each in INPUTS]
    found = Tree(lambda low, high: leaves[low:high], {}).inclusion(entry - 1, size)
    assert [each.hex() for each in found] == path
    assert includes(entry - 1, size, leaves[entry - 1], [bytes.fromhex(each) for each in path], root_of(leaves[:size]))
    assert root_of(leaves[:size]).hex() == ROOTS[size - 1]


@pytest.mark.parametrize("entry", REKOR, ids=[each["of"].split("-")[0] for each in REKOR])
def test_a_public_logs_own_entries_are_found_in_its_trees(entry: dict[str, Any]) -> None:
    """Trees of up to 798 million entries, as its notes name them. Its ECDSA signatures are not checked here."""
    note, leaf_hash = Note.parse(entry["checkpoint"]), bytes.fromhex(entry["leaf"])
    path, index = [bytes.fromhex(each) for each in entry["path"]], entry["index"]
    assert note.origin.startswith("rekor.sigstore.dev - ") and includes(index, note.size, leaf_hash, path, note.root)
    for wrong in (index - 1, index + 1, note.size, -1):
        assert not includes(wrong, note.size, leaf_hash, path, note.root)
    assert not includes(index, note.size, hashlib.sha256(leaf_hash).digest(), path, note.root)
    for place in range(len(path)):
        assert not includes(index, note.size, leaf_hash, [*path[:place], *path[place + 1 :]], note.root)
        assert not includes(index, note.size, leaf_hash, [*path[:place], note.root, *path[place + 1 :]], note.root)


@pytest.mark.parametrize(("old", "size", "path"), CONSISTENCY)
def test_consistency_proofs_are_the_published_ones(old: int, size: int, path: list[str]) -> None:
    leaves = [leaf(bytes.fromhex(each)) for each in INPUTS]
    found = Tree(lambda low, high: leaves[low:high], {}).consistency(old, size)
    assert [each.hex() for each in found] == path
    roots = bytes.fromhex(ROOTS[old - 1]), bytes.fromhex(ROOTS[size - 1])
    assert follows(old, roots[0], size, roots[1], [bytes.fromhex(each) for each in path])


def test_dsse_s_own_library_verifies_an_envelope(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    envelope: dict[str, Any] = json.loads(json.dumps(document(db, job_id)))["envelope"]
    raw = base64.b64decode(public_key(KEY))
    keyid = attestations.key_id(Ed25519PublicKey.from_public_bytes(raw))
    key = SSlibKey(keyid, "ed25519", "ed25519", {"public": raw.hex()})
    read = Envelope.from_dict(copy.deepcopy(envelope))
    assert list(read.verify([key], 1)) == [keyid]
    assert read.payload_type == "application/vnd.in-toto+json"
    assert json.loads(read.payload)["predicate"]["job"] == job_id
    for name, changed in (("payload", base64.b64encode(read.payload + b" ").decode()), ("payloadType", "text/plain")):
        with pytest.raises(VerificationError):
            Envelope.from_dict(copy.deepcopy(envelope) | {name: changed}).verify([key], 1)
