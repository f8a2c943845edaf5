"""The service's signing keys as its root tells them: which key signed from when until when, and which is revoked.

    root key, offline ──signs──▶ history: [{public_key, from, until, revoked_from, reason}, …], numbered
    certificate's key ──in──▶ history, at the certificate's time ──▶ trusted

A DSSE envelope, signed whole at each change. The reader trusts the root's public key alone, which never changes.
Nothing here needs the service; signatures need `cryptography`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from scrimp.dated import Inclusion, cosigned_at
from scrimp.recompute import body_of
from scrimp.transparency import LOG, Key, Note, NotProven

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Json = Mapping[str, Any]
PAYLOAD_TYPE = "application/vnd.scrimp.signing-keys+json"
BYTES = 32  # of a raw key


class PrivateKey(Protocol):
    """Signs with Ed25519, as the private keys of `cryptography` do."""

    def sign(self, data: bytes) -> bytes:
        """The raw signature of these bytes."""
        ...

    def public_key(self) -> Ed25519PublicKey:
        """The key that verifies it."""
        ...


class Doubt(str):
    """Why what is at hand neither shows nor refutes something: a reader's exit code 2."""

    __slots__ = ()


class Doubted(NotProven):
    """The same, raised."""


@dataclass(frozen=True)
class Period:
    """A signing key and when it signed.

    Attributes:
        public_key: base64.
        until: from when on another key signs; None: it signs.
        revoked_from: from when on others may have had it. None: it is not revoked.
        reason: why it is revoked.
    """

    public_key: str
    start: datetime
    until: datetime | None = None
    revoked_from: datetime | None = None
    reason: str | None = None

    @property
    def document(self) -> Json:
        """As it is signed."""
        return {
            "public_key": self.public_key,
            "from": text_of(self.start),
            "until": None if self.until is None else text_of(self.until),
            "revoked_from": None if self.revoked_from is None else text_of(self.revoked_from),
            "reason": self.reason,
        }

    @classmethod
    def of(cls, document: Json) -> Period:
        """Reads one. Raises ValueError."""
        until, revoked = document["until"], document["revoked_from"]
        if len(base64.b64decode(document["public_key"], validate=True)) != BYTES:
            raise ValueError("a public key is not 32 bytes")
        return cls(
            document["public_key"],
            time_of(document["from"]),
            None if until is None else time_of(until),
            None if revoked is None else time_of(revoked),
            document["reason"],
        )


@dataclass(frozen=True)
class History:
    """All signing keys of a service, the oldest first. `number`: how often the root has signed."""

    number: int
    signed_at: datetime
    keys: tuple[Period, ...]

    def of_key(self, public_key: str) -> Period | None:
        """When a key signed; None if the root never named it."""
        return next((each for each in self.keys if each.public_key == public_key), None)

    def rotated(self, public_key: str, at: datetime, until: datetime) -> History:
        """With a new key, which signs from `at`; the one before may sign until `until`. Raises ValueError."""
        if self.of_key(public_key) is not None:
            raise ValueError("the history has this key: a key signs for one period")
        if self.keys and not self.keys[-1].start < at <= until:
            raise ValueError("a new key begins after the one before, which does not end earlier")
        ended = [replace(each, until=until) if each.until is None else each for each in self.keys]
        return History(self.number + 1, at, (*ended, Period(public_key, at)))

    def revoked(self, public_key: str, since: datetime, at: datetime, reason: str) -> History:
        """With a key revoked: nothing that it signed from `since` on is trusted. Raises ValueError."""
        period = self.of_key(public_key)
        if period is None:
            raise ValueError("the history has no such key")
        if period.revoked_from is not None and period.revoked_from < since:
            raise ValueError(
                f"the key is revoked from {text_of(period.revoked_from)} on: a later time would trust more"
            )
        changed = replace(period, revoked_from=since, reason=reason)
        return History(self.number + 1, at, tuple(changed if each is period else each for each in self.keys))


EMPTY = History(0, datetime.fromtimestamp(0, UTC), ())


def sealed(history: History, root: PrivateKey) -> Json:
    """The history in its envelope, signed by the root."""
    document = {
        "version": 1,
        "number": history.number,
        "signed_at": text_of(history.signed_at),
        "keys": [each.document for each in history.keys],
    }
    payload = json.dumps(document, ensure_ascii=False).encode()
    keyid = hashlib.sha256(root.public_key().public_bytes_raw()).hexdigest()
    signature = base64.b64encode(root.sign(_encoded(payload))).decode()
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": keyid, "sig": signature}],
    }


def opened(envelope: Json, root: str, least: int = 0) -> History:
    """The history in an envelope that this root signed.

    Args:
        root: base64 of the root's public key, as the service's owner gave it.
        least: the number of the newest history that the reader knows: an older one lacks a revocation.

    Raises:
        NotProven: the root did not sign it, it is no history, or an older one.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        (signature,) = envelope["signatures"]
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(root, validate=True))
        key.verify(base64.b64decode(signature["sig"], validate=True), _encoded(payload))
    except InvalidSignature:
        raise NotProven("the root did not sign this history") from None
    except (KeyError, TypeError, ValueError):
        raise NotProven("this is not a history of signing keys") from None
    try:
        document = json.loads(payload)
        if envelope["payloadType"] != PAYLOAD_TYPE or document["version"] != 1:
            raise NotProven("this is not a history of signing keys that this version reads")
        keys = tuple(Period.of(each) for each in document["keys"])
        history = History(int(document["number"]), time_of(document["signed_at"]), keys)
    except (KeyError, TypeError, AttributeError) as error:
        raise NotProven(f"this is not a history of signing keys: {error!r}") from None
    if history.number < least:
        raise NotProven(
            f"this is history {history.number}, older than {least}, which you know: it may lack a revocation"
        )
    return history


def key_of(document: Json, history: History) -> str:
    """The key that a certificate names, or that signed an envelope, as its hint says; it is still to be verified.

    Raises:
        NotProven: the history has no such key.
    """
    if "payloadType" not in document:
        public_key = str(document["public_key"])
        if history.of_key(public_key) is None:
            raise NotProven("the root never named the key that signed this")
        return public_key
    hints = {each.get("keyid") for each in document["signatures"]}
    for key in history.keys:
        if hashlib.sha256(base64.b64decode(key.public_key)).hexdigest() in hints:
            return key.public_key
    raise NotProven("the root never named the key that signed this")


@dataclass(frozen=True)
class Covered:
    """A ledger that something signed is about, as far as its checkpoint shows it.

    Attributes:
        entries: as many a witness must have seen.
        own: the checkpoint that came with it.
        last: when the last of them was written, if they came with it: the checkpoint was signed later.
    """

    origin: str
    entries: int
    own: Note | None
    last: datetime | None = None


@dataclass(frozen=True)
class Trust:
    """Whom a reader believes: keys that they named, or those that a root named.

    Attributes:
        keys: base64. Without any a signature shows that a document is intact, not who signed it.
        history: when each of them signed; None: the reader named them.
        witnesses: each must have cosigned each ledger; a revoked key's time is theirs.
        dates: proofs of when something was signed.
    """

    keys: tuple[str, ...] = ()
    history: History | None = None
    witnesses: tuple[Key, ...] = ()
    dates: tuple[Inclusion, ...] = ()

    def key_for(self, document: Json) -> str | None:
        """The key to check a certificate or an envelope with; None: nobody named one.

        Raises:
            NotProven: the root never named the one that it has.
        """
        if self.history is None:
            return next(iter(self.keys), None)
        return key_of(document, self.history)

    def problem(
        self,
        public_key: str,
        signed: datetime | None,
        ledgers: Sequence[Covered],
        notes: Sequence[Note] = (),
        envelope: Json | None = None,
    ) -> str | None:
        """Why a key is not believed for what it signed; None if it is. A `Doubt` if that cannot be told.

        A revoked key may have signed any date. So the time of what it signed is a witness's: all its ledgers were seen
        before, and so was its signature.

        Args:
            signed: when, as it says itself.
            notes: checkpoints from elsewhere.
            envelope: what it signed; None: something of before there were envelopes, which nothing dates.
        """
        for witness in self.witnesses:
            for ledger in ledgers:
                if _seen_at(ledger, [witness], notes) is None:
                    return (
                        f"{witness.name} did not cosign the checkpoint of {ledger.entries} entries of {ledger.origin}"
                    )
        if self.history is None:
            return None
        period = self.history.of_key(public_key)
        if period is None:
            return "the root never named the key that signed this"
        if signed is not None and signed < period.start:
            return f"issued at {text_of(signed)}, before its key signed: from {text_of(period.start)}"
        latest = max((each for each in (signed, *(ledger.last for ledger in ledgers)) if each), default=None)
        if period.until is not None and latest is not None and latest >= period.until:
            return f"issued at {text_of(latest)}, after its key signed: until {text_of(period.until)}"
        return self._doubt(period, latest, [_seen_at(each, self.witnesses, notes) for each in ledgers], envelope)

    def _doubt(
        self, period: Period, latest: datetime | None, seen: Sequence[int | None], envelope: Json | None
    ) -> str | None:
        """Why what a key signed may be another's work; None if the key was not revoked by then, as witnesses saw it."""
        if period.revoked_from is None:
            return None
        unseen = _unseen(period.revoked_from, seen)
        if unseen is not None:  # by its own word others may have had the key; or a witness that is not at hand may know
            kind = str if latest is not None and latest >= period.revoked_from else Doubt
            return kind(f"its key is revoked from {text_of(period.revoked_from)} on ({period.reason}), and {unseen}")
        at = None if envelope is None else cosigned_at(envelope, period.public_key, self.dates, self.witnesses)
        if at is not None and at < period.revoked_from.timestamp():
            return None
        return Doubt(
            f"signed by a revoked key (from {text_of(period.revoked_from)} on: {period.reason}); nothing dates it "
            "(--dated): whoever has the key can sign this too"
        )

    def problem_with_certificate(self, public_key: str, document: Json, notes: Sequence[Note] = ()) -> str | None:
        """The same of a certificate, or of its envelope."""
        if self.history is None and not self.witnesses:
            return None
        body, envelope = body_of(document), document if "payload" in document else document.get("envelope")
        return self.problem(public_key, time_of(body["issued_at"]), list(_ledgers(body)), notes, envelope)


def _unseen(revoked_from: datetime, seen: Sequence[int | None]) -> str | None:
    """Why witnesses do not show that ledgers were there before their key was revoked; None if they do."""
    times = [each for each in seen if each is not None]
    if not seen or len(times) < len(seen):
        return "no witness that you trust says when its checkpoint was there"
    return "no witness saw its checkpoint before that" if max(times) >= revoked_from.timestamp() else None


def _ledgers(body: Json) -> Iterator[Covered]:
    ledgers = body["ledger"] if isinstance(body["ledger"], list) else [body["ledger"]]
    for ledger in ledgers:
        checkpoint = ledger.get("checkpoint")
        origin = f"{LOG}/{ledger.get('dataset', body['dataset']['id'])}"
        yield Covered(origin, int(ledger["entry_seq"]), None if checkpoint is None else Note.parse(checkpoint))


def _seen_at(ledger: Covered, witnesses: Sequence[Key], notes: Sequence[Note]) -> int | None:
    """When a witness first cosigned a checkpoint of a ledger, in seconds since 1970."""
    of_origin = [each for each in (ledger.own, *notes) if each is not None and each.origin == ledger.origin]
    complete = [each for each in of_origin if each.size >= ledger.entries]
    times = [note.signed_by(witness) for note in complete for witness in witnesses]
    return min((each for each in times if each is not None), default=None)


def text_of(at: datetime) -> str:
    """A time as it is signed: whole seconds of UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_of(text: str) -> datetime:
    """A time with its zone. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"this time has no zone: {text}")
    return moment


def _encoded(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
