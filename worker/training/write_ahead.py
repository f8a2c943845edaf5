"""The write-ahead record as an attempt sees it: the steps that were started under each key, and their results.

A started step is charged. Running it again is free if it is bit for bit the same step, which each block's final digest
shows. If a digest differs, the noise after the last match has met another gradient. That noise must never be used
again: those steps run, and are charged, under fresh keys.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import get_args

from core.errors import PrivacyError
from worker.messages import ProtocolError, Recorded, Resalt, Segment
from worker.noise.attempt_keys import Purpose


class Replay:
    """What is recorded, and how far this attempt may go.

    Args:
        steps: T.
        segments: the salts in use, oldest first. A segment's records are void from a later segment's first step on.
        allowed_steps: how many further steps may be charged.
        block_end: maps a first step and the attempt's last step to the block's last step; public, from the plan.

    Attributes:
        end: this attempt's last step: the steps started so far plus `allowed_steps`, at most T.

    Raises:
        ProtocolError: segments or blocks are not consecutive.
        PrivacyError: two segments share a key.
    """

    def __init__(
        self, steps: int, segments: tuple[Segment, ...], allowed_steps: int, block_end: Callable[[int, int], int | None]
    ) -> None:
        _check_segments(segments)
        self._steps, self._segments, self._block_end = steps, segments, block_end
        ends = [later.from_step for later in segments[1:]] + [steps + 1]
        live = [each for segment, end in zip(segments, ends, strict=True) for each in _before(segment, end)]
        self._digests = {each.last_step: each.digest for each in live if each.digest is not None}
        self._blocks = {each.first_step: each.last_step for each in live if each.first_step > 0}
        self._started = _last_of(self._blocks)
        self.end = min(steps, self._started + allowed_steps)

    def keys(self, step: int) -> Segment:
        """The segment whose keys apply to a step."""
        return max((s for s in self._segments if s.from_step <= max(step, 1)), key=lambda segment: segment.from_step)

    @property
    def initial_keys(self) -> Segment:
        """The segment of the initial parameters: the last one from step 0, else the first of all."""
        return next((s for s in reversed(self._segments) if s.from_step == 0), self._segments[0])

    @property
    def begins_again(self) -> bool:
        """True if steps were started, but none under the current keys."""
        return self._started == 0 and self.end < self._steps

    def has_digest(self, step: int) -> bool:
        """True if the state after a step is recorded, under the keys that still apply to it."""
        return step in self._digests

    def contradicts(self, step: int, digest: str) -> bool:
        """Returns True if continuing would reuse a noise key on a different state.

        That is so if the record has another digest for the step, or none although later steps were started.
        """
        if step in self._digests:
            return self._digests[step] != digest
        return step < self._started

    def records_after(self, step: int) -> bool:
        """True if a later state can contradict a record: steps after this one were started, or have digests."""
        return step < max((self._started, *self._digests))

    def next_block(self, step: int) -> tuple[int, int] | None:
        """First and last step of the block after `step`: as recorded, else by the plan. None at the end."""
        first = step + 1
        if first in self._blocks:
            return first, self._blocks[first]
        last = self._block_end(first, self.end) if first <= self.end else None
        return None if last is None else (first, last)

    def resalted(self, message: Resalt, matched_step: int) -> Replay:
        """The record from now on: everything up to the matched step, then fresh keys.

        Raises:
            ProtocolError: the fresh keys do not start at the step after the matched one.
            PrivacyError: the keys are not fresh.
        """
        if message.from_step != matched_step + 1:
            raise ProtocolError("fresh keys must start after the last step that matched")
        kept_segments = tuple(segment for segment in self._segments if segment.from_step <= matched_step)
        keys = message.model_dump(exclude={"kind", "allowed_steps"})
        _check_fresh((*self._segments, fresh := Segment.model_validate(keys)))
        return Replay(self._steps, (*kept_segments, fresh), message.allowed_steps, self._block_end)


def _before(segment: Segment, end: int) -> list[Recorded]:
    return [each for each in segment.recorded if each.last_step < end]


def _check_segments(segments: tuple[Segment, ...]) -> None:
    if segments[0].from_step > 1 or any(one.from_step >= two.from_step for one, two in pairwise(segments)):
        raise ProtocolError("segments must start at the first step, each after the one before")
    _check_fresh(segments)


def _check_fresh(segments: tuple[Segment, ...]) -> None:
    keys = [getattr(each, f"{purpose}_key") for each in segments for purpose in get_args(Purpose)]
    if len(set(keys)) != len(keys):
        raise PrivacyError("each purpose and each salt must have its own key")


def _last_of(blocks: dict[int, int]) -> int:
    """The last started step, or 0. Blocks must be consecutive."""
    step = 0
    for first in sorted(blocks):
        if first != step + 1:
            raise ProtocolError("recorded blocks must be consecutive")
        step = blocks[first]
    return step
