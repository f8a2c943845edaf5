"""Refuses what a Python process sends beyond loopback, so that a public address in a test stays a literal.

Python raises an audit event before it connects, sends or resolves; `install` hears them. tests/conftest.py installs it
for the tests' own process, and puts this folder on PYTHONPATH: `sitecustomize` installs it in every Python that a test
starts with that variable, and forks inherit it.

What it cannot see: processes that are not Python (PostgreSQL, Redis, Chromium: a test starts each on loopback or a Unix
socket), what a C library connects by itself (libpq, uvloop), and a Python that is started with -I or -E. A name that is
given to `connect` itself is resolved before the refusal.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

CONNECTING = {"socket.connect", "socket.sendto", "socket.sendmsg"}
RESOLVING = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
INTERNET = (socket.AF_INET, socket.AF_INET6)

# What was refused, as it is told; the fixture `loopback_only` fails the test that left something here.
refused: list[str] = []
_installed: list[bool] = []


class BeyondLoopback(ConnectionRefusedError):
    """A test, or a process that it started, tried to reach another machine. An OSError: callers close their sockets."""


def install() -> None:
    """From now on this process reaches loopback alone. It cannot be undone; a second call does nothing."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in CONNECTING:
        used, address = arguments
        # A datagram without an address goes where `connect` was allowed to.
        if used.family in INTERNET and address is not None and not is_loopback(address[0]):
            _refuse(event, address[0])
    elif event in RESOLVING and not (is_literal(arguments[0]) or is_loopback(arguments[0])):
        _refuse(event, arguments[0])


def _refuse(event: str, host: object) -> None:
    said = f"{event} to {host!r}: tests reach loopback alone"
    refused.append(said)
    raise BeyondLoopback(said)


def is_loopback(host: object) -> bool:
    """Says if a host is this machine's loopback: 127.0.0.0/8, ::1, their IPv4-mapped form, or `localhost`."""
    name = _text(host)
    if name in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_literal(host: object) -> bool:
    """Says if a host is an address in digits: nobody is asked for it."""
    try:
        ipaddress.ip_address(_text(host))
    except ValueError:
        return False
    return True


def _text(host: object) -> str:
    if host is None:
        return ""
    return host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)
