"""`scrimp signing-key` on a service of its own, which has published none yet."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.db.engine import Database
from app.ledger.signer import public_key
from app.ledger.signing_keys import publish
from app.settings import Settings
from tests.cli.conftest import Cli


def test_the_signing_key_is_printed(cli: Cli) -> None:
    before = cli("signing-key")
    assert before.exit_code == 1
    assert "start its relay" in before.stderr
    key = Ed25519PrivateKey.generate()
    db = Database.of(Settings(home=cli.folder / "home"))
    publish(db, key)
    db.close()
    printed = cli("signing-key")
    assert (printed.exit_code, printed.stdout) == (0, f"{public_key(key)}\n")
    assert cli.json("signing-key")["algorithm"] == "Ed25519"
