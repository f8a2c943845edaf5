"""`scrimp signing-key` on a service of its own, which has published none yet."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.db.database import Database
from app.ledger.signer import public_key
from app.ledger.signing_keys import publish
from app.settings import Settings
from scrimp.key_history import EMPTY, opened
from tests.cli.conftest import Cli
from tests.lifecycle.test_signing_keys import ROOT_KEY, under_root
from tests.listening import listening


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


def test_the_root_s_history_is_shown_and_written(cli: Cli, tmp_path: Path) -> None:
    words, to = ("keys", "history", "--root", ROOT_KEY), tmp_path / "kept.json"
    none = cli(*words)
    assert none.exit_code == 1 and "has no root" in none.stderr
    key, at = public_key(Ed25519PrivateKey.generate()), datetime(2026, 1, 1, tzinfo=UTC)
    with listening(under_root(Settings(home=cli.folder / "home"), EMPTY.rotated(key, at, at))) as url:
        shown = cli(*words, "--to", str(to), url=url)
        other = cli(*words[:-1], key, url=url)
    assert shown.exit_code == 0 and f"{key}  2026-01-01T00:00:00Z to now" in shown.stdout
    assert opened(json.loads(to.read_text()), ROOT_KEY).of_key(key) is not None
    assert other.exit_code == 1 and "the root did not sign this history" in other.stderr
