"""How far a file is read, as a stream: to its end, to its owner alone, and to an open page without content."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from app.datasets import readings
from app.datasets.reader import Reader
from app.db.database import Database
from app.settings import Settings
from tests.datasets.conftest import CSV, MIB, Api
from tests.datasets.test_reading import BAD, accepted, delete
from tests.e2e.conftest import until


@pytest.fixture
def api(settings: Settings, db: Database) -> Iterator[Api]:
    changes: dict[str, Any] = {"read_at_once_bytes": 10, "parse_memory_bytes": 1024 * MIB}
    made = Api(settings.model_copy(update=changes | {"read_time_s": settings.parse_time_s}), db)
    made.client.app.state.lists.look_s = 0.02  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture
def reader(api: Api) -> Reader:
    return Reader(api.db, api.settings)


def is_followed(api: Api) -> bool:
    """True once a stream has been told the first state."""
    return any(each.state for each in set(api.client.app.state.lists._readers))  # type: ignore[attr-defined]


def events(answer: Any) -> list[tuple[str, str, Any]]:
    """Each event's id, name and data."""
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for text in filter(None, answer.text.strip().split("\n\n")):
        lines = dict(line.split(": ", 1) for line in text.split("\n"))
        found.append((lines.get("id", ""), lines["event"], json.loads(lines["data"])))
    return found


def streamed(api: Api, dataset: str, who: str = "owner") -> Any:
    sent = api.headers(who) | {"Accept": "text/event-stream"}
    return api.client.get(f"/v1/datasets/{dataset}/events", headers=sent)


def test_progress_is_streamed_to_its_end(api: Api, reader: Reader) -> None:
    good = accepted(api, "good")
    claimed = readings.claim(api.db, 60.0)
    assert claimed is not None
    bad = accepted(api, "bad", file=BAD)
    seen: list[int] = []

    def read_on() -> None:
        """Piece by piece, while somebody follows; then its end."""
        until(lambda: is_followed(api))
        for part in range(2, 6):
            seen.append(part)
            readings.renew(api.db, claimed, 60.0, part)
            time.sleep(0.02)
        readings.release(api.db, claimed)
        reader.run_once()
        reader.run_once()

    reading = threading.Thread(target=read_on)
    reading.start()
    try:
        told = events(streamed(api, "good"))
    finally:
        reading.join()
    states = [name for _, name, _ in told]
    assert states[-2:] == ["ready", "end"] and set(states[:-2]) == {"reading"}
    bytes_read = [data["reading"]["bytes_read"] for _, name, data in told if name == "reading"]
    assert bytes_read and set(bytes_read) <= {0, *seen}, "the next claim begins at 0 again"
    assert all(one != two for one, two in pairwise(bytes_read)), "a change is told once"
    assert told[-2][2]["reading"]["read"]["records"] == 60
    assert all(len(each) == 32 for each, name, _ in told[:-2])
    (first, rejected, _), (_, end, _) = events(streamed(api, bad))
    assert (first, rejected, end) == ("", "rejected", "end")
    assert streamed(api, bad, "admin").status_code == 200
    plain = api.get(f"/v1/datasets/{good}/events").json()
    assert plain["state"] == "ready" and plain["reading"]["bytes"] == len(CSV)


def test_progress_is_its_owner_s_alone(api: Api, reader: Reader) -> None:
    made = accepted(api)
    for who in ("other-owner", "analyst"):
        assert streamed(api, made, who).status_code == streamed(api, "small", who).status_code == 404
        assert api.get(f"/v1/datasets/{made}/events", who).status_code == 404
    assert reader.run_once()
    api.share(made)
    assert api.get(f"/v1/datasets/{made}/events", "analyst").json() == {"state": "ready", "reading": None}
    (only, _) = events(streamed(api, made, "analyst"))
    assert only[1:] == ("ready", {"state": "ready", "reading": None}), "counts are its owner's"


def test_a_withdrawn_registration_s_stream_ends_without_an_end(api: Api) -> None:
    made = accepted(api)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(streamed, api, made)
        until(lambda: is_followed(api))
        assert delete(api, made).status_code == 200
        names = [name for _, name, _ in events(answer.result())]
    assert set(names) <= {"reading"}
    assert streamed(api, made).status_code == 404


def test_an_open_page_hears_that_something_changed(api: Api, reader: Reader) -> None:
    made, sent = accepted(api), api.headers("owner") | {"Accept": "text/event-stream"}
    assert f'data-stream="/dashboard/events/readings/{made}"' in api.get(f"/dashboard/datasets/{made}").text
    path = f"/dashboard/events/readings/{made}"
    assert api.client.get(path, headers=sent | api.headers("other-owner")).status_code == 204
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(api.client.get, path, headers=sent)
        until(lambda: is_followed(api))
        assert delete(api, made).status_code == 200
        messages = answer.result().text.strip().split("\n\n")
    assert all(each.endswith("\ndata: changed") and each.startswith("id: ") for each in messages), "no content"
    accepted(api)
    assert reader.run_once()
    ready = api.get("/v1/datasets/small").json()["id"]
    assert api.client.get(f"/dashboard/events/readings/{ready}", headers=sent).status_code == 204
    assert "data-stream" not in api.get(f"/dashboard/live/readings/{ready}").text
