"""The signed manifest of an egress: an in-toto statement whose subjects are all files of the folder.

    manifest.json   a DSSE envelope; subject: [{name, digest: {sha256}}] of each other file; predicate: `Manifest`

It is signed as certificates are (app.ledger.transparency.attestations), so that any reader of DSSE checks it. The
predicate binds the folder to one egress: id, number among the job's, recipient, time, job and data set.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.ledger.signer import Signer
from app.ledger.transparency import attestations
from core.contracts.base import Document, is_none

PREDICATE_TYPE = "https://scrimp.example.org/egress/v1"
NAME = "manifest.json"


class Word(Document):
    """A person's agreement, and the key that gave it."""

    person: str
    key_id: str
    at: str | None


class CoveredLedger(Document):
    """A ledger of the data set as of this egress: how many entries its signed checkpoint covers."""

    id: str
    label: str
    entries: int


class Manifest(Document):
    """What the service signs of an egress.

    Attributes:
        number: of the job's egresses, from 1. An earlier one stays what it was: it says its number and its time.
        approvals: the words of two persons; none where the owner has named no persons.
        sizes: of each file, in bytes.
        attack_report_sha256: of a report that stays with the owner; it is no part of the folder.
    """

    version: Literal[1] = 1
    egress: str
    number: int
    job: str
    dataset: str
    dataset_name: str
    recipient: str
    reason: str
    asked_by: str
    asked_at: str | None
    approvals: tuple[Word, ...]
    made_at: str | None
    ledgers: tuple[CoveredLedger, ...]
    sizes: dict[str, int]
    attack_report_sha256: str | None = Field(default=None, exclude_if=is_none)


def signed(manifest: Manifest, files: dict[str, str], key: Signer) -> str:
    """The text of manifest.json.

    Args:
        files: name → SHA-256 (hex) of every other file of the folder.
    """
    statement = attestations.about(files, PREDICATE_TYPE, manifest.model_dump(mode="json"))
    envelope = attestations.seal(statement, key)
    return envelope.model_dump_json(by_alias=True, indent=1) + "\n"
