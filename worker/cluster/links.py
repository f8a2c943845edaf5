"""Encrypted connections between the ranks of one attempt.

Each rank makes a key pair of its own, which never leaves its process. The driver tells all ranks the certificates. Both
ends of every connection show theirs, and each accepts exactly one. A connection carries bytes one way, so one thread
owns each end. What is cut off short ends the attempt: every message's length is known to its reader.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_hex

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from worker.channel import MAX_LINE_BYTES
from worker.data.ranks import RanksError

JOIN_S = 120.0  # in which all ranks find each other; a busy machine takes seconds to start one
HANDSHAKE_S = 20.0
SILENT_S = 60
CHUNK = 2**18
START, RING = b"s", b"r"  # the first byte of a connection: what it is for
LIFE = timedelta(days=3650)  # the key dies with its process; clocks of machines may differ


class LinksError(RanksError):
    """The ranks of an attempt cannot reach each other."""

    code = "links"


@dataclass(frozen=True)
class Address:
    """Where a rank can be reached, and by which certificate (DER) it is known."""

    host: str
    port: int
    certificate: bytes


class Port:
    """One rank's key and listening socket.

    Args:
        host: this machine's address, as the other ranks' machines know it.
    """

    def __init__(self, host: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        # A name of its own: of two with one name, OpenSSL looks at one alone.
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, token_hex(16))])
        certificate = x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - LIFE, now + LIFE
        ).sign(key, hashes.SHA256())
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        self._pem = private + certificate.public_bytes(serialization.Encoding.PEM)
        self._socket = socket.create_server((host, 0))
        self.address = Address(
            host, self._socket.getsockname()[1], certificate.public_bytes(serialization.Encoding.DER)
        )

    def connect(self, peer: Address, purpose: bytes) -> ssl.SSLSocket:
        """A connection that only sends.

        Raises:
            LinksError: the peer does not answer, or is another one.
        """
        try:
            plain = socket.create_connection((peer.host, peer.port), timeout=JOIN_S)
            _notice_silence(plain)
            connection = self._context(ssl.PROTOCOL_TLS_CLIENT, peer).wrap_socket(plain)
            with ExitStack() as refused:
                refused.enter_context(connection)
                if not _is_from(connection, peer):
                    raise LinksError("a rank of this attempt is another one")
                connection.sendall(purpose)
                refused.pop_all()
        except OSError as error:
            raise LinksError(f"a rank of this attempt cannot be reached: {error}") from error
        connection.settimeout(None)
        return connection

    def accept(self, peers: Mapping[bytes, Address]) -> dict[bytes, ssl.SSLSocket]:
        """A connection for each purpose, from its peer. Others that connect are turned away.

        Raises:
            LinksError: a peer does not come in time.
        """
        accepted: dict[bytes, ssl.SSLSocket] = {}
        deadline = time.monotonic() + JOIN_S
        context = self._context(ssl.PROTOCOL_TLS_SERVER, *peers.values())
        while len(accepted) < len(peers):
            left_s = deadline - time.monotonic()
            try:
                if left_s <= 0:  # strangers that keep coming prolong nothing
                    raise TimeoutError
                self._socket.settimeout(left_s)
                plain = self._socket.accept()[0]
            except OSError as error:
                for link in accepted.values():
                    link.close()
                raise LinksError("a rank of this attempt does not come") from error
            with suppress(OSError):
                plain.settimeout(min(HANDSHAKE_S, left_s))
                _notice_silence(plain)
                connection = context.wrap_socket(plain, server_side=True)
                with ExitStack() as rejected:
                    rejected.enter_context(connection)
                    purpose = connection.recv(1)
                    if purpose in peers and purpose not in accepted and _is_from(connection, peers[purpose]):
                        connection.settimeout(None)
                        accepted[purpose] = connection
                        rejected.pop_all()
        return accepted

    def close(self) -> None:
        """Nobody can connect any more."""
        self._socket.close()

    def _context(self, role: int, *peers: Address) -> ssl.SSLContext:
        context = ssl.SSLContext(role)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # whose certificate it is counts, and that is compared as a whole
        context.verify_mode = ssl.CERT_REQUIRED
        if role == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # the other end reads nothing: what it left unread would reset the connection
        file = os.memfd_create("rank", os.MFD_CLOEXEC)  # the key is on no disk
        with closing(os.fdopen(file, "wb")) as memory:
            memory.write(self._pem)
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{file}")
        context.load_verify_locations(cadata=b"".join(dict.fromkeys(each.certificate for each in peers)))
        return context


class Bridge:
    """Carries bytes between a rank's process and its neighbours on the ring.

    Args:
        port: this rank's port.
        after: the next rank.

    Attributes:
        inner: the rank's end of the socket pair; close it once the process has its copy.
    """

    def __init__(self, port: Port, after: Address) -> None:
        self.inner, self._outer = socket.socketpair()
        self._threads = [threading.Thread(target=self._tell, args=(port, after), name="ring-out", daemon=True)]
        self._threads[0].start()

    def hear(self, previous: ssl.SSLSocket) -> None:
        """Begins to read what the rank before says; owns that connection."""
        self._threads.append(threading.Thread(target=self._hear, args=(previous,), name="ring-in", daemon=True))
        self._threads[-1].start()

    def cut(self) -> None:
        """Ends the exchange: the rank finds the others gone."""
        with suppress(OSError):
            self._outer.shutdown(socket.SHUT_RDWR)

    def finish(self, within_s: float) -> None:
        """Call once the rank's process has ended: waits until the next rank has all that it said."""
        self._threads[0].join(within_s)
        self.cut()
        self._outer.close()

    def _tell(self, port: Port, after: Address) -> None:
        with suppress(OSError, LinksError), closing(port.connect(after, RING)) as connection:
            while chunk := self._outer.recv(CHUNK):
                connection.sendall(chunk)
        self.cut()  # the next rank is gone: this one hears it even while it waits for room to say more

    def _hear(self, previous: ssl.SSLSocket) -> None:
        try:
            with closing(previous):
                while chunk := previous.recv(CHUNK):
                    self._outer.sendall(chunk)
            self._outer.shutdown(socket.SHUT_WR)  # the rank hears nothing more; what it says may still be waited for
        except OSError:
            self.cut()  # not an end but silence, which a rank that only sends would not notice


def send_whole(connection: ssl.SSLSocket, content: bytes) -> None:
    """Sends one message, and ends the connection. The other end reads it at once, or this raises TimeoutError."""
    with closing(connection):
        connection.settimeout(JOIN_S)
        connection.sendall(len(content).to_bytes(8, "big") + content)


def receive_whole(connection: ssl.SSLSocket) -> bytes:
    """Receives one message, and ends the connection.

    Raises:
        LinksError: it is cut off, does not come, or is longer than any start message.
    """
    with closing(connection):
        connection.settimeout(JOIN_S)
        length = int.from_bytes(_exactly(connection, 8), "big")
        if length > MAX_LINE_BYTES:
            raise LinksError(f"a message of {length:,} bytes is announced, and a start message has {MAX_LINE_BYTES:,}")
        return _exactly(connection, length)


def _exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        try:
            chunk = connection.recv(min(CHUNK, count - len(received)))
        except OSError:
            chunk = b""
        if not chunk:
            raise LinksError("a message of this attempt is cut off")
        received += chunk
    return bytes(received)


def _notice_silence(connection: socket.socket) -> None:
    """Ends a connection whose other machine, or the network on its way, is gone without a word for `SILENT_S`.

    The bridge always waits to read: it notices, and cuts its rank off, whose end reaches all. Nothing limits how long
    what was sent waits for room: Linux would count (TCP_USER_TIMEOUT) a machine that answers, and whose rank is slow,
    as gone.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENT_S // 4),
        (socket.TCP_KEEPINTVL, SILENT_S // 4),
        (socket.TCP_KEEPCNT, 3),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_from(connection: ssl.SSLSocket, peer: Address) -> bool:
    return connection.getpeercert(binary_form=True) == peer.certificate
