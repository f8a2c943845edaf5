"""Data files in buckets: only those that the settings list, whatever a caller writes, and without redirects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import obstore
import pytest

from app.datasets import bucket_files
from app.datasets.bucket_files import Address, Found
from app.datasets.reader import Reader
from app.storage.s3 import client
from core.disk import Room
from core.errors import InvalidRequest, Unavailable
from tests import servers
from tests.datasets.conftest import CSV, Api, MakeApi, spec


@pytest.fixture
def bucket(s3_bucket: str) -> str:
    obstore.put(client(s3_bucket), "data/d one+1.csv", CSV.encode())
    obstore.put(client(s3_bucket), "data/h.csv", b"a,b,y\n-1,0,1\n")
    obstore.put(client(s3_bucket), "other/d.csv", CSV.encode())
    return s3_bucket


@pytest.fixture
def api(make_api: MakeApi, bucket: str) -> Api:
    return make_api(data_buckets=["elsewhere", f"{bucket.removeprefix('s3://')}/data/"])


def test_a_data_set_from_a_bucket(api: Api, bucket: str) -> None:
    made = api.by_path(
        spec(path=f"{bucket}/data/d one+1.csv", holdout_path=f"{bucket}/data/h.csv", holdout={"kind": "public"})
    )
    assert made.status_code == 201, made.text
    assert made.json()["shape"]["records_holdout"] == 1 and made.json()["read"]["records"] == 60
    assert bucket not in api.get(f"/v1/datasets/{made.json()['id']}").text, "where it lay is not shown"
    assert not [name for name in api.stored() if "staging" in name]


ESCAPES = [
    "{bucket}/other/d.csv",
    "{bucket}/data",
    "{bucket}/datax/d.csv",
    "{bucket}/data/../other/d.csv",
    "{bucket}/data/./d.csv",
    "{bucket}/data//d.csv",
    "{bucket}/data/",
    "{bucket}",
    "s3://",
    "s3:///data/d.csv",
    "s3://another-bucket/data/d.csv",
    "s3://evil.example:9000/data/d.csv",
    "s3://key:secret@{name}/data/d.csv",
    "s3://{name}.s3.evil.example/data/d.csv",
    "s3://evil.example#{name}/data/d.csv",
    "{bucket}/data/d.csv?endpoint=http://evil.example",
    "{bucket}/data/d.csv#x",
    "{bucket}/data\\..\\other/d.csv",
    "{bucket}/data/d.csv\n",
    "s3://{name}%2f..%2fother/data/d.csv",
    "S3://{name}/other/d.csv",
    "http://{name}/data/d.csv",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_nothing_else_is_read(api: Api, bucket: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is asked")

    monkeypatch.setattr("app.datasets.bucket_files._Asked", never)
    written = path.format(bucket=bucket, name=bucket.removeprefix("s3://"))
    refused = api.by_path(spec(path=written))
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/path"


def test_what_is_not_there_and_what_is_away(api: Api, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = api.by_path(spec(path=f"{bucket}/data/%2e%2e/other/d.csv"))
    assert absent.status_code == 422 and "there is no such object" in absent.json()["errors"][0]["detail"]
    assert api.by_path(spec(path="s3://elsewhere/data/d.csv")).status_code == 422
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert api.by_path(spec(path=f"{bucket}/data/d one+1.csv")).status_code == 503


def test_owners_alone_may_and_by_their_limits(make_api: MakeApi, bucket: str) -> None:
    name = bucket.removeprefix("s3://")
    small = make_api(data_buckets=[name], max_path_bytes=10)
    asked = spec(path=f"{bucket}/data/d one+1.csv")
    assert small.by_path(asked, who="analyst").status_code == 403
    assert small.by_path(asked).status_code == 413
    full = make_api(data_buckets=[name], max_stored_bytes=10)
    assert full.by_path(asked).json()["type"] == "/problems/quota-exceeded"
    assert make_api().by_path(asked).status_code == 422


def test_a_large_object_is_fetched_in_the_background_as_it_was_accepted(make_api: MakeApi, bucket: str) -> None:
    api = make_api(data_buckets=[bucket.removeprefix("s3://")], read_at_once_bytes=0)
    reader = Reader(api.db, api.settings)
    for changed, state in ((False, "ready"), (True, "rejected")):
        name = f"d-{state}"
        made = api.by_path(spec(name=name, path=f"{bucket}/data/d one+1.csv"))
        assert made.json()["state"] == "reading", made.text
        if changed:
            obstore.put(client(bucket), "data/d one+1.csv", CSV.replace("1", "2").encode())
        assert reader.run_once()
        found = api.get(f"/v1/datasets/{made.json()['id']}").json()
        assert found["state"] == state, found
        if changed:
            assert "was replaced" in str(found)


@contextmanager
def a_server(answer: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with servers.answering(ThreadingHTTPServer(("127.0.0.1", 0), answer)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    return monkeypatch


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_refused(status: int, credentials: pytest.MonkeyPatch) -> None:
    reached: list[str] = []

    class Elsewhere(Quiet):
        def do_HEAD(self) -> None:
            reached.append(self.path)

    with a_server(Elsewhere) as elsewhere:

        class Redirects(Quiet):
            def do_HEAD(self) -> None:
                self.send_response(status)
                self.send_header("Location", elsewhere)
                self.end_headers()

        with a_server(Redirects) as address, pytest.raises(InvalidRequest) as refused:
            credentials.setenv("AWS_ENDPOINT_URL", address)
            bucket_files.look(Address("bucket", "key"), "/path", 10)
    assert "redirect" in refused.value.document["errors"][0]["detail"] and reached == []


def test_a_connection_that_breaks_goes_on_where_it_was(tmp_path: Path, credentials: pytest.MonkeyPatch) -> None:
    content, asked = bytes(range(256)) * 40, list[str | None]()

    class Breaks(Quiet):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Range"))
            start = int((asked[-1] or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            assert self.headers["If-Match"] == '"v1"'
            self.wfile.write(content[start : start + 4096])

    with a_server(Breaks) as address:
        credentials.setenv("AWS_ENDPOINT_URL", address)
        bucket_files.copy(Address("bucket", "key"), Found(len(content), '"v1"'), "/path", tmp_path / "one", Room())
        assert (tmp_path / "one").read_bytes() == content and asked == [None, "bytes=4096-", "bytes=8192-"]
        with pytest.raises(Unavailable):
            bucket_files.copy(Address("bucket", "key"), Found(10**6, '"v1"'), "/path", tmp_path / "two", Room())
