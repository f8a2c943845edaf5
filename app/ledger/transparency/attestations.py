"""A certificate as others' tools read it: an in-toto Statement in a DSSE envelope.

    {"payloadType": "application/vnd.in-toto+json", "payload": base64, "signatures": [{"keyid": hex, "sig": base64}]}

The payload's bytes are signed, so no reader needs to write JSON as Python does. The payload names the files that the
job delivered, by their SHA-256. Its predicate is the certificate's body.

Sources: in-toto Attestation Framework, Statement v1; Dead Simple Signing Envelope, protocol v1.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session

from app.db.models import SignedDigest, table_of
from app.db.upsert import insert_into
from app.ledger.certificate_documents import Certified, NamedLedger
from app.ledger.signer import Signer, signature
from core.contracts.base import Document

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://scrimp.example.org/privacy-certificate/v1"


class NotAuthentic(ValueError):
    """An envelope that is malformed, or that the key did not sign."""


class _Read(Document):
    model_config = ConfigDict(extra="ignore")


class Digest(Document):
    """A file's hash, in hex."""

    sha256: str


class Subject(Document):
    """What a statement is about."""

    name: str
    digest: Digest


class Statement(_Read):
    """An in-toto statement. `predicate`: a certificate's body, as JSON."""

    type_: str = Field(alias="_type")
    subject: tuple[Subject, ...]
    predicate_type: str = Field(alias="predicateType")
    predicate: object


class Signature(_Read):
    """Ed25519 over the pre-authentication encoding, base64. `keyid` is a hint."""

    keyid: str | None = None
    sig: str = ""


class Envelope(_Read):
    """A DSSE envelope. `payload`: base64."""

    payload_type: str = Field(alias="payloadType")
    payload: str
    signatures: tuple[object, ...]  # each by itself: a malformed one hides no valid one


def statement(body: object, files: Mapping[str, str]) -> Statement:
    """The statement that a job's files came about as the body says.

    Args:
        body: the certificate's, as JSON.
        files: name → SHA-256 (hex) of what the job delivered. A job that delivered nothing is named by the ledger entry
            that settled it: a statement has at least one subject.
    """
    ledger = Certified.of(body).ledger
    if isinstance(ledger, NamedLedger):
        entries = {f"ledger entry {ledger.entry_seq}": ledger.head}
    else:
        entries = {f"ledger entry {each.entry_seq} of block {each.block}": each.head for each in ledger}
    return about(dict(files) or entries, PREDICATE_TYPE, body)


def about(files: Mapping[str, str], predicate_type: str, predicate: object) -> Statement:
    """A statement about files.

    Args:
        files: name → SHA-256 (hex).
        predicate: JSON.
    """
    subjects = tuple(Subject(name=name, digest=Digest(sha256=digest)) for name, digest in sorted(files.items()))
    return Statement(_type=STATEMENT_TYPE, subject=subjects, predicateType=predicate_type, predicate=predicate)


def seal(statement: Statement, signing_key: Signer) -> Envelope:
    """Signs a statement."""
    payload = json.dumps(statement.model_dump(mode="json", by_alias=True), ensure_ascii=False).encode()
    raw = signature(signing_key, encoded(PAYLOAD_TYPE, payload))
    signed = Signature(keyid=key_id(signing_key.public_key()), sig=base64.b64encode(raw).decode())
    return Envelope(payloadType=PAYLOAD_TYPE, payload=base64.b64encode(payload).decode(), signatures=(signed,))


def keep(session: Session, envelope: Envelope) -> None:
    """Keeps the digests of an envelope that was signed, for a log (app.ledger.transparency.dates); in the transaction
    that stores it."""
    payload = base64.b64decode(envelope.payload)
    for each in envelope.signatures:
        signed = base64.b64decode(Signature.model_validate(each).sig)
        row = {"digest": hashlib.sha256(signed + payload).hexdigest()}
        session.execute(insert_into(session, table_of(SignedDigest)).values(row).on_conflict_do_nothing())


def opened(envelope: object, public_key: str) -> Statement:
    """The statement in an envelope that this key signed.

    Args:
        envelope: JSON, of whatever origin.
        public_key: base64 of the raw key that the reader trusts.

    Raises:
        NotAuthentic: no signature is the key's over these bytes, or they are no in-toto statement.
    """
    try:
        parsed = envelope if isinstance(envelope, Envelope) else Envelope.model_validate(envelope)
        payload = _bytes(parsed.payload)
        signed = encoded(parsed.payload_type, payload)
        key = Ed25519PublicKey.from_public_bytes(_bytes(public_key))
        if not any(_signed(key, each, signed) for each in parsed.signatures):
            raise NotAuthentic("this key did not sign the statement")
        found = Statement.model_validate(json.loads(payload))
    except NotAuthentic:
        raise
    except (AttributeError, ValueError) as error:
        raise NotAuthentic(f"this is not a DSSE envelope: {error!r}") from None
    if (parsed.payload_type, found.type_, found.predicate_type) != (PAYLOAD_TYPE, STATEMENT_TYPE, PREDICATE_TYPE):
        raise NotAuthentic("the payload is not a statement about a certificate")
    return found


def encoded(payload_type: str, payload: bytes) -> bytes:
    """What a DSSE signature covers: the pre-authentication encoding.

    >>> encoded("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(public_key: Ed25519PublicKey) -> str:
    """A hint which key signed: the SHA-256 of the raw key. Readers verify with the key that they trust."""
    return hashlib.sha256(public_key.public_bytes_raw()).hexdigest()


def _signed(key: Ed25519PublicKey, signature: object, signed: bytes) -> bool:
    try:
        key.verify(_bytes(Signature.model_validate(signature).sig), signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)
