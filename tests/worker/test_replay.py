"""The record as an attempt sees it."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import PrivacyError
from tests.worker.support import key, keys_of
from worker.messages import ProtocolError, Resalt, Segment
from worker.training.write_ahead import Replay


def segment(salt: str, from_step: int, *blocks: tuple[int, int, str | None]) -> Segment:
    recorded = [{"first_step": a, "last_step": b, "digest": key(d) if d else None} for a, b, d in blocks]
    return Segment.model_validate({"from_step": from_step, **keys_of(salt), "recorded": recorded})


def replay(*segments: Segment, allowed: int = 100, steps: int = 20) -> Replay:
    return Replay(steps, segments, allowed, lambda first, end: min(-(-first // 4) * 4, end))


def blocks_of(record: Replay, step: int = 0) -> list[tuple[int, int]]:
    found = []
    while (block := record.next_block(step)) is not None:
        found.append(block)
        step = block[1]
    return found


def test_a_fresh_job_runs_the_plan_s_blocks() -> None:
    record = replay(segment("a", 1))
    assert record.end == 20 and blocks_of(record) == [(1, 4), (5, 8), (9, 12), (13, 16), (17, 20)]
    assert not any(record.contradicts(step, key("any")) for step in range(21))


def test_recorded_blocks_are_run_as_recorded() -> None:
    record = replay(segment("a", 1, (0, 0, "0"), (1, 3, "3"), (4, 8, None)), allowed=5)
    assert record.end == 13 and blocks_of(record) == [(1, 3), (4, 8), (9, 12), (13, 13)]
    assert not record.contradicts(3, key("3")) and record.contradicts(3, key("other"))
    assert not record.contradicts(8, key("any"))


def test_a_state_without_a_digest_is_not_gone_on_from_where_later_steps_were_started() -> None:
    """Their noise may have met another state."""
    record = replay(segment("a", 1, (0, 0, "0"), (1, 4, None), (5, 8, "8")))
    assert record.contradicts(4, key("any"))
    assert replay(segment("a", 1, (1, 4, "4"))).contradicts(0, key("any"))


def test_a_later_segment_voids_what_was_recorded_from_its_first_step_on() -> None:
    old = segment("a", 1, (0, 0, "0"), (1, 4, "4"), (5, 8, "8"), (9, 12, None))
    record = replay(old, segment("b", 5, (5, 8, "8b")), allowed=6)
    assert record.end == 14
    assert not record.contradicts(8, key("8b")) and record.contradicts(8, key("8"))
    assert [record.keys(step).noise_key for step in (0, 1, 4)] == [keys_of("a")["noise_key"]] * 3
    assert [record.keys(step).noise_key for step in (5, 20)] == [keys_of("b")["noise_key"]] * 2


def test_fresh_keys_go_on_from_the_match_for_as_many_steps_as_are_allowed() -> None:
    record = replay(segment("a", 1, (0, 0, "0"), (1, 4, "4"), (5, 8, "8"), (9, 12, None)), allowed=8)
    after = record.resalted(resalt("b", 5, 8), 4)
    assert after.end == 12 and blocks_of(after) == [(1, 4), (5, 8), (9, 12)]
    assert not after.contradicts(8, key("any")) and not after.contradicts(4, key("4"))
    assert after.keys(5).noise_key == keys_of("b")["noise_key"] and after.keys(4).noise_key == keys_of("a")["noise_key"]
    short = record.resalted(resalt("b", 5, 0), 4)
    assert short.end == 4 and short.next_block(4) is None


def test_nothing_matched_begins_anew() -> None:
    record = replay(segment("a", 1, (0, 0, "0"), (1, 4, "4")))
    after = record.resalted(resalt("b", 0, 16), -1)
    assert after.end == 16 and after.keys(1).noise_key == keys_of("b")["noise_key"]
    assert not after.contradicts(0, key("any")) and not after.contradicts(4, key("any"))


def resalt(salt: str, from_step: int, allowed: int) -> Resalt:
    return Resalt.model_validate({"from_step": from_step, **keys_of(salt), "allowed_steps": allowed})


@pytest.mark.parametrize("stale", ["a", "b"])
def test_keys_that_are_not_fresh_are_refused(stale: str) -> None:
    record = replay(segment("a", 1, (1, 4, "4")), segment("b", 5, (5, 8, "8")))
    with pytest.raises(PrivacyError):
        record.resalted(resalt(stale, 1, 8), 0)


def test_one_key_for_two_purposes_is_refused() -> None:
    keys = keys_of("a") | {"sampler_key": keys_of("a")["noise_key"]}
    with pytest.raises(PrivacyError):
        replay(Segment.model_validate({"from_step": 1, **keys}))


def test_fresh_keys_for_another_step_are_refused() -> None:
    with pytest.raises(ProtocolError):
        replay(segment("a", 1)).resalted(resalt("b", 7, 8), 4)


@pytest.mark.parametrize(
    "segments",
    [
        [segment("a", 2)],
        [segment("a", 1), segment("b", 1)],
        [segment("a", 1), segment("b", 9), segment("c", 5)],
        [segment("a", 1, (1, 4, "4"), (9, 12, None))],
        [segment("a", 1, (5, 8, None))],
    ],
)
def test_a_record_with_a_gap_is_refused(segments: Any) -> None:
    with pytest.raises(ProtocolError):
        replay(*segments)
