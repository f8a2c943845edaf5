"""Connections between ranks: each end knows the other, nobody else gets in, and nothing is readable on the way."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from tests.worker.gang import PATIENCE_S, aside
from worker.attempt.ring import RingRanks
from worker.cluster import links
from worker.cluster.links import RING, START, Bridge, LinksError, Port, receive_whole, send_whole
from worker.data.ranks import RanksError

HERE = "127.0.0.1"
SECRET = b"totals before noise, 0123456789 " * 64


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    opened = [Port(HERE) for _ in range(3)]
    yield opened
    for port in opened:
        port.close()


def test_a_message_arrives_whole_and_by_purpose(ports: list[Port]) -> None:
    driver, rank, before = ports
    accepted = aside(lambda: rank.accept({START: driver.address, RING: before.address}))
    ring = before.connect(rank.address, RING)
    send_whole(driver.connect(rank.address, START), SECRET)
    found = accepted()
    with ring, found[RING]:
        assert found[RING].version() == "TLSv1.3"
        for each in (ring, found[RING]):  # whoever waits for a machine that is gone without a word learns of it
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < links.SILENT_S
        assert receive_whole(found[START]) == SECRET


def test_a_stranger_and_a_rank_in_another_s_place_are_turned_away(ports: list[Port]) -> None:
    """The port is open to the network: who comes with another key, or none, changes nothing."""
    driver, rank, other = ports
    stranger = Port(HERE)
    accepted = aside(lambda: rank.accept({START: driver.address}))
    with socket.create_connection((HERE, rank.address.port), timeout=PATIENCE_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for each in (stranger, other):
        with suppress(LinksError, OSError), each.connect(rank.address, START) as connection:
            connection.sendall(b"forged")
    genuine = driver.connect(rank.address, START)
    send_whole(genuine, SECRET)
    assert receive_whole(accepted()[START]) == SECRET
    stranger.close()


def test_a_known_rank_cannot_take_another_s_part(ports: list[Port]) -> None:
    """Its certificate is accepted, but not for what only the driver says."""
    driver, rank, before = ports
    accepted = aside(lambda: rank.accept({START: driver.address, RING: before.address}))
    with before.connect(rank.address, START) as forged, suppress(OSError):
        send_whole(forged, b"forged keys")
    ring = before.connect(rank.address, RING)
    send_whole(driver.connect(rank.address, START), SECRET)
    found = accepted()
    with ring, found[RING]:
        assert receive_whole(found[START]) == SECRET


def test_who_answers_with_another_certificate_hears_nothing(ports: list[Port]) -> None:
    driver, rank, other = ports
    wrong = links.Address(HERE, other.address.port, rank.address.certificate)
    accepted = aside(lambda: other.accept({START: driver.address}))
    with pytest.raises(LinksError):
        driver.connect(wrong, START)
    send_whole(driver.connect(other.address, START), b"x")
    assert receive_whole(accepted()[START]) == b"x"


def test_nobody_waits_for_ever_for_a_rank(ports: list[Port], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "JOIN_S", 0.0)
    with pytest.raises(LinksError):
        ports[1].accept({START: ports[0].address})


def test_nobody_waits_for_ever_for_a_message(ports: list[Port], monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer came, and is silent: its machine may be gone without a word."""
    driver, rank, _ = ports
    accepted = aside(lambda: rank.accept({START: driver.address}))
    with driver.connect(rank.address, START):
        monkeypatch.setattr(links, "JOIN_S", 0.01)
        heard = aside(lambda: receive_whole(accepted()[START]))
        with pytest.raises(LinksError, match="cut off"):
            heard()


@pytest.mark.parametrize("length", [links.MAX_LINE_BYTES + 1, 2**64 - 1])
def test_a_length_that_no_start_message_has_is_not_believed(ports: list[Port], length: int) -> None:
    """The driver runs the job's own rank 0. The refusal comes while the connection is open: nothing was waited for."""
    driver, rank, _ = ports
    accepted = aside(lambda: rank.accept({START: driver.address}))
    with driver.connect(rank.address, START) as connection:
        connection.sendall(length.to_bytes(8, "big"))
        with pytest.raises(LinksError, match=f"{length:,} bytes"):
            receive_whole(accepted()[START])


def test_strangers_that_keep_coming_prolong_no_wait(ports: list[Port], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds it a third of the time on: the last of the strangers is not even let in."""
    driver, rank, _ = ports
    clock = count(step=links.JOIN_S / 3)
    for _ in range(5):
        socket.create_connection((HERE, rank.address.port)).close()
    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(LinksError, match="does not come"):
        rank.accept({START: driver.address})
    rank._socket.settimeout(links.JOIN_S)
    rank._socket.accept()[0].close()


def test_what_goes_by_is_not_readable(ports: list[Port]) -> None:
    """Everything between two ranks passes through a listener that records it."""
    driver, rank, _ = ports
    tap = socket.create_server((HERE, 0))
    tap.settimeout(PATIENCE_S)
    seen = bytearray()

    def listen() -> None:
        with tap, tap.accept()[0] as inside, socket.create_connection((HERE, rank.address.port)) as onward:
            inside.settimeout(PATIENCE_S)
            onward.settimeout(PATIENCE_S)
            back = aside(lambda: _pass_on(onward, inside, seen))
            _pass_on(inside, onward, seen)
            back()

    listener = aside(listen)
    accepted = aside(lambda: rank.accept({START: driver.address}))
    through = links.Address(HERE, tap.getsockname()[1], rank.address.certificate)
    send_whole(driver.connect(through, START), SECRET)
    assert receive_whole(accepted()[START]) == SECRET
    listener()
    assert len(seen) > len(SECRET)
    assert b"totals" not in seen and rank.address.certificate not in seen and driver.address.certificate not in seen


def _pass_on(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
    with suppress(OSError):
        while said := source.recv(4096):
            seen.extend(said)
            target.sendall(said)
        target.shutdown(socket.SHUT_WR)


def test_a_ring_over_bridges_adds_up_and_an_end_reaches_all(ports: list[Port]) -> None:
    length, size = 400_000, len(ports)
    parts = torch.arange(size * length).view(size, length)

    def rank(number: int) -> bool:
        bridge = Bridge(ports[number], ports[(number + 1) % size].address)
        bridge.hear(ports[number].accept({RING: ports[number - 1].address})[RING])
        ranks = RingRanks(number, size, bridge.inner)
        own = parts[number].clone()
        ranks.add_up(own)
        same = torch.equal(own, parts.sum(0))
        if number == 1:
            bridge.cut()
        with pytest.raises(RanksError):
            ranks.add_up(own)
        ranks.close()
        bridge.finish(60.0)
        return same

    ends = [aside(partial(rank, number)) for number in range(size)]
    assert [end() for end in ends] == [True] * size


def test_who_only_sends_hears_that_the_next_rank_is_gone(ports: list[Port]) -> None:
    """It waits for room to say more, and nobody makes room any more."""
    bridge = Bridge(ports[0], ports[1].address)
    ports[1].accept({RING: ports[0].address})[RING].close()
    ranks = RingRanks(0, len(ports), bridge.inner)

    def speak() -> None:
        while True:
            ranks.from_rank(0, torch.zeros(10_000_000))

    with pytest.raises(RanksError):
        aside(speak)()
    ranks.close()
    bridge.finish(PATIENCE_S)


def test_who_only_sends_hears_that_the_other_machine_is_silent(ports: list[Port]) -> None:
    """Of two ranks the one before is also the next: who reads from it notices, and nothing else tells the sender."""

    class Silent:
        """A connection whose machine is gone without a word, as the kernel tells who reads it."""

        def recv(self, _count: int) -> bytes:
            raise TimeoutError("Connection timed out")

        def close(self) -> None: ...

    bridge = Bridge(ports[0], ports[1].address)
    next_rank = ports[1].accept({RING: ports[0].address})[RING]  # reads nothing
    bridge.hear(Silent())  # type: ignore[arg-type]
    ranks = RingRanks(0, 2, bridge.inner)

    def speak() -> None:
        while True:
            ranks.from_rank(0, torch.zeros(10_000_000))

    with next_rank, pytest.raises(RanksError):
        aside(speak)()
    ranks.close()
    bridge.finish(0.1)


def test_who_hears_the_end_of_the_rank_before_may_say_the_rest(ports: list[Port]) -> None:
    """Whoever hands numbers on ends first."""
    bridge = Bridge(ports[0], ports[1].address)
    next_rank = ports[1].accept({RING: ports[0].address})[RING]
    accepted = aside(lambda: ports[0].accept({RING: ports[2].address}))
    ports[2].connect(ports[0].address, RING).close()
    bridge.hear(accepted()[RING])
    bridge.inner.settimeout(PATIENCE_S)
    assert bridge.inner.recv(1) == b""
    said, heard = 2**22, 0
    sent = aside(lambda: bridge.inner.sendall(bytes(said)))
    with next_rank:
        while heard < said:
            chunk = next_rank.recv(links.CHUNK)
            assert chunk
            heard += len(chunk)
    sent()
    bridge.inner.close()
    bridge.finish(PATIENCE_S)


def test_a_rank_that_is_slow_to_hear_is_not_gone(ports: list[Port], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine answers: a step that takes minutes, or a network full for as long, ends nothing."""
    monkeypatch.setattr(links, "SILENT_S", 4)
    accepted = aside(lambda: ports[1].accept({START: ports[0].address}))
    said, heard = 2**25, bytearray()
    with ports[0].connect(ports[1].address, START) as out, accepted()[START] as into:
        sent = aside(lambda: out.sendall(bytes(said)))
        time.sleep(6.0)
        while len(heard) < said:
            chunk = into.recv(links.CHUNK)
            assert chunk
            heard += chunk
        sent()


def test_a_key_is_in_no_file_and_each_rank_has_its_own(ports: list[Port]) -> None:
    assert len({port.address.certificate for port in ports}) == 3
    context = ports[0]._context(ssl.PROTOCOL_TLS_CLIENT, ports[1].address)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3 and context.verify_mode is ssl.CERT_REQUIRED
