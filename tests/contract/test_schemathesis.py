"""About 300 requests of each role to a running service: no answer but what the document says, none of them a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from app.keys.service import Role
from tests.contract.machine import Ids, Report, explore
from tests.dashboard.conftest import serving
from tests.dashboard.scene import Everything, Scene

Json = dict[str, Any]
REQUESTS, SEED = 300, 20260301
# A plan that takes longer is refused with 422, as it would be in production after 30 s.
PRICING_TIME_S = "5"


@contextmanager
def service(scene: Scene, made: Everything, log: Path) -> Iterator[tuple[Json, str, Ids]]:
    """The service over a scene: its document, its address, and what is in it."""
    ids = Ids(
        jobs=[made.succeeded, made.running, made.failed, made.cancelled, made.public, made.queued],
        finished_jobs=[made.succeeded, made.failed, made.cancelled],
        datasets=[made.reviews, made.incomes, made.digits],
        keys=[scene.key("analyst").id for _ in range(3)],
    )
    with serving(scene.settings.home, log, pricing_time_s=PRICING_TIME_S) as url:
        headers = {"Authorization": f"Bearer {scene.admin.token}"}
        yield httpx.get(f"{url}/openapi.json", headers=headers).json(), url, ids


@pytest.fixture(scope="module")
def running(whole: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Json, str, Ids]]:
    with service(*whole, tmp_path_factory.mktemp("explored") / "log") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("role", get_args(Role))
def test_every_answer_is_documented(whole: tuple[Scene, Everything], running: Any, role: str) -> None:
    document, url, ids = running
    report: Report = explore(document, url, whole[0].key(role).token, ids, count=REQUESTS, seed=SEED)
    assert report.findings == []
    assert report.requests >= REQUESTS
    # The requests were not all turned away at the door.
    answered = {status for _operation, status in report.statuses}
    assert {200, 404, 422} <= answered
    assert len({operation for operation, _status in report.statuses}) == sum(map(len, document["paths"].values()))
