"""An egress of every kind of certificate: both verifiers, and the annex of a DPIA, read its folder.

A job on blocks is charged on several ledgers, a study delivers files of its trials, statistics deliver no model.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.ledger import signing_keys
from app.ledger.signer import public_key
from app.ledger.transparency.heads import Heads
from app.lifecycle.relay import Relay
from scrimp.dpia import ANSWERS, annex, missing
from scrimp.egress import Expected, examine
from tests.by_night import but
from tests.datasets.conftest import Api, new_api
from tests.egress.conftest import REQUEST
from tests.ledger.issued import KEY, KINDS, Issuer
from tests.lifecycle.test_relay import Notifier
from tests.node import by_node, needs_node

BY_DAY = (
    "blocks",
    "retired block",
    "scaling, weights kept",
    "cancelled study",
    "failed",
    "statistics",
    "synthetic",
    "governed",
    "moved",
)
TRUSTED = public_key(KEY)


class Home:
    """A home whose relay signs with KEY."""

    def __init__(self, api: Api) -> None:
        self.api = api
        signing_keys.publish(api.db, KEY)
        self.issuer = Issuer(api, Heads.of(api.settings))
        self.relay = Relay(api.db, api.settings, KEY, Notifier([].append))

    def folder(self, kind: str, to: Path) -> Path:
        job = self.issuer.document(kind)["certificate"]["job"]
        headers = self.api.headers("admin")
        asked = self.api.client.post(f"/v1/jobs/{job}/egress", json=REQUEST, headers=headers)
        assert asked.status_code == 202, asked.text
        self.relay.next_sweep = 0.0
        self.relay.run_once()
        assert self.relay.let_out()
        answer = self.api.client.get(f"/v1/jobs/{job}/egress", headers=headers)
        assert answer.status_code == 200, (answer.text, self.api.get(f"/v1/jobs/{job}/egresses", "admin").text)
        with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
            packed.extractall(to)
        return to


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Home]:
    api = new_api(tmp_path_factory.mktemp("kinds") / "home", migrated_database)
    api.settings.storage_root.mkdir()  # as the first upload does: a home without one lets nothing out
    yield Home(api)
    api.close()


@needs_node
@pytest.mark.parametrize("kind", but(KINDS, BY_DAY.__contains__))
def test_every_tool_reads_every_kind(home: Home, tmp_path: Path, kind: str) -> None:
    folder = home.folder(kind, tmp_path / "folder")
    body = json.loads((folder / "certificate.json").read_text())["certificate"]
    examined = examine(folder, [TRUSTED], Expected(body["job"]))
    assert (examined.faults, examined.signer_checked) == ([], True)
    told = by_node(folder, "--public-key", TRUSTED)
    assert told.returncode == 0, told.stdout + told.stderr
    text = (folder / ANSWERS).read_text()
    assert len(missing(text)) == text.partition("\n## ")[2].count("**Not covered**")
    assert annex(folder, examined).count("* [ ] ") == len(missing(text))
    if kind == "moved":
        stated = json.loads((folder / "statement.json").read_text())
        assert stated["version"] == 4 and len(stated["ledgers"]) == 2
    if kind in ("blocks", "retired block"):
        assert len(json.loads((folder / "log.json").read_text())["ledgers"]) == 2
