"""Nothing that a test does or starts reaches another machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import loopback
import pytest

ROOT = Path(__file__).parents[2]
PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:2800:220:1::1"
Act = Callable[[], object]


@pytest.fixture
def expected() -> Iterator[None]:
    """What these tests have refused on purpose is no failure of theirs."""
    yield
    loopback.refused.clear()


def used(kind: int, family: int, act: str, *arguments: object) -> None:
    with socket.socket(family, kind) as made:
        getattr(made, act)(*arguments)


def stream(act: str, *arguments: object, family: int = socket.AF_INET) -> None:
    used(socket.SOCK_STREAM, family, act, *arguments)


def datagram(act: str, *arguments: object, family: int = socket.AF_INET) -> None:
    used(socket.SOCK_DGRAM, family, act, *arguments)


@pytest.mark.parametrize(
    "act",
    [
        lambda: stream("connect", (PUBLIC, 443)),
        lambda: stream("connect_ex", (PUBLIC, 443)),
        lambda: stream("connect", ("0.0.0.0", 443)),  # noqa: S104
        lambda: socket.create_connection((PUBLIC, 443), timeout=1),
        lambda: datagram("connect", (PUBLIC, 53)),
        lambda: datagram("sendto", b"x", (PUBLIC, 53)),
        lambda: datagram("sendmsg", [b"x"], [], 0, (PUBLIC, 53)),
        lambda: socket.getaddrinfo("example.com", 443),
        lambda: socket.create_connection(("example.com", 443), timeout=1),
        lambda: socket.gethostbyname("example.com"),
        lambda: socket.gethostbyaddr("example.com"),
    ],
)
@pytest.mark.usefixtures("expected")
def test_another_machine_is_refused(act: Act) -> None:
    with pytest.raises(loopback.BeyondLoopback, match="tests reach loopback alone"):
        act()
    assert loopback.refused


@pytest.mark.usefixtures("expected")
def test_another_machine_is_refused_over_ipv6() -> None:
    for address in (PUBLIC_6, f"::ffff:{PUBLIC}", "fe80::1"):
        for act in ("connect", "connect_ex"):
            with pytest.raises(loopback.BeyondLoopback):
                stream(act, (address, 443), family=socket.AF_INET6)
        with pytest.raises(loopback.BeyondLoopback):
            datagram("sendto", b"x", (address, 53), family=socket.AF_INET6)


def test_loopback_and_literals_are_not() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1]), timeout=10).close()
    assert socket.getaddrinfo(PUBLIC, 443)[0][4] == (PUBLIC, 443), "digits ask nobody"
    assert loopback.is_loopback("::1") and loopback.is_loopback("::ffff:127.0.0.1")
    assert not loopback.is_loopback("128.0.0.1") and not loopback.is_loopback("localhost.example")
    assert loopback.refused == []


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_a_process_that_a_test_starts_is_guarded_too(how: str) -> None:
    act = f"import socket; socket.create_connection(({PUBLIC!r}, 443), timeout=1)"
    if how == "fork":
        fork = f"multiprocessing.get_context('fork').Process(target=exec, args=({act!r},))"
        act = f"import multiprocessing; p = {fork}; p.start(); p.join()"
    ran = subprocess.run([sys.executable, "-c", act], capture_output=True, text=True, timeout=60, check=False)
    assert "BeyondLoopback" in ran.stderr


def test_what_was_refused_fails_a_test_that_swallows_it(tmp_path: Path) -> None:
    """The fixture of tests/conftest.py, at work on a test that catches everything."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import its_garbage, loopback_only\n")
    swallowing = f"""
import contextlib, socket
def test_it():
    with contextlib.suppress(Exception):
        socket.create_connection(({PUBLIC!r}, 443), timeout=1)
"""
    (tmp_path / "test_it.py").write_text(swallowing)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    path = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))
    ran = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
