"""Registration by path: only regular files under the data root, links included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app.datasets.reader import Reader
from app.datasets.storage import copy_from_data_root
from core.disk import Room
from core.errors import StorageFull
from tests.datasets.conftest import CSV, Api, MakeApi, spec
from tests.datasets.test_resumable import kind
from tests.formats.test_images import GOOD, folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    (root / "d.csv").write_text(CSV)
    (root / "deep" / "h.csv").write_text("a,b,y\n-1,0,1\n")
    (tmp_path / "secret.csv").write_text(CSV)
    (tmp_path / "data-twin").mkdir()
    (tmp_path / "data-twin" / "d.csv").write_text(CSV)
    (root / "out.csv").symlink_to(tmp_path / "secret.csv")
    (root / "out").symlink_to(tmp_path)
    (root / "in.csv").symlink_to(root / "d.csv")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def api(make_api: MakeApi, root: Path) -> Api:
    return make_api(data_root=root)


@pytest.mark.parametrize("path", ["d.csv", "./deep/../d.csv", "in.csv", "absolute", "d.csv/"])
def test_files_under_the_root_are_read(root: Path, tmp_path: Path, path: str) -> None:
    asked = str(root / "d.csv") if path == "absolute" else path
    copy_from_data_root(root, asked, "/path", tmp_path / "copy", len(CSV), Room())
    assert (tmp_path / "copy").read_text() == CSV
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    copy_from_data_root(tmp_path / "link", "d.csv", "/path", tmp_path / "copy", len(CSV), Room())
    assert (tmp_path / "copy").read_text() == CSV


def test_a_data_set_by_path(api: Api, root: Path) -> None:
    response = api.by_path(spec(path="deep/../d.csv"))
    assert response.status_code == 201, response.text
    assert "d.csv" not in api.get(f"/v1/datasets/{response.json()['id']}").text, "where it lay is not shown"
    assert (root / "d.csv").read_text() == CSV


def test_a_holdout_may_come_by_path_too(api: Api) -> None:
    response = api.by_path(spec(path="d.csv", holdout_path="deep/h.csv", holdout={"kind": "public"}))
    assert response.status_code == 201 and response.json()["shape"]["records_holdout"] == 1


ESCAPES = [
    "../secret.csv",
    "deep/../../secret.csv",
    "out.csv",
    "out/secret.csv",
    "/etc/passwd",
    "../data-twin/d.csv",
    "none.csv",
    "..",
    ".",
    "deep",
    "pipe",
    "loop",
    "/dev/zero",
    "x" * 3000,
    "~/d.csv",
]


@pytest.mark.parametrize("path", ESCAPES, ids=[ascii(path)[:30] for path in ESCAPES])
def test_everything_else_is_refused_alike(api: Api, path: str) -> None:
    response = api.by_path(spec(path=path))
    assert response.status_code == 422, response.text
    assert response.json()["errors"] == [{"pointer": "/path", "detail": "there is no such file under the data root"}]
    assert api.stored() == set()


def test_a_path_with_nul_is_no_text(api: Api) -> None:
    errors = api.by_path(spec(path="d.csv\x00.png")).json()["errors"]
    assert errors == [{"pointer": "/path", "detail": "a text must not hold NUL or half of a surrogate pair"}]


def test_the_holdouts_path_is_checked_too(api: Api) -> None:
    response = api.by_path(spec(path="d.csv", holdout_path="../secret.csv", holdout={"kind": "public"}))
    assert response.status_code == 422 and response.json()["errors"][0]["pointer"] == "/holdout_path"


def test_without_a_data_root_nothing_is_read(make_api: MakeApi, root: Path) -> None:
    response = make_api().by_path(spec(path=str(root / "d.csv")))
    assert response.status_code == 422 and "no data root" in response.json()["detail"]


def test_a_file_over_the_limit_is_refused(make_api: MakeApi, root: Path) -> None:
    api = make_api(data_root=root, max_path_bytes=len(CSV) - 1)
    response = api.by_path(spec(path="d.csv"))
    assert (response.status_code, response.json()["type"]) == (413, "/problems/too-large")
    assert api.stored() == set()


def test_json_needs_a_path(api: Api) -> None:
    response = api.by_path(spec())
    assert response.status_code == 422 and response.json()["errors"][0]["pointer"] == "/path"


def test_analysts_can_not_read_by_path(api: Api) -> None:
    assert api.by_path(spec(path="d.csv"), who="analyst").status_code == 403


@pytest.mark.parametrize(
    ("kind", "body"), [("text/csv", "a,b"), ("application/x-www-form-urlencoded", "spec=1"), ("", "")]
)
def test_other_bodies_are_refused(api: Api, kind: str, body: str) -> None:
    headers: dict[str, Any] = api.headers("owner") | ({"content-type": kind} if kind else {})
    assert api.client.post("/v1/datasets", content=body, headers=headers).status_code == 422


def test_a_file_that_would_fill_the_disk_is_refused_before_it_is_copied(
    make_api: MakeApi, root: Path, tmp_path: Path
) -> None:
    with pytest.raises(StorageFull):
        copy_from_data_root(root, "d.csv", "/path", tmp_path / "copy", len(CSV), Room(2**62))
    api = make_api(data_root=root, disk_reserve_bytes=2**62)
    assert not (tmp_path / "copy").exists()
    response = api.by_path(spec(path="d.csv"))
    assert (response.status_code, response.json()["type"]) == (507, "/problems/storage-full")


def test_a_copy_waits_for_its_turn(api: Api) -> None:
    parsers = api.client.app.state.parsers  # type: ignore[attr-defined]
    parsers._settings = api.settings.model_copy(update={"parse_wait_s": 0.05})
    for _ in range(api.settings.max_parsers):
        assert parsers._copies.acquire(blocking=False)
    assert api.by_path(spec(path="d.csv")).status_code == 503
    for _ in range(api.settings.max_parsers):
        parsers._copies.release()
    assert api.by_path(spec(path="d.csv")).status_code == 201
    assert all(parsers._copies.acquire(blocking=False) for _ in range(api.settings.max_parsers)), (
        "places are given back"
    )


def images_spec(name: str) -> dict[str, Any]:
    shape = {"height": 4, "width": 6, "channels": 1}
    return spec(
        name,
        format="images",
        task={"kind": "classification", "label": "class", "classes": ["boot", "coat"]},
        features={"kind": "tensor", "array": "image", "image": shape},
        privacy={"sensitivity": "public"},
        holdout=None,
    )


def test_a_folder_of_images_under_the_root(make_api: MakeApi, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    folder(root / "packed", sorted(GOOD))  # writes root/images too
    api = make_api(data_root=root)
    made = api.by_path(images_spec("folder") | {"path": "images"}).json()
    sizes = {"records_train": 5, "records_holdout": 0, "features": 24, "outputs": 2, "sparse": False}
    assert made["shape"] == sizes | {"slots": None}, "they are public"
    packed = api.by_path(images_spec("packed") | {"path": "packed"}).json()
    assert packed["content_sha256"] == made["content_sha256"]
    later = make_api(data_root=root, read_at_once_bytes=10)
    accepted = later.by_path(images_spec("later") | {"path": "images"}).json()
    assert accepted["state"] == "reading" and accepted["reading"]["bytes"] > 5
    Reader(later.db, later.settings).run_once()
    assert later.get("/v1/datasets/later").json()["content_sha256"] == made["content_sha256"]
    (root / "images" / "boot" / "notes.txt").write_text("no image")
    refused = api.by_path(images_spec("other") | {"path": "images"}).json()
    assert "1 not named like class/name.png" in refused["detail"] and "notes" not in refused["detail"]
    assert kind(api.by_path(spec("csv") | {"path": "images"})) == (422, "invalid-request")
