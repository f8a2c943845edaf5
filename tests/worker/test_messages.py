"""The pipe's framing and its closed set of messages."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from tests.worker.support import key, keys_of
from worker.attempt.link import SupervisorLink
from worker.channel import Channel
from worker.messages import (
    FAILURE_TEXTS,
    TO_CHILD,
    TO_SUPERVISOR,
    Alive,
    BlockStart,
    Digest,
    Failed,
    Go,
    MetricValue,
    ProtocolError,
    Recorded,
    Resalt,
    Segment,
    Stop,
)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, two = socket.socketpair()
    child, supervisor = Channel(one, TO_CHILD), Channel(two, TO_SUPERVISOR)
    yield child, supervisor
    child.close()
    supervisor.close()


def test_messages_arrive_one_a_line_in_order(pair: tuple[Channel, Channel]) -> None:
    child, supervisor = pair
    assert not child.pending()
    resalt = Resalt.model_validate({"from_step": 3, **keys_of("a"), "allowed_steps": 0})
    for message in (Go(), Stop(), resalt):
        supervisor.send(message)
    assert child.pending(5.0)
    assert [child.receive() for _ in range(3)] == [Go(), Stop(), resalt]
    assert not child.pending()
    child.send(Digest(step=0, digest=key(1)))
    assert supervisor.receive() == Digest(step=0, digest=key(1))


def test_a_digest_leaves_with_the_next_block_or_before_any_other_message(pair: tuple[Channel, Channel]) -> None:
    """One message and one transaction for both. Two were needed before, each with an answer."""
    child, supervisor = pair
    link = SupervisorLink(child)
    supervisor.send(Go())
    link.record(Digest(step=0, digest=key(1)))
    assert not supervisor.pending() and not link.begin(1, 2)
    assert supervisor.receive() == BlockStart(first_step=1, last_step=2, digest=key(1))
    link.record(Digest(step=2, digest=key(2)))
    link.send(Alive())
    assert [supervisor.receive() for _ in range(2)] == [Digest(step=2, digest=key(2)), Alive()]
    assert not child.pending(), "no answer was needed"


def test_a_line_may_come_in_pieces() -> None:
    one, two = socket.socketpair()
    channel = Channel(one, TO_SUPERVISOR)
    line = BlockStart(first_step=1, last_step=2).model_dump_json().encode() + b"\n"
    for at in range(len(line)):
        two.sendall(line[at : at + 1])
    assert channel.receive() == BlockStart(first_step=1, last_step=2)
    two.close()
    assert channel.pending()
    with pytest.raises(EOFError):
        channel.receive()
    channel.close()


@pytest.mark.parametrize(
    "line", [b"{}", b"nonsense", b'{"kind":"ready","device":"cpu"}', b'{"kind":"go","more":1}', b""]
)
def test_what_is_no_message_for_this_end_is_refused_without_being_repeated(line: bytes) -> None:
    one, two = socket.socketpair()
    channel = Channel(one, TO_CHILD)
    two.sendall(line + b"\n")
    with pytest.raises(ProtocolError) as caught:
        channel.receive()
    assert caught.value.__cause__ is None and "nonsense" not in str(caught.value)
    channel.close()
    two.close()


def test_values_of_messages_are_checked() -> None:
    metric = {"name": "accuracy", "step": 1, "value": 0.5, "std": 0.1, "on": "holdout", "released_by": "noisy_count"}
    MetricValue.model_validate(metric)
    for change in ({"value": float("nan")}, {"std": -1.0}, {"name": "gradient_norm"}, {"released_by": "kindness"}):
        with pytest.raises(ValidationError):
            MetricValue.model_validate(metric | change)
    with pytest.raises(ValidationError):
        Failed.model_validate({"code": "ValueError: 3.7", "message": ""})
    with pytest.raises(ValidationError):
        Recorded(first_step=3, last_step=2)


def test_keys_are_not_printed() -> None:
    segment = Segment.model_validate({"from_step": 1, **keys_of("a")})
    assert all(value not in repr(segment) for value in keys_of("a").values())


def test_failure_texts_hold_no_placeholders() -> None:
    assert all(text.endswith(".") and "{" not in text and "%" not in text for text in FAILURE_TEXTS.values())
