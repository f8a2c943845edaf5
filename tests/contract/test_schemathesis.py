"""About 300 requests of each role to a running service: no answer but what the document says, none of them a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from app.grants import service as grants
from app.keys.service import Role
from app.secrets import load_secret
from app.webhooks import service as webhooks
from tests.contract.machine import Ids, Report, explore
from tests.dashboard.conftest import serving
from tests.dashboard.scene import Everything, Key, Scene

Json = dict[str, Any]
REQUESTS, SEED = 300, 20260301
SETTINGS = {
    "pricing_time_s": "5",  # a plan that takes longer is refused with 422, as it would be in production after 30 s
    "requests_per_minute": "1000000",
    "failed_sign_ins_per_minute": "1000000",
}


@contextmanager
def service(scene: Scene, made: Everything, role: str, log: Path) -> Iterator[tuple[Json, str, Key, Ids]]:
    """The service over a scene as a role sees it: its document, its address, a key, and what is in it."""
    key, webhooks = _key(scene, made, role)
    ids = Ids(
        jobs=[made.succeeded, made.running, made.failed, made.cancelled, made.public, made.queued],
        finished_jobs=[made.succeeded, made.failed, made.cancelled],
        datasets=[made.reviews, made.incomes, made.digits],
        keys=[scene.key("analyst").id for _ in range(3)],  # not its own: who revokes that is asked no more
        webhooks=webhooks,
    )
    with serving(scene.settings.home, log, **SETTINGS) as url:
        headers = {"Authorization": f"Bearer {scene.admin.token}"}
        yield httpx.get(f"{url}/openapi.json", headers=headers).json(), url, key, ids


def _key(scene: Scene, made: Everything, role: str) -> tuple[Key, list[str]]:
    """A key of the role, granted two of the data sets, and its webhooks."""
    key = scene.owner if role == "owner" else scene.key(role)
    access: Any = "view" if role == "viewer" else "train"
    with scene.db.write() as session:
        if role in ("analyst", "viewer"):
            for dataset in (made.reviews, made.digits):
                grants.give(session, scene.admin.caller, dataset, key.id, access, None)
        secret = load_secret(scene.settings, "webhook_key")
        wanted = {"url": "https://hooks.example.org/x", "events": ["job.succeeded"], "description": "", "dataset": None}
        found = [webhooks.create(session, secret, key.caller, **wanted)[0].id for _ in range(3)]
    return key, found


@pytest.mark.slow
@pytest.mark.parametrize("role", get_args(Role))
def test_every_answer_is_documented(whole: tuple[Scene, Everything], tmp_path: Path, role: str) -> None:
    with service(*whole, role, tmp_path / "log") as (document, url, key, ids):
        report: Report = explore(document, url, key.token, ids, count=REQUESTS, seed=SEED)
    assert report.findings == []
    assert report.requests >= REQUESTS
    # The requests were not all turned away at the door.
    answered = {status for _operation, status in report.statuses}
    assert {200, 404, 422} <= answered
    assert len({operation for operation, _status in report.statuses}) == sum(map(len, document["paths"].values()))
