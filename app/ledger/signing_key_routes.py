"""/v1/signing-keys and /v1/signatures: the public keys of certificates, and when they signed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from sqlalchemy import select

from app.db.models import SigningKey
from app.db.row_view import Computed, Moment, RowView, Whole
from app.keys.auth import current_key
from app.ledger.root_history import envelope_of
from app.ledger.transparency.dates import SignatureDate, date_of
from app.secrets import SecretError
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document
from core.errors import Unavailable

Digest = Annotated[
    str,
    Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the signature's bytes and of the payload, in hexadecimal."),
]
router = APIRouter(prefix="/v1", tags=["ledger"], dependencies=[Depends(current_key)])


class SigningKeyView(Document, RowView):
    """`public_key` is base64 of the raw key, as in a certificate; `id` the first 16 hex digits of the key's SHA-256."""

    id: str
    algorithm: Annotated[str, Computed(lambda _row: "Ed25519")]
    public_key: str
    first_used_at: Annotated[str | None, Moment("first_used_at")]


class SigningKeyList(Document, Whole[SigningKeyView]):
    """Every public key of certificates."""


@router.get("/signing-keys")
@Operation(
    "All keys that sign or signed certificates.",
    audience="every key",
    leaves=leaves.NO_DATA,
    command="signing-key",
    answer={
        "items": [
            {
                "id": "5f1b7c3e9d2a4068",
                "algorithm": "Ed25519",
                "public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
                "first_used_at": "2026-02-27T12:00:00.000000Z",
            }
        ],
        "next": None,
    },
)
def list_signing_keys(db: Db) -> SigningKeyList:
    """Lists the keys that sign or signed certificates, the newest first. Keep the key that you trust outside."""
    with db.read() as session:
        rows = session.scalars(select(SigningKey).order_by(SigningKey.first_used_at.desc(), SigningKey.id)).all()
    return SigningKeyList(items=[SigningKeyView.of(each) for each in rows])


@router.get("/signatures/{digest}")
@Operation(
    "The proof that a signature is in a log.",
    audience="every key",
    leaves=leaves.NO_DATA,
    command="certificates date",
    answer={
        "digest": "9f2b7c3e9d2a40689f2b7c3e9d2a40689f2b7c3e9d2a40689f2b7c3e9d2a4068",
        "checkpoint": "scrimp.example.org/ledger/signed_mfrggzdfmztwq2lknnwg23tpo\n1\n"
        "4Pn2dm1kXw8fPBtoW+CmEB6ebUzPOQ2bq0tRq7mLm1o=\n\n\u2014 scrimp.example.org/ledger 5Qd0AA==\n",
        "entry": 1,
        "path": [],
    },
    problems=("head-pending", "not-found"),
)
def show_signature_date(digest: Digest, db: Db) -> SignatureDate:
    """Proves that the service had signed something when its witnesses saw the log: for readers whom the key is revoked
    from. `digest`: SHA-256 of the signature's 64 bytes and of the payload, in hexadecimal."""
    with db.read() as session:
        return date_of(session, digest)


class SigningHistory(Document):
    """`history`: a DSSE envelope that the service's offline root signed; null: it has none."""

    history: object


@router.get("/signing-keys/history")
@Operation(
    "The root's history of the signing keys.",
    audience="every key",
    leaves=leaves.NO_DATA,
    command="keys history",
    answer={"history": None},
    problems=("unavailable",),
)
def show_signing_history(settings: ServiceSettings) -> SigningHistory:
    """Shows when which key signs, and which is revoked, as the offline root signed it. Check it under its key."""
    try:
        envelope = envelope_of(settings)
    except SecretError as error:
        raise Unavailable(error.message) from None
    return SigningHistory(history=None if envelope is None else envelope.model_dump(mode="json", by_alias=True))
