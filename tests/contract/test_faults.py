"""A database or a storage that fails is told as what it is, and costs nothing."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from sqlalchemy import event

from app.db.database import Database
from app.settings import Settings
from tests import servers
from tests.conftest import Api
from tests.factories import add_dataset, job_spec


def problem(answer: Any) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"]


def test_a_database_that_is_away_is_worth_another_try(api: Api) -> None:
    state = api.client.app.state  # type: ignore[attr-defined]
    there, state.db = state.db, Database("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1")
    answer = api.client.get("/v1/jobs", headers=api.headers("admin"))
    assert problem(answer) == (503, "/problems/unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "127.0.0.1" not in answer.text
    state.db = there
    assert api.client.get("/v1/jobs", headers=api.headers("admin")).status_code == 200


@pytest.mark.parametrize("backing", ["postgres"])
def test_connections_cut_under_the_service_are_made_again(
    api: Api, db: Database, postgres_server: str, postgres_url: str
) -> None:
    import psycopg

    assert api.client.get("/v1/jobs", headers=api.headers("admin")).status_code == 200
    name = servers.database_name(postgres_url)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    # Who comes within a second of the cut may be asked to try again, once: the pool is made anew after it.
    answer = api.client.get("/v1/jobs", headers=api.headers("admin"))
    assert answer.status_code == 200 or (answer.status_code == 503 and "Retry-After" in answer.headers)
    assert api.client.get("/v1/jobs", headers=api.headers("admin")).status_code == 200


@pytest.mark.parametrize("backing", ["sqlite"])
def test_a_full_database_refuses_writes_and_keeps_reading(api: Api, db: Database) -> None:
    """SQLite's own limit on its pages: what a full disk looks like to it."""
    dataset = add_dataset(db)

    def full(connection: Any, *_: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    engine = api.client.app.state.db.engine  # type: ignore[attr-defined]
    event.listen(engine, "checkout", full)
    answer = None
    for number in range(200):
        answer = api.client.post(
            "/v1/jobs",
            json=job_spec(dataset, privacy={"target_epsilon": 0.001}, evaluation=None, name="x" * 200),
            headers=api.headers("analyst", **{"Idempotency-Key": f"k{number}"}),
        )
        if answer.status_code != 201:
            break
    assert answer is not None
    assert problem(answer) == (507, "/problems/storage-full")
    assert api.client.get("/v1/jobs", headers=api.headers("admin")).status_code == 200


@pytest.mark.parametrize(
    ("code", "where", "status", "kind"),
    [
        (errno.ENOSPC, "/a/path/of/the/server", 507, "storage-full"),
        (errno.EDQUOT, "/a/path/of/the/server", 507, "storage-full"),
        (errno.EROFS, "/a/path/of/the/server", 503, "unavailable"),
        (errno.EIO, "/a/path/of/the/server", 503, "unavailable"),
        (errno.EBADF, "/a/path/of/the/server", 500, "internal-error"),
        # That a file is not there, or not ours to read, is the storage's fault only in the storage.
        (errno.ENOENT, "STORAGE", 503, "unavailable"),
        (errno.ENOENT, "STORAGE/staging/in_x", 503, "unavailable"),
        (errno.EACCES, "STORAGE/..", 503, "unavailable"),
        (errno.ENOENT, "/a/path/of/the/server", 500, "internal-error"),
        (errno.EACCES, "/a/path/of/the/server", 500, "internal-error"),
        (errno.ENOENT, None, 500, "internal-error"),
    ],
)
def test_a_storage_that_fails_is_told_by_its_kind(
    api: Api,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    where: str | None,
    status: int,
    kind: str,
) -> None:
    path = where and where.replace("STORAGE/..", str(settings.home)).replace("STORAGE", str(settings.storage_root))

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(code, "no", path)

    monkeypatch.setattr("app.datasets.upload.create", failing)
    files = {"spec": (None, json.dumps({})), "file": ("a.csv", b"a,y\n1,0\n")}
    answer = api.client.post("/v1/datasets", files=files, headers=api.headers("owner"))
    assert problem(answer) == (status, f"/problems/{kind}")
    assert "/a/path" not in answer.text and str(settings.home) not in answer.text


def test_an_artifact_whose_file_is_gone_is_a_404(whole: Any, client: Any) -> None:
    scene, ids = whole
    path = scene.settings.storage_root / "jobs" / ids.succeeded / "model.safetensors"
    kept = path.read_bytes()
    path.unlink()
    try:
        answer = client.get(
            f"/v1/jobs/{ids.succeeded}/artifacts/model.safetensors",
            headers={"Authorization": f"Bearer {scene.analyst.token}"},
        )
        assert problem(answer) == (404, "/problems/not-found")
    finally:
        path.write_bytes(kept)
