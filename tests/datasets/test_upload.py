"""The streaming multipart parser: the same result however the bytes arrive, and limits before anything is stored."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.datasets.upload import MAX_HEADER_BYTES, Upload
from core.disk import Room
from core.errors import InvalidRequest, TooLarge
from tests.datasets.conftest import CSV, MIB, MakeApi, spec

TYPE = 'multipart/form-data; boundary="frontier"'


def part(name: str, content: bytes, extra: str = "") -> bytes:
    head = f'--frontier\r\nContent-Disposition: form-data; name="{name}"; filename="x.csv"\r\n{extra}\r\n'
    return head.encode() + content + b"\r\n"


END = b"--frontier--\r\n"
BODY = part("spec", b'{"a": 1}', "Content-Type: application/json\r\n") + part("file", b"1,2\r\n--frontie\r\n3\n") + END


def upload(folder: Path, chunks: list[bytes], max_file_bytes: int = 1000, max_spec_bytes: int = 100) -> bytes:
    made = Upload(TYPE, folder, max_file_bytes=max_file_bytes, max_spec_bytes=max_spec_bytes, room=Room(0))
    try:
        for chunk in chunks:
            made.feed(chunk)
    finally:
        made.close()
    return made.check()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_chunks_do_not_matter(tmp_path: Path, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(BODY)]
    chunks = [BODY[a:b] for a, b in itertools.pairwise(places)]
    assert upload(tmp_path, chunks) == b'{"a": 1}'
    assert (tmp_path / "file").read_bytes() == b"1,2\r\n--frontie\r\n3\n"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").unlink()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "ends too early"),
        (BODY[:-6], "ends too early"),
        (BODY[:60], "ends too early"),
        (b"nonsense" * 50, "not well-formed"),
        (part("file", b"1") + END, "`spec` (JSON) is missing"),
        (part("spec", b"{}") + part("spec", b"{}") + END, "`spec` appears twice"),
        (part("spec", b"{}") + part("file", b"1") + part("file", b"2") + END, "`file` appears twice"),
        (part("spec", b"{}") + part("extra", b"1") + END, "none of"),
        (part("spec", b"{}") + part("../../x", b"1") + END, "none of"),
        (b"--frontier\r\n\r\nanonymous\r\n" + END, "none of"),
        (part("spec", b"{}", f"X: {'x' * MAX_HEADER_BYTES}\r\n") + END, ""),
        (part("spec", b"{}", "".join(f"X{i}: {'x' * 900}\r\n" for i in range(10))) + END, ""),
    ],
)
def test_malformed_bodies_are_refused(tmp_path: Path, body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        upload(tmp_path, [body])
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", 'multipart/form-data; boundary=""', f"multipart/form-data; boundary={'x' * 999}"]
)
def test_boundaries_are_needed_and_short(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InvalidRequest):
        Upload(kind, tmp_path, max_file_bytes=1, max_spec_bytes=1, room=Room(0))


def test_limits_are_exact(tmp_path: Path) -> None:
    for size, name, limits in ((10, "file", {"max_file_bytes": 10}), (10, "spec", {"max_spec_bytes": 10})):
        spec_part = b"" if name == "spec" else part("spec", b"{}")
        (tmp_path / "file").unlink(missing_ok=True)
        upload(tmp_path, [spec_part + part(name, b"x" * size) + END], **limits)
        (tmp_path / "file").unlink(missing_ok=True)
        with pytest.raises(TooLarge):
            upload(tmp_path, [spec_part + part(name, b"x" * (size + 1)) + END], **limits)


def test_not_a_byte_over_the_limit_is_stored(tmp_path: Path) -> None:
    head, chunk = part("spec", b"{}") + part("file", b"")[:-2], b"x" * 64
    with pytest.raises(TooLarge):
        upload(tmp_path, [head, *[chunk] * 1000], max_file_bytes=1000)
    assert (tmp_path / "file").stat().st_size <= 1000


def test_a_body_over_the_limit_is_neither_read_nor_stored_whole(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(max_upload_bytes=MIB)
    sent = 0
    written: list[int] = []
    feed = Upload.feed

    def watched(self: Upload, chunk: bytes) -> None:
        feed(self, chunk)
        written.append(sum(path.stat().st_size for path in api.settings.storage_root.rglob("file")))

    def body() -> Iterator[bytes]:
        nonlocal sent
        yield part("spec", b"{}") + part("file", b"")[:-2]
        for _ in range(100):
            sent += MIB
            yield os.urandom(MIB)

    monkeypatch.setattr(Upload, "feed", watched)
    response = api.client.post("/v1/datasets", content=body(), headers=api.headers("owner") | {"content-type": TYPE})
    assert (response.status_code, response.json()["type"]) == (413, "/problems/too-large"), response.text
    assert max(written, default=0) <= MIB
    assert api.stored() == set()


def test_a_holdout_file_has_the_limit_too(make_api: MakeApi) -> None:
    api = make_api(max_upload_bytes=len(CSV))
    response = api.upload(spec(holdout={"kind": "public"}), CSV, holdout_file=CSV + "1,2,0\n")
    assert response.status_code == 413
    assert response.json()["limit_bytes"] == len(CSV)


def test_a_spec_over_the_limit_is_refused(make_api: MakeApi) -> None:
    api = make_api(max_body_bytes=1000)
    long = spec(path="x" * 2000)
    assert api.upload(long).status_code == 413
    assert api.by_path(long).status_code == 413


def test_parts_may_come_in_any_order(make_api: MakeApi) -> None:
    api = make_api()
    body = part("file", CSV.encode()) + part("spec", json.dumps(spec()).encode()) + END
    response = api.client.post("/v1/datasets", content=body, headers=api.headers("owner") | {"content-type": TYPE})
    assert response.status_code == 201, response.text
