"""Which key signed when, in the browser: a time line and a table, under a root and without one."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.testclient import TestClient
from sqlalchemy import delete

from app.dashboard.signing_keys import LEAST, WIDTH, drawn
from app.db.database import Database
from app.db.models import SigningKey
from app.ledger.root_history import Period
from app.ledger.signer import public_key
from app.ledger.signing_keys import publish
from app.main import create_app
from app.settings import Settings
from scrimp.key_history import EMPTY
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Scene
from tests.ledger.test_certificates import KEY
from tests.lifecycle.test_signing_keys import ROOT_KEY, under_root

AT, DAY = datetime(2026, 6, 1, tzinfo=UTC), timedelta(days=1)
NEW = Ed25519PrivateKey.from_private_bytes(b"n" * 32)


def visit(settings: Settings, scene: Scene) -> str:
    app = create_app(settings)
    browser = Browser(TestClient(app, follow_redirects=False))
    assert browser.get("/dashboard/signing-keys").status_code == 303, "everybody who signed in, and nobody else"
    browser.sign_in(scene.analyst)
    answer = browser.get("/dashboard/signing-keys")
    app.state.pricing.close()
    app.state.db.close()
    return f"{answer.status_code} {answer.text}"


def test_a_history_is_drawn_and_listed(db: Database, settings: Settings, tmp_path: Path) -> None:
    scene, at, old, new = Scene(db, settings), datetime.now(UTC) - 10 * DAY, public_key(KEY), public_key(NEW)
    history = EMPTY.rotated(old, at, at).rotated(new, at + 5 * DAY, at + 6 * DAY)
    known = under_root(settings, history.revoked(old, at + 2 * DAY, at + 7 * DAY, "a <disk> was stolen"))
    page = visit(known, scene)
    assert page.startswith("200") and "a &lt;disk&gt; was stolen" in page and "<disk>" not in page
    assert all(each in page for each in (old, new, ROOT_KEY, "number 3", ">revoked<", ">signs<"))
    places = re.findall(r'class="(?:signs|revoked)" x="(.*?)" y=".*?" width="(.*?)"', page)
    newest, oldest, revoked = [tuple(map(float, each)) for each in places]
    assert newest == pytest.approx((500, 500), abs=1) and oldest == pytest.approx((0, 600), abs=1)
    assert revoked == pytest.approx((200, 400), abs=1)
    (known.home / "history.json").write_text("{}")
    assert visit(known, scene).startswith("503")


def test_without_a_root_it_says_so(db: Database, settings: Settings) -> None:
    scene = Scene(db, settings)
    with db.write() as session:
        session.execute(delete(SigningKey))
    assert "No signing key" in visit(settings, scene)
    publish(db, KEY)
    publish(db, NEW)
    page = visit(settings, scene)
    assert "no offline root" in page and page.count('class="signs"') == 2 and ">revoked<" not in page


def test_every_bar_is_seen_within_the_picture() -> None:
    """One that signed for a second, one that is to come, one that is revoked from its beginning."""
    times = [(AT, AT + timedelta(seconds=1), None), (AT, None, AT - DAY), (AT + 40 * DAY, AT + 50 * DAY, None)]
    periods = [
        Period.model_validate({"public_key": "", "from": start, "until": until, "revoked_from": revoked})
        for start, until, revoked in times
    ]
    bars = drawn(periods, AT + 10 * DAY)
    assert [(each.x, each.width) for each in bars] == [
        pytest.approx((800, 200)),
        pytest.approx((0, 200)),
        pytest.approx((0, LEAST)),
    ]
    assert all(each.x >= 0 and each.x + each.width <= WIDTH + LEAST for each in bars)
    assert bars[1].revoked_x == 0 and bars[1].revoked_width == pytest.approx(200)
    assert drawn([], AT) == []
