"""Which public keys sign certificates, as the relay says and any key may read."""

from __future__ import annotations

import base64
import hashlib
import threading

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.db.engine import Database
from app.ledger.signing_keys import publish, signing_key
from app.ledger.transparency.signatures import holds, sign
from app.lifecycle.relay import Relay
from app.settings import Settings
from tests.conftest import Api


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
