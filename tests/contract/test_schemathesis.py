"""A hundred requests of each role to a running service: no answer but what the document says, none of them a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest

from app.grants import service as grants
from app.keys.service import Role
from app.secrets import load_secret
from app.webhooks import service as webhooks
from tests.by_night import but
from tests.contract.machine import Drawn, Ids, Report, draw_requests, explore
from tests.dashboard.conftest import serving
from tests.dashboard.scene import Everything, Key, Scene

Json = dict[str, Any]
REQUESTS, SEED = 100, 20260301  # one of each operation, and a few more
SETTINGS = {
    "pricing_time_s": "5",  # a plan that takes longer is refused with 422, as it would be in production after 30 s
    "requests_per_minute": "1000000",
    "failed_sign_ins_per_minute": "1000000",
}


def ids_of(scene: Scene, made: Everything, webhooks: list[str]) -> Ids:
    """What is in the service over a scene."""
    return Ids(
        jobs=[made.succeeded, made.running, made.failed, made.cancelled, made.public, made.queued],
        finished_jobs=[made.succeeded, made.failed, made.cancelled],
        datasets=[made.reviews, made.incomes, made.digits],
        keys=[scene.key("analyst").id for _ in range(3)],  # not its own: who revokes that is asked no more
        webhooks=webhooks,
    )


def document_of(scene: Scene, url: str) -> Json:
    """The service's document: the same for every role."""
    headers = {"Authorization": f"Bearer {scene.admin.token}"}
    return dict(httpx.get(f"{url}/openapi.json", headers=headers, timeout=300).json())


def visitor(scene: Scene, made: Everything, role: str) -> tuple[str, Ids]:
    """A token of the role, and the ids that it asks about."""
    key, webhooks = _key(scene, made, role)
    return key.token, ids_of(scene, made, webhooks)


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


@pytest.fixture(scope="module")
def url(whole: tuple[Scene, Everything]) -> Iterator[str]:
    with serving(whole[0].settings.home, **SETTINGS) as url:
        yield url


@pytest.fixture(scope="module")
def operations(whole: tuple[Scene, Everything], url: str) -> int:
    return sum(map(len, document_of(whole[0], url)["paths"].values()))


@pytest.fixture(scope="module")
def drawn(whole: tuple[Scene, Everything], url: str) -> list[Drawn]:
    return draw_requests(document_of(whole[0], url), count=REQUESTS, seed=SEED, both=False)


@pytest.mark.slow
@pytest.mark.parametrize("role", but(get_args(Role), lambda role: role == "admin"))
def test_every_answer_is_documented(
    whole: tuple[Scene, Everything], url: str, drawn: list[Drawn], operations: int, role: str
) -> None:
    report: Report = explore(drawn, url, *visitor(*whole, role))
    assert report.findings == []
    assert report.requests >= REQUESTS
    # The requests were not all turned away at the door.
    answered = {status for _operation, status in report.statuses}
    assert {200, 404, 422} <= answered
    assert len({operation for operation, _status in report.statuses}) == operations
