"""Owners take turns at the readers: one owner's many slow files delay another owner's by one. On both databases."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from app.datasets import readings
from app.datasets.reader import Reader
from app.datasets.readings import Claimed
from app.db.database import Database
from app.lifecycle.sweeper import expire_all_leases
from app.settings import Settings
from core.errors import InvalidRequest
from tests.conftest import BACKINGS
from tests.datasets.conftest import MIB, Api, spec

LEASE_S = 600.0


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(settings: Settings, db: Database) -> Iterator[Api]:
    changes = {"read_at_once_bytes": 10, "parse_memory_bytes": 1024 * MIB}
    made = Api(settings.model_copy(update=changes), db)
    yield made
    made.client.close()
    made.client.app.state.pricing.close()  # type: ignore[attr-defined]
    made.client.app.state.db.close()  # type: ignore[attr-defined]


def accepted(api: Api, name: str, who: str = "owner") -> None:
    answer = api.upload(spec(name), who=who)
    assert answer.status_code == 201 and answer.json()["state"] == "reading"


def claimed(api: Api) -> Claimed:
    found = readings.claim(api.db, LEASE_S)
    assert found is not None
    return found


def ended(api: Api, found: Claimed) -> str:
    readings.reject(api.db, found, InvalidRequest("too slow"))
    return found.spec.name


def test_an_owner_s_files_wait_for_another_owner_s(api: Api) -> None:
    for name in ("a1", "a2", "a3"):
        accepted(api, name)
    first = claimed(api)
    for name in ("b1", "b2"):
        accepted(api, name, "other-owner")
    order = [ended(api, first), *(ended(api, claimed(api)) for _ in range(4))]
    assert order == ["a1", "b1", "a2", "b2", "a3"]
    assert readings.claim(api.db, LEASE_S) is None


def test_of_several_readers_the_owner_with_the_fewest_comes_first(api: Api) -> None:
    for name in ("a1", "a2", "a3"):
        accepted(api, name)
    accepted(api, "b1", "other-owner")
    found = [claimed(api) for _ in range(3)]
    assert [each.spec.name for each in found] == ["a1", "b1", "a2"]
    assert readings.claim(api.db, LEASE_S, [found[0].owner_key]) is None, "its turn is over"


def test_a_file_whose_reader_dies_again_and_again_lets_the_owner_s_others_pass(api: Api) -> None:
    for name in ("a1", "a2"):
        accepted(api, name)
    assert claimed(api).spec.name == "a1"
    expire_all_leases(api.db)
    assert [claimed(api).spec.name for _ in range(2)] == ["a2", "a1"]


def test_one_owner_leaves_a_reader_to_the_others(api: Api) -> None:
    for name in ("a1", "a2", "a3"):
        accepted(api, name)
    readers = Reader(api.db, api.settings.model_copy(update={"max_readers": 3}))
    first, second = readers._claim(), readers._claim()
    assert first is not None and second is not None and readers._claim() is None
    accepted(api, "b1", "other-owner")
    other = readers._claim()
    assert other is not None and other.spec.name == "b1" and readers._claim() is None
    one = Reader(api.db, api.settings.model_copy(update={"max_readers": 1}))  # of another process, with one thread
    assert one._claim() is not None


def state(api: Api, name: str, who: str = "owner") -> str:
    return str(api.get(f"/v1/datasets/{name}", who).json()["state"])


def test_a_long_file_gives_its_reader_up_while_another_owner_s_waits(api: Api) -> None:
    """A 10 MB archive of 3 GB held the only reader for 13 minutes: whoever came then waited as long.

    Attack (Tenants): A 10 MB archive of 3 GB
    Now: two readers, slices, and a ratio of 100
    Also: tests/formats/test_streaming.py::test_a_small_archive_that_unpacks_to_much_is_refused
    """
    changes = {"max_readers": 1, "read_slice_s": 0.01, "heartbeat_s": 0.05, "lease_s": LEASE_S}
    reader = Reader(api.db, api.settings.model_copy(update=changes))
    accepted(api, "long")
    folder = next((api.settings.storage_root / "reading").iterdir())
    (folder / "file").rename(folder / "whole")
    os.mkfifo(folder / "file")  # its parser waits for as long as nobody writes
    reading = threading.Thread(target=reader.run_once)
    reading.start()
    accepted(api, "short", "other-owner")
    reading.join(300)
    assert not reading.is_alive(), "its slice is over"
    patient = Reader(api.db, api.settings)
    assert patient.run_once() and (state(api, "long"), state(api, "short", "other-owner")) == ("reading", "ready")
    accepted(api, "short-too", "admin")
    (folder / "file").unlink()
    (folder / "whole").rename(folder / "file")
    found = [claimed(api) for _ in range(2)]
    assert [(each.spec.name, each.slices, each.deaths) for each in found] == [("short-too", 0, 0), ("long", 1, 0)]
    for each in found:
        readings.release(api.db, each)
    assert patient.run_once() and patient.run_once()
    assert [state(api, "long"), state(api, "short-too", "admin")] == ["ready", "ready"]


def test_a_long_file_goes_on_while_only_its_owner_s_others_wait(api: Api) -> None:
    for name in ("a1", "a2"):
        accepted(api, name)
    found = claimed(api)
    assert not readings.others_wait(api.db, found, None)
    accepted(api, "b1", "other-owner")
    assert readings.others_wait(api.db, found, None)
    claimed(api)
    assert not readings.others_wait(api.db, found, None), "it is read by another reader"
