"""Two requests of one key at once never store more than its quota. On SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import func, select

from app.datasets import quota
from app.db.database import Database
from app.db.models import Dataset, DatasetReading
from app.settings import Settings
from tests.conftest import BACKINGS
from tests.datasets.conftest import MIB, PUBLIC, Api, spec
from tests.datasets.test_resumable import begin, kind

SIZE, LIMIT = 20_000, 25_000
Request = Callable[[Api, int], Any]


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(settings: Settings, db: Database) -> Iterator[Callable[[int], Api]]:
    made: list[Api] = []

    def of(read_at_once_bytes: int) -> Api:
        changes = {
            "max_stored_bytes": LIMIT,
            "read_at_once_bytes": read_at_once_bytes,
            "parse_memory_bytes": 1024 * MIB,
        }
        made.append(Api(settings.model_copy(update=changes), db))
        return made[0]

    yield of
    for each in made:
        each.client.close()
        each.client.app.state.pricing.close()  # type: ignore[attr-defined]
        each.client.app.state.db.close()  # type: ignore[attr-defined]


def uploaded(api: Api, _number: int) -> Any:
    return begin(api, SIZE)


def registered(api: Api, number: int) -> Any:
    rows = "".join(f"{at + number},{at % 7},{at % 2}\n" for at in range(SIZE // 10))
    file = f"a,b,y\n{rows}".ljust(SIZE, "\n")
    return api.upload(spec(f"set-{number}", **PUBLIC), file)


@pytest.mark.parametrize(
    ("first", "second", "at_once"),
    [
        (uploaded, uploaded, MIB),
        (registered, registered, MIB),
        (registered, registered, 10),
        (uploaded, registered, MIB),
    ],
    ids=["uploads", "registrations", "registrations in the background", "an upload and a registration"],
)
def test_two_requests_at_once_stay_within_the_quota(
    make: Callable[[int], Api], first: Request, second: Request, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked at what is stored before either stores anything: one of them is refused all the same."""
    api = make(at_once)
    both, honest = threading.Barrier(2), quota._check

    def meet(*arguments: Any) -> None:
        honest(*arguments)
        with suppress(threading.BrokenBarrierError):
            both.wait(3.0)  # who holds the other one back waits in vain

    monkeypatch.setattr(quota, "_check", meet)
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(request, api, at).result for at, request in enumerate((first, second))]
        found = sorted(kind(each()) if each().status_code >= 400 else (201, "") for each in answers)
    assert found == [(201, ""), (409, "quota-exceeded")]
    with api.db.read() as session:
        stored = [session.scalar(select(func.count()).select_from(table)) or 0 for table in (Dataset, DatasetReading)]
    uploads = len(list((api.settings.storage_root / "uploads").glob("up_*")))
    assert sum(stored) + uploads == 1
