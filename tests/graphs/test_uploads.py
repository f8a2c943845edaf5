"""Graphs that analysts upload: kept if they can be trained, for the jobs of their key alone."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from app.catalogue import graph_files, graph_rows
from app.datasets import quota
from app.db.models import ApiKey, Graph, Job
from app.graphs import uploads as graph_uploads
from app.retention import service as retention
from app.storage import folder, objects
from core.contracts.graph import GraphModel
from core.errors import InvalidRequest
from core.ids import now
from tests.datasets.conftest import Api, new_api, spec
from tests.datasets.test_resumable import begin, kind, piece, uploads
from tests.graphs.small import small_graph


@pytest.fixture(scope="module")
def content() -> bytes:
    return small_graph()


@pytest.fixture
def make(tmp_path: Path, migrated_database: Path) -> Iterator[Callable[..., Api]]:
    apis: list[Api] = []

    def new(**changes: Any) -> Api:
        apis.append(new_api(tmp_path / f"home{len(apis)}", migrated_database, **changes))
        return apis[-1]

    yield new
    for each in apis:
        each.close()


@pytest.fixture
def api(make: Callable[..., Api]) -> Api:
    return make()


def sent(api: Api, content: bytes, who: str = "analyst", **more: Any) -> str:
    answer = begin(api, len(content), who, **more)
    assert answer.status_code == 201, answer.text
    assert piece(api, answer.json()["id"], 0, content, who).status_code == 200
    return str(answer.json()["id"])


def add(api: Api, upload: str, who: str = "analyst") -> Any:
    return api.client.post("/v1/graphs", json={"upload": upload}, headers=api.headers(who))


def added(api: Api, content: bytes, who: str = "analyst") -> dict[str, Any]:
    answer = add(api, sent(api, content, who), who)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def listed(api: Api, who: str = "analyst") -> list[str]:
    return [each["sha256"] for each in api.get("/v1/graphs", who).json()["items"]]


def delete(api: Api, sha256: str, who: str = "analyst") -> Any:
    return api.client.delete(f"/v1/graphs/{sha256}", headers=api.headers(who))


def stored(api: Api) -> list[str]:
    return sorted(each for each in api.stored() if each.startswith("graphs/"))


def register(api: Api) -> str:
    """A data set of the owner's that the analyst may train on."""
    answer = api.upload(spec(name="squares"))
    assert answer.status_code == 201, answer.text
    api.share(answer.json()["id"])
    return str(answer.json()["id"])


def submit(api: Api, body: dict[str, Any], who: str = "analyst") -> Any:
    headers = api.headers(who) | {"Idempotency-Key": secrets.token_hex(8)}
    return api.client.post("/v1/jobs", json=body, headers=headers)


def of_graph(dataset: str, sha256: str) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "model": {"kind": "graph", "upload": sha256},
        "optimizer": {"kind": "dp_adam", "learning_rate": 1e-2},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 10},
    }


@pytest.mark.parametrize("encrypt_parts", [False, True], ids=["plain", "sealed"])
def test_an_analyst_uploads_a_graph(make: Callable[..., Api], content: bytes, encrypt_parts: bool) -> None:
    api = make(encrypt_parts=encrypt_parts)
    sha256 = hashlib.sha256(content).hexdigest()
    made = added(api, content)
    assert (made["sha256"], made["bytes"], made["inputs"], made["outputs"]) == (sha256, len(content), 2, 2)
    assert made["parameters"] == made["trained"] == 2 * 4 + 4 + 4 * 2 + 2
    (file,) = stored(api)
    assert (api.settings.storage_root / file).read_bytes() == content
    assert uploads(api) == [] and list((api.settings.storage_root / "staging").iterdir()) == []
    assert added(api, content) == made and stored(api) == [file]  # the same content again
    assert listed(api) == [sha256] and listed(api, "owner") == []
    with api.db.read() as session:
        assert quota.stored_bytes(session, api.settings, api.key_ids["analyst"]) == len(content)


def test_a_graph_is_its_key_s_alone(api: Api, content: bytes) -> None:
    sha256 = added(api, content)["sha256"]
    assert added(api, content, "owner")["sha256"] == sha256 and len(stored(api)) == 2
    assert delete(api, sha256, "admin").status_code == 404
    assert delete(api, sha256).status_code == 204 and delete(api, sha256).status_code == 404
    assert listed(api) == [] and listed(api, "owner") == [sha256] and len(stored(api)) == 1
    assert kind(add(api, sent(api, content), "owner"))[0] == 422  # another key's upload


def test_what_is_no_graph_is_refused_and_not_kept(api: Api, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        answer = add(api, sent(api, b"PK no graph"))
        assert kind(answer) == (422, "invalid-request") and "not a zip archive" in answer.text
        monkeypatch.setattr(graph_files, "_looked_at", lambda _: pytest.fail("it was read again"))
    assert stored(api) == [] and list((api.settings.storage_root / "staging").iterdir()) == []
    half = begin(api, len(content), "analyst").json()["id"]
    assert "have arrived" in add(api, half).text
    wrong = sent(api, content, sha256="0" * 64)
    assert "SHA-256" in add(api, wrong).text


def test_sizes_and_counts_are_bounded(api: Api, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind(begin(api, (1 << 30) + 1, "analyst")) == (413, "too-large")
    assert begin(api, (1 << 30) + 1, "owner").status_code == 201  # it may be data
    added(api, content)
    monkeypatch.setattr(graph_uploads, "MOST_GRAPHS", 1)
    assert added(api, content)["bytes"] == len(content)
    other = sent(api, content)
    with api.db.write() as session:
        session.execute(update(Graph).values(sha256="0" * 64))
    assert kind(add(api, other)) == (409, "too-many-uploads") and len(stored(api)) == 1
    with api.db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == api.key_ids["analyst"]).values(max_stored_bytes=2))
    assert kind(begin(api, 3, "analyst")) == (409, "quota-exceeded")


def test_a_job_uses_the_graph_and_keeps_it(api: Api, content: bytes) -> None:
    dataset = register(api)
    refused = submit(api, of_graph(dataset, "0" * 64))
    assert kind(refused) == (422, "invalid-request") and "scrimp graphs upload" in refused.text
    sha256 = added(api, content)["sha256"]
    asked = of_graph(dataset, sha256)
    assert kind(submit(api, asked, "owner")) == (422, "invalid-request")  # not the owner's graph
    both = asked | {"model": asked["model"] | {"path": "own/small.pt2"}}
    assert "one of them" in submit(api, both).text
    made = submit(api, asked)
    assert made.status_code in (201, 202), made.text
    model = made.json()["spec"]["model"]
    assert (model["upload"], model["sha256"], model["trained"]) == (sha256, sha256, 22) and "path" not in model
    assert kind(delete(api, sha256)) == (409, "wrong-state")
    with api.db.write() as session:
        job = session.scalars(select(Job)).one()
        wanted = graph_rows.models_root(session, api.settings, job.key_id, GraphModel(upload=sha256))
        assert wanted is not None and wanted.read_bytes() == content
        job.status, job.finished_at = "cancelled", now()
    assert delete(api, sha256).status_code == 204
    with api.db.read() as session:
        gone = graph_rows.models_root(session, api.settings, api.key_ids["analyst"], GraphModel(upload=sha256))
    assert gone is not None and not gone.exists()


def test_a_graph_that_goes_before_its_job_is_held(api: Api, content: bytes) -> None:
    sha256 = added(api, content)["sha256"]
    with api.db.write() as session:
        graph_rows.use(session, api.key_ids["analyst"], sha256)
    assert delete(api, sha256).status_code == 204
    with pytest.raises(InvalidRequest, match="deleted"), api.db.write() as session:
        graph_rows.use(session, api.key_ids["analyst"], sha256)


def test_unused_graphs_go_with_the_artifacts(make: Callable[..., Api], content: bytes) -> None:
    api = make(artifacts_kept_days=30)
    sha256 = added(api, content)["sha256"]
    retention.sweep(api.db, api.settings)
    assert listed(api) == [sha256]
    with api.db.write() as session:
        session.execute(update(Graph).values(used_at=now() - timedelta(days=31)))
    retention.sweep(api.db, api.settings)
    assert listed(api) == [] and stored(api) == []


def test_a_revoked_key_s_graphs_go(api: Api, content: bytes) -> None:
    added(api, content)
    with api.db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == api.key_ids["analyst"]).values(revoked_at=now()))
    retention.sweep(api.db, api.settings)
    with api.db.read() as session:
        assert session.scalars(select(Graph)).all() == []
    assert stored(api) == []


def test_nobody_s_answer_tells_of_another_key_s_graph(
    api: Api, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that came at once would say that somebody sent these bytes before."""
    reads: list[Path] = []
    looked_at = graph_files._looked_at

    def counted(file: Path) -> graph_files.Verdict:
        reads.append(file)
        return looked_at(file)

    monkeypatch.setattr(graph_files, "_verdicts", {})
    monkeypatch.setattr(graph_files, "_looked_at", counted)
    for who in ("analyst", "owner", "analyst", "owner"):
        added(api, content, who)
    assert len(reads) == 2


def test_few_are_read_at_once_and_one_of_a_key(api: Api, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = sent(api, content), sent(api, content)
    owner = sent(api, content, "owner")
    looks, goes_on, looked_at = threading.Event(), threading.Event(), graph_files._looked_at

    def slow(file: Path) -> graph_files.Verdict:
        looks.set()
        assert goes_on.wait(60)
        return looked_at(file)

    monkeypatch.setattr(graph_files, "_verdicts", {})
    monkeypatch.setattr(graph_files, "_looked_at", slow)
    monkeypatch.setattr(graph_uploads, "MOST_UNDER_WAY", 1)
    with ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(add, api, first)
        try:
            assert looks.wait(60)
            refused = add(api, other)
            assert kind(refused) == (429, "too-many-requests") and int(refused.headers["Retry-After"]) >= 1
            assert kind(add(api, owner, "owner")) == (503, "limit-exceeded")
            assert len(list((api.settings.storage_root / "staging").iterdir())) == 1  # none waits with a copy
        finally:
            goes_on.set()
        assert under_way.result(60).status_code == 201
    assert add(api, other).status_code == 201 and add(api, owner, "owner").status_code == 201


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_lost_file_is_sent_again(api: Api, content: bytes, how: str) -> None:
    made = added(api, content)
    (name,) = stored(api)
    file = api.settings.storage_root / name
    file.unlink() if how == "lost" else file.write_bytes(content[:-1])
    assert added(api, content) == made and stored(api) == [name] and file.read_bytes() == content


def test_graphs_that_stay_keep_no_others(api: Api, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep deletes few at once; those that it may not delete are none of them."""
    dataset = register(api)
    monkeypatch.setattr(graph_uploads, "AT_ONCE", 1)
    used = [added(api, small_graph(seed))["sha256"] for seed in (1, 2)]
    for sha256 in used:
        assert submit(api, of_graph(dataset, sha256)).status_code in (201, 202)
    unused = [added(api, small_graph(seed))["sha256"] for seed in (3, 4)]
    for left in (3, 2, 2):
        graph_uploads.sweep(api.db, api.settings, now() + timedelta(days=1))
        assert len(listed(api)) == left
    assert set(listed(api)) == set(used) and not set(unused) & set(listed(api))


def test_what_a_crash_left_goes(api: Api, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    added(api, content)
    (name,) = stored(api)
    left = api.settings.storage_root / "graphs" / "gr_left"
    left.mkdir()
    (left / "graph.pt2").write_bytes(content)
    graph_uploads.sweep(api.db, api.settings, None)
    assert len(stored(api)) == 2  # it may be under way
    monkeypatch.setattr(folder, "STALE_S", -1.0)
    graph_uploads.sweep(api.db, api.settings, None)
    assert stored(api) == [name]


def test_what_a_crash_left_in_a_bucket_goes(
    make: Callable[..., Api], content: bytes, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make(object_store=s3_bucket)
    sha256 = added(api, content)["sha256"]
    store, file = objects.of(api.settings), api.settings.storage_root / "left.pt2"
    file.write_bytes(content)
    store.publish("graphs/gr_left/graph.pt2", file, sha256)
    graph_uploads.sweep(api.db, api.settings, None)
    assert store.local("graphs/gr_left/graph.pt2", sha256)  # it may be under way
    monkeypatch.setattr(folder, "STALE_S", -1.0)
    assert len(store.stale("graphs")) == 2
    graph_uploads.sweep(api.db, api.settings, None)
    assert "gr_left" not in store.stale("graphs") and len(store.stale("graphs")) == 1


def test_a_graph_in_a_bucket(make: Callable[..., Api], content: bytes, s3_bucket: str) -> None:
    api = make(object_store=s3_bucket)
    sha256 = added(api, content)["sha256"]
    assert stored(api) == []  # no copy beside the bucket's
    with api.db.read() as session:
        place = f"graphs/{session.scalars(select(Graph.id)).one()}"
    objects.of(api.settings).remove(place)
    assert added(api, content)["sha256"] == sha256  # lost, and sent again
    with api.db.read() as session:
        file = graph_rows.models_root(session, api.settings, api.key_ids["analyst"], GraphModel(upload=sha256))
    assert file is not None and file.read_bytes() == content
    assert delete(api, sha256).status_code == 204
