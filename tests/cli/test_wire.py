"""What the client makes of a connection that ends before its answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scrimp.client import Client
from scrimp.errors import ServiceUnreachable

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a close resets the connection


@contextmanager
def resetting(*answered: int) -> Iterator[str]:
    """The address of a server that answers so many requests of each connection, and resets it at the next one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for count in answered:
                connection, _ = listening.accept()
                with connection:
                    for _ in range(count):
                        connection.recv(65536)
                        connection.sendall(ANSWER)
                    connection.recv(65536)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(300)


def test_a_get_whose_kept_connection_is_reset_is_sent_once_more() -> None:
    with resetting(1, 1) as url, Client(url) as client:
        assert [client.json("GET", "/") for _ in range(2)] == [{}, {}]


def test_a_get_is_sent_twice_and_no_more() -> None:
    with resetting(0, 0) as url, Client(url) as client, pytest.raises(ServiceUnreachable, match="interrupted"):
        client.json("GET", "/")


def test_what_changes_something_is_sent_once() -> None:
    with resetting(1) as url, Client(url) as client:
        client.json("GET", "/")
        with pytest.raises(ServiceUnreachable, match="interrupted"):
            client.json("POST", "/")
