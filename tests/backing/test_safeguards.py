"""/v1/safeguards: what settings and living workers protect, and nothing of hosts, paths or secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.db.database import Database
from app.lifecycle.queue.presence import Presence
from app.settings import Settings
from app.system.safeguards import safeguards
from core.contracts.sandbox import Sandbox
from tests.conftest import Api

WHOLE = Sandbox(seccomp=True, landlock=True, network="none", memory_limit_bytes=2**30)


def listed(api: Api) -> dict[str, dict[str, Any]]:
    answer = api.client.get("/v1/safeguards", headers=api.headers("owner"))
    assert answer.status_code == 200, answer.text
    return {each["subject"]: each for each in answer.json()["items"]}


def test_owners_see_what_settings_say(api: Api) -> None:
    assert api.client.get("/v1/safeguards", headers=api.headers("analyst")).status_code == 403
    found = listed(api)
    assert found["encryption in transit"]["in_force"] is False
    assert found["verification of ledgers"] == {
        "subject": "verification of ledgers",
        "in_force": True,
        "says": "each ledger is verified in full every 24 hours",
        "settings": ["SCRIMP_LEDGER_CHECK_HOURS"],
    }
    assert "no worker lives" in found["isolation of training"]["says"]


@pytest.mark.parametrize(
    ("sandboxes", "in_force", "says"),
    [
        ([WHOLE, WHOLE], True, "each living worker"),
        ([WHOLE, WHOLE.model_copy(update={"network": "host"})], False, "of 2 living workers 1"),
        ([WHOLE, None], False, "of 2 living workers 1"),
    ],
)
def test_isolation_is_what_all_living_workers_tested(
    api: Api, db: Database, sandboxes: list[Sandbox | None], in_force: bool, says: str
) -> None:
    for number, sandbox in enumerate(sandboxes):
        Presence(db, "a-host", number, interval_s=60.0, sandbox=sandbox).beat()
    found = listed(api)["isolation of training"]
    assert found["in_force"] is in_force and says in found["says"]


def test_each_setting_turns_its_safeguard_and_is_not_told(settings: Settings, tmp_path: Path) -> None:
    hidden = str(tmp_path / "hidden")
    bare = settings.model_copy(
        update={"ledger_check_hours": 48.0, "session_hours": 100.0, "secrets_dir": None, "heads_dir": None}
    )
    strict = settings.model_copy(
        update={
            "encrypt_parts": True,
            "behind_tls": True,
            "secrets_dir": Path(hidden),
            "heads_dir": Path(hidden),
            "witnesses": [f"https://{hidden}.example.org key"],
            "witness_required": True,
            "attempt_uid": 1234,
            "artifacts_kept_days": 30.0,
            "content_kept_days": 365.0,
        }
    )
    for before, after in zip(safeguards(bare), safeguards(strict), strict=True):
        assert (before.in_force, after.in_force) == (False, True), before.subject
        assert before.says != after.says
    told = json.dumps([each.model_dump() for each in safeguards(strict)])
    assert "hidden" not in told and "example.org" not in told and "1234" not in told
    names = {name.removeprefix("SCRIMP_").lower() for each in safeguards(strict) for name in each.settings}
    assert names <= Settings.model_fields.keys()
