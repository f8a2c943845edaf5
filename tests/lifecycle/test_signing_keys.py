"""Which public keys sign certificates, as the relay says and any key may read."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.testclient import TestClient

from app.db.database import Database
from app.ledger.signer import public_key
from app.ledger.signing_keys import publish, signing_key
from app.ledger.transparency import dates
from app.ledger.transparency.attestations import about, keep, seal
from app.ledger.transparency.certificate_signatures import holds, sign
from app.lifecycle.relay import Relay
from app.main import create_app
from app.secrets import SecretError
from app.settings import Settings
from core.errors import Unavailable
from scrimp.dated import Inclusion, digest_of
from scrimp.key_history import EMPTY, History, opened, sealed
from tests.conftest import Api
from tests.ledger.test_certificates import KEY


class NoBell:
    def notify(self, job_id: str, *, gpu: bool = False) -> None:
        raise AssertionError(job_id)

    def waiting(self, *, gpu: bool = False) -> int:
        return 0


def test_a_relay_names_the_key_that_it_signs_with(api: Api, db: Database, settings: Settings) -> None:
    def shown() -> list[dict[str, str]]:
        answer = api.client.get("/v1/signing-keys", headers=api.headers("analyst"))
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    assert shown() == []
    relay = Relay(db, settings, signing_key(settings), NoBell())
    relay.run_once()
    relay.run_once()
    (found,) = shown()
    document = sign({"of": "a test"}, signing_key(settings))
    assert found["public_key"] == document.public_key and holds(document, found["public_key"])
    assert found["id"] == hashlib.sha256(base64.b64decode(found["public_key"])).hexdigest()[:16]
    # After a change of keys both are there, the newer one first: certificates of before stay valid.
    Relay(db, settings, Ed25519PrivateKey.generate(), NoBell()).run_once()
    assert [each["id"] == found["id"] for each in shown()] == [False, True]
    assert shown()[1] == found
    assert api.client.get("/v1/signing-keys").status_code == 401


def test_two_relays_that_start_at_once_name_it_once(db: Database, api: Api) -> None:
    key, both = Ed25519PrivateKey.generate(), threading.Barrier(2)

    def start() -> None:
        both.wait()
        publish(db, key)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(api.client.get("/v1/signing-keys", headers=api.headers("admin")).json()["items"]) == 1


ROOT = Ed25519PrivateKey.from_private_bytes(b"r" * 32)
ROOT_KEY = base64.b64encode(ROOT.public_key().public_bytes_raw()).decode()


def under_root(settings: Settings, history: History, root: Ed25519PrivateKey = ROOT) -> Settings:
    """These settings, with a history that a root signed beside the home."""
    path = settings.home / "history.json"
    path.write_text(json.dumps(sealed(history, root)))
    return settings.model_copy(update={"signing_history": path, "signing_root": ROOT_KEY})


def test_the_relay_signs_with_no_key_that_the_root_does_not_name(settings: Settings) -> None:
    own, at = public_key(signing_key(settings)), datetime.now(UTC) - timedelta(hours=2)
    other = base64.b64encode(b"o" * 32).decode()
    named, hour = EMPTY.rotated(own, at, at), timedelta(hours=1)
    assert public_key(signing_key(under_root(settings, named))) == own
    assert public_key(signing_key(under_root(settings, named.rotated(other, at + hour, at + 9 * hour)))) == own
    for history in (
        EMPTY,
        EMPTY.rotated(other, at, at),
        EMPTY.rotated(own, at + 9 * hour, at + 9 * hour),
        named.rotated(other, at + hour, at + hour),
        named.revoked(own, at + hour, at + hour, "lost"),
    ):
        with pytest.raises(SecretError, match="does not name the signing key"):
            signing_key(under_root(settings, history))
    with pytest.raises(SecretError, match="did not sign"):
        signing_key(under_root(settings, named, Ed25519PrivateKey.generate()))
    path = under_root(settings, named).signing_history
    assert path is not None
    for spoil, problem in ((lambda: path.write_text("{}"), "no history"), (path.unlink, "cannot be read")):
        spoil()
        with pytest.raises(SecretError, match=f"SCRIMP_SIGNING_HISTORY.*{problem}"):
            signing_key(settings.model_copy(update={"signing_history": path, "signing_root": ROOT_KEY}))


def test_a_relay_that_runs_on_signs_no_more_once_the_root_says_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started with a key that was named then: the history's file is read at each signature."""
    own, at = public_key(signing_key(settings)), datetime.now(UTC) - timedelta(hours=2)
    other = base64.b64encode(b"o" * 32).decode()
    named, hour = EMPTY.rotated(own, at, at), timedelta(hours=1)
    known = under_root(settings, named.rotated(other, at + hour, at + 9 * hour))
    key = signing_key(known)
    assert holds(sign({"of": "a test"}, key), own)
    with monkeypatch.context() as later:  # its time passes, without a new history
        later.setattr("app.ledger.root_history.now", lambda: at + 10 * hour)
        with pytest.raises(Unavailable, match="does not name the signing key"):
            sign({"of": "a test"}, key)
    assert holds(sign({"of": "a test"}, key), own)
    under_root(settings, named.revoked(own, at + hour, at + hour, "lost"))
    with pytest.raises(Unavailable, match="does not name the signing key"):
        sign({"of": "a test"}, key)
    under_root(settings, named)
    assert holds(sign({"of": "a test"}, key), own), "named again, it signs again"
    (settings.home / "history.json").unlink()
    with pytest.raises(Unavailable, match="SCRIMP_SIGNING_HISTORY cannot be read"):
        sign({"of": "a test"}, key)


def test_any_key_asks_when_something_was_signed(api: Api, db: Database) -> None:
    headers, envelope = api.headers("analyst"), seal(about({"file": "ab" * 32}, "a type", 1), KEY)
    with db.write() as session:
        keep(session, envelope)
    digest = digest_of(envelope.model_dump(mode="json", by_alias=True))
    path = f"/v1/signatures/{digest}"
    assert api.client.get(path).status_code == 401
    pending = api.client.get(path, headers=headers)
    assert pending.status_code == 409 and pending.json()["type"] == "/problems/head-pending"
    assert dates.sign_due(db, KEY) == 1
    answer = api.client.get(path, headers=headers)
    assert answer.status_code == 200 and Inclusion.of(answer.json()).has(digest)
    assert api.client.get(f"/v1/signatures/{'0' * 64}", headers=headers).status_code == 404
    assert api.client.get("/v1/signatures/x", headers=headers).status_code == 422


def test_any_key_reads_the_root_s_history(settings: Settings, api: Api) -> None:
    headers, path = api.headers("analyst"), "/v1/signing-keys/history"
    assert api.client.get(path).status_code == 401
    assert api.client.get(path, headers=headers).json() == {"history": None}
    at = datetime.now(UTC)
    known = under_root(settings, EMPTY.rotated(public_key(KEY), at, at))
    app = create_app(known)
    answer = TestClient(app).get(path, headers=headers)
    assert opened(answer.json()["history"], ROOT_KEY).keys[0].public_key == public_key(KEY)
    (known.home / "history.json").write_text("nonsense")
    answer = TestClient(app).get(path, headers=headers)
    assert answer.status_code == 503 and "SCRIMP_SIGNING_HISTORY" in answer.text
    app.state.pricing.close()
    app.state.db.close()
