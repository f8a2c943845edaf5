"""Certificates of a Ray cluster's machines: each accepts those of its own authority, by the address that it asked."""

from __future__ import annotations

import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from tests.worker.gang import PATIENCE_S, aside
from worker.cluster.certificates import main, make_authority, make_machine


def context(role: int, folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(role)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(folder / "machine.crt", folder / "machine.key")
    made.load_verify_locations(folder / "ca.crt")
    return made


def asks(client: Path, server: Path, host: str) -> bytes:
    """What a machine hears from another one, as Ray's ends check each other."""
    left, right = socket.socketpair()
    for each in (left, right):
        each.settimeout(PATIENCE_S)

    def answer() -> None:
        with context(ssl.PROTOCOL_TLS_SERVER, server).wrap_socket(right, server_side=True) as connection:
            connection.sendall(b"here")

    answered = aside(answer)
    try:
        with context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_socket(left, server_hostname=host) as connection:
            return connection.recv(16)
    finally:
        left.close()
        with suppress(OSError):
            answered()


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    for cluster in ("ours", "other"):
        make_authority(tmp_path / cluster)
    make_machine(tmp_path / "ours", tmp_path / "one", ["10.0.0.1", "one.example.org"])
    make_machine(tmp_path / "ours", tmp_path / "two", ["10.0.0.2"])
    make_machine(tmp_path / "other", tmp_path / "stranger", ["10.0.0.1", "10.0.0.2"])
    return tmp_path


def test_machines_of_one_authority_know_each_other_by_address_and_name(machines: Path) -> None:
    for host in ("10.0.0.1", "one.example.org"):
        assert asks(machines / "two", machines / "one", host) == b"here"
    with pytest.raises(ssl.SSLCertVerificationError):
        asks(machines / "two", machines / "one", "10.0.0.2")


def test_a_stranger_s_certificate_is_refused_at_both_ends(machines: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        asks(machines / "two", machines / "stranger", "10.0.0.1")
    with pytest.raises(OSError):
        asks(machines / "stranger", machines / "one", "10.0.0.1")


def test_an_authority_is_never_replaced_and_keys_are_their_owner_s(machines: Path) -> None:
    before = (machines / "ours" / "ca.key").read_bytes()
    assert main(["authority", str(machines / "ours")]) == 1
    assert (machines / "ours" / "ca.key").read_bytes() == before
    for key in machines.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert main(["machine", str(machines / "nowhere"), str(machines / "x"), "10.0.0.3"]) == 1
    assert main(["machine"]) == 2
