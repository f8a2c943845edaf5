"""Large files over real connections that break: client and command go on where the service stopped."""

from __future__ import annotations

import hashlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from scrimp import uploading
from scrimp.cli import large
from scrimp.client import Client
from scrimp.errors import NotFound, ScrimpError, ServiceUnreachable
from tests.cli.conftest import Cli
from tests.e2e.conftest import csv_spec, seed_of, write_csv
from tests.graphs.small import small_graph

KIB = 1024
SIZE = 1024 * KIB + 7
QUICK = (0.01, 0.05, 0.1, 0.5, *[5.0] * 60)


@pytest.fixture(autouse=True)
def small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(uploading, "PIECE_BYTES", 256 * KIB)
    monkeypatch.setattr(uploading, "BLOCK_BYTES", 16 * KIB)
    monkeypatch.setattr(uploading, "WAITS_S", QUICK)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(b"".join(hashlib.sha256(b"%d" % each).digest() for each in range(SIZE // 32 + 1))[:SIZE])
    return path


class Wire:
    """A wire to a service. Connection by connection it breaks after so many bytes of the caller's; None: it holds."""

    def __init__(self, url: str, cuts: list[int | None]) -> None:
        place = urlsplit(url)
        self.target, self.cuts, self.stop = (place.hostname, place.port), cuts, threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self) -> None:
        self.listening.settimeout(0.05)
        while not self.stop.is_set():
            try:
                caller = self.listening.accept()[0]
            except TimeoutError:
                continue
            self.threads.append(threading.Thread(target=self._carry, args=(caller,)))
            self.threads[-1].start()

    def _carry(self, caller: socket.socket) -> None:
        left = self.cuts.pop(0) if self.cuts else None
        with caller, socket.create_connection(self.target) as service:
            while not self.stop.is_set():
                for ready in select.select([caller, service], [], [], 0.05)[0]:
                    data = ready.recv(8 * KIB if left is None else min(8 * KIB, max(left, 1)))
                    if not data or (ready is caller and left == 0):
                        return
                    left = left - len(data) if left is not None and ready is caller else left
                    (service if ready is caller else caller).sendall(data)


@contextmanager
def wire(url: str, *cuts: int | None) -> Iterator[Wire]:
    made = Wire(url, list(cuts))
    try:
        yield made
    finally:
        made.stop.set()
        for thread in made.threads:
            thread.join(300)
        made.listening.close()


def stored(cli: Cli, upload: str) -> bytes:
    return (cli.folder / "home" / "storage" / "uploads" / upload / "file").read_bytes()


def test_an_upload_goes_on_after_its_connection_was_cut(cli: Cli, file: Path) -> None:
    told: list[tuple[int, int]] = []
    with wire(cli.url, 300 * KIB, 100 * KIB, 70 * KIB) as broken, Client(broken.url, cli.key) as client:
        done = client.upload(file, lambda sent, whole: told.append((sent, whole)))
        assert (done.offset, done.size) == (SIZE, SIZE)
        assert hashlib.sha256(stored(cli, done.id)).digest() == hashlib.sha256(file.read_bytes()).digest()
        assert told[0] == (0, SIZE) and told[-1] == (SIZE, SIZE)
        assert not broken.cuts, "it was cut as often"
        assert client.upload(file).id == done.id, "it is there"
        client.json("DELETE", f"/v1/uploads/{done.id}")
        assert client.upload(file).id != done.id, "it is there no more"


def test_another_call_resumes_what_an_earlier_one_began(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = [300 * KIB] + [0] * 6
    with wire(cli.url, *cuts) as broken, monkeypatch.context() as patch:
        monkeypatch.setattr(uploading, "WAITS_S", (0.0,) * 3)
        with Client(broken.url, cli.key) as client, pytest.raises(ServiceUnreachable):
            client.upload(file)
        broken.cuts.clear()
        told: list[int] = []
        patch.setattr(uploading, "WAITS_S", QUICK)
        with Client(broken.url, cli.key) as client:
            done = client.upload(file, lambda sent, _whole: told.append(sent))
    assert told[0] >= 200 * KIB, "not from the beginning"
    assert stored(cli, done.id) == file.read_bytes()


def test_what_arrived_before_a_cut_is_kept(cli: Cli) -> None:
    """Byte by byte: half of an announced body, then the end of the connection."""
    headers = {"Authorization": f"Bearer {cli.key}"}
    with httpx.Client(base_url=cli.url, headers=headers, trust_env=False) as client:
        upload = client.post("/v1/uploads", json={"size": 1000}).json()["id"]
        place = urlsplit(cli.url)
        head = f"PATCH /v1/uploads/{upload} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\nUpload-Offset: 0\r\n"
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(f"{head}Authorization: Bearer {cli.key}\r\n\r\n".encode() + b"x" * 400)
            arrived(client, upload, 400)
            # Its writer has not gone yet: another one, in whatever process, waits or asks again.
            beside = client.patch(f"/v1/uploads/{upload}", content=b"y", headers={"Upload-Offset": "400"})
            assert (beside.status_code, beside.json()["type"]) == (409, "/problems/upload-busy")
        while (rest := send(client, upload, 400, b"y" * 600)).status_code == 409:
            assert rest.json()["type"] == "/problems/upload-busy"
    assert rest.json()["offset"] == 1000
    assert stored(cli, upload) == b"x" * 400 + b"y" * 600


def arrived(client: httpx.Client, upload: str, offset: int) -> None:
    """Returns once so many bytes are there."""
    deadline = time.monotonic() + 300
    while client.head(f"/v1/uploads/{upload}").headers["upload-offset"] != str(offset):
        assert time.monotonic() < deadline, "they did not arrive"
        time.sleep(0.01)


def send(client: httpx.Client, upload: str, offset: int, content: bytes) -> Any:
    return client.patch(f"/v1/uploads/{upload}", content=content, headers={"Upload-Offset": str(offset)})


def test_a_file_that_changes_is_refused(cli: Cli, file: Path) -> None:
    def shorten(sent: int, _whole: int) -> None:
        if sent > 400 * KIB:
            file.write_bytes(b"short")

    with Client(cli.url, cli.key) as client:
        with pytest.raises(ScrimpError, match="became shorter"):
            client.upload(file, shorten)
        file.write_bytes(b"")
        with pytest.raises(ScrimpError, match="is empty"):
            client.upload(file)
        with pytest.raises(NotFound):
            client.json("GET", "/v1/uploads/up_" + "a" * 21)


def test_the_command_uploads_a_large_file_in_pieces_and_says_how_to_resume(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "LARGE_BYTES", 10 * KIB)
    monkeypatch.setattr(uploading, "PIECE_BYTES", 16 * KIB)
    rows = write_csv(tmp_path / "rows.csv", rows=2000, seed=seed_of("pieces"))
    declared = cli.file("pieces.json", csv_spec("pieces"))
    with wire(cli.url, 20 * KIB, *[0] * 6) as broken, monkeypatch.context() as patch:
        patch.setattr(uploading, "WAITS_S", (0.0,) * 2)
        cut = cli("datasets", "add", declared, "--file", str(rows), url=broken.url)
        assert cut.exit_code == 1
        assert "run the same command again" in " ".join(cut.stderr.split()), cut.output
        broken.cuts.clear()
        patch.undo()
        added = cli("datasets", "add", declared, "--file", str(rows), url=broken.url)
    assert added.exit_code == 0, added.output
    assert cli.json("datasets", "show", "pieces")["shape"]["records_train"] == 1500


def test_a_graph_is_uploaded_listed_and_deleted(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "small.pt2"
    file.write_bytes(small_graph())
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    said = cli("graphs", "upload", str(file))
    assert said.exit_code == 0, said.output
    assert f'model: {{"kind": "graph", "upload": "{sha256}"}}' in said.output
    assert "2 numbers in, 2 out; trains 22 of 22 parameters" in said.output
    (listed,) = cli.json("graphs", "list")
    assert (listed["sha256"], listed["bytes"]) == (sha256, file.stat().st_size)
    assert cli("graphs", "delete", sha256).exit_code == 0 and cli.json("graphs", "list") == []
    file.write_bytes(b"PK no graph")
    refused = cli("graphs", "upload", str(file))
    assert refused.exit_code != 0 and "not a zip archive" in refused.output
