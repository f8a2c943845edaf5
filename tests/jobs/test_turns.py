"""Turns at few places: nobody waits for more than one turn of each other, whatever the others have waiting."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest

from app.pricing.fair_queue import EXPENSIVE_S, PENALTY, FairTurns, Ticket
from app.sandbox.limited import busy
from core.errors import LimitError

KEYS = "abcdefgh"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make(places: int = 2, waiting: int = 16, clock: Clock | None = None) -> FairTurns:
    return FairTurns(places, waiting, busy, clock or Clock())


def test_a_place_is_left_sixteen_wait_and_the_next_is_told_so() -> None:
    turns = make(places=3)
    tickets = [turns.ask("greedy") for _ in range(18)]
    assert [each.given.is_set() for each in tickets] == [True] * 2 + [False] * 16
    with pytest.raises(LimitError) as refused:
        turns.ask("greedy")
    assert refused.value.status == 503
    others = [turns.ask("modest") for _ in range(8)]
    assert [each.given.is_set() for each in others] == [True] + [False] * 7
    assert not turns.ask("greedy", again=True).given.is_set(), "work that had a turn waits for its next one"
    turns.leave(tickets[0])
    assert tickets[2].given.is_set(), "in the order in which they were asked for"


def test_expensive_keys_together_leave_a_place_to_the_others() -> None:
    clock = Clock()
    turns = make(places=3, clock=clock)
    for key in "abc":  # nobody knows yet what they cost
        assert not turns._is_expensive(key)
        ticket = turns.ask(key)
        clock.now_s += 3 * EXPENSIVE_S
        turns.leave(ticket)
    slow = [turns.ask(key) for key in "abcabc"]
    assert [each.given.is_set() for each in slow] == [True, True, False, False, False, False]
    assert turns.ask("modest").given.is_set(), "whoever else waits"
    turns.leave(slow[0])
    assert slow[2].given.is_set(), "expensive ones take turns at the other places"


def test_a_turn_that_is_long_already_counts_as_one_of_an_expensive_key() -> None:
    clock = Clock()
    turns = make(places=2, clock=clock)
    first = turns.ask("a")
    clock.now_s += 3 * EXPENSIVE_S
    turns.leave(first)
    turns.ask("unknown")
    clock.now_s += 3 * EXPENSIVE_S
    assert not turns.ask("a").given.is_set() and turns.ask("modest").given.is_set()


def test_a_key_is_expensive_for_longer_than_its_long_turn_took() -> None:
    clock = Clock()
    turns = make(clock=clock)
    first = turns.ask("a")
    clock.now_s += 3 * EXPENSIVE_S
    turns.leave(first)
    for _ in range(9):  # short turns do not end it
        ticket = turns.ask("a")
        clock.now_s += 0.1
        turns.leave(ticket)
        assert turns._is_expensive("a")
    clock.now_s += 3 * EXPENSIVE_S * PENALTY
    assert not turns._is_expensive("a")


def occupied(keys: str, long_s: float, shorts: int) -> float:
    """The share of the time in which keys, of which each asks for one long turn after some short ones, again and again,
    leave no place of two free."""
    clock = Clock()
    turns = make(places=2, clock=clock)
    number, full_s, running, waiting = Counter[str](), 0.0, list[tuple[float, Ticket]](), list[Ticket]()
    while clock.now_s < 20_000:
        for key in keys:
            while sum(each.key == key for each in waiting) < 4:
                waiting.append(turns.ask(key))
        for ticket in [each for each in waiting if each.given.is_set()]:
            waiting.remove(ticket)
            number[ticket.key] += 1
            lasts_s = 0.1 if number[ticket.key] % (shorts + 1) else long_s
            running.append((clock.now_s + lasts_s, ticket))
        end_s, first = min(running, key=lambda each: each[0])
        full_s += (end_s - clock.now_s) * (len(running) == 2)
        clock.now_s = end_s
        running.remove((end_s, first))
        turns.leave(first)
    return full_s / clock.now_s


@pytest.mark.parametrize("long_s", [3.0, 30.0])
@pytest.mark.parametrize("shorts", [0, 1, 5])
def test_keys_that_mix_long_and_short_turns_leave_a_place_most_of_the_time(long_s: float, shorts: int) -> None:
    """Two keys that alternated took both places all the time: the shorter of their last two turns was counted."""
    assert occupied("ab", long_s, shorts) <= 2 / (1 + PENALTY) + 0.1


def test_the_only_place_is_for_all() -> None:
    turns = make(places=1)
    assert turns.ask("a").given.is_set()


def test_a_wish_that_is_given_up_leaves_the_queue() -> None:
    turns = make(places=1)
    first, second, third = (turns.ask(key) for key in "abb")
    turns.leave(second)
    turns.leave(first)
    assert third.given.is_set() and not second.given.is_set()
    turns.leave(third)
    assert turns.ask("c").place == 0


def test_a_place_is_held_by_one_at_a_time_and_given_back_after_a_fault() -> None:
    turns = make()
    with pytest.raises(ValueError), turns.turn("a") as place:
        assert place == 0
        with turns.turn("b") as other:
            assert other == 1
        raise ValueError
    with turns.turn("a") as again:
        assert again == 0


class FirstComeFirstServed(FairTurns):
    """What was there before: the key whose wish is the oldest."""

    def __init__(self) -> None:
        super().__init__(2, 16, busy)
        self.asked: list[Ticket] = []

    def _next(self) -> str | None:
        new = [each for queue in self._round.values() for each in queue if each not in self.asked]
        self.asked = [each for each in self.asked + new if each.place is None]
        return self.asked[0].key if self.asked else None


def longest_wait(turns: FairTurns, seed: int) -> int:
    """Over 10,000 random arrivals of greedy keys, and of one that asks once in a while: how many turns of any one other
    key it had to wait for."""
    draw, worst = random.Random(seed), 0
    running: list[Ticket] = []
    waiting: list[Ticket] = []
    mine: Ticket | None = None
    passed: Counter[str] = Counter()

    def note() -> None:
        nonlocal mine, worst
        for ticket in [each for each in waiting if each.given.is_set()]:
            waiting.remove(ticket)
            running.append(ticket)
            if mine is not None and ticket is not mine:
                passed[ticket.key] += 1
            elif ticket is mine:
                worst, mine = max(worst, *passed.values(), 0), None

    for _ in range(10_000):
        if mine is None and draw.random() < 0.05:
            passed.clear()
            mine = turns.ask("modest")
            waiting.append(mine)
        else:
            with suppress(LimitError):
                waiting.append(turns.ask(draw.choice(KEYS)))
        note()
        if running and draw.random() < 0.7:
            turns.leave(running.pop(draw.randrange(len(running))))
            note()
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_a_modest_key_waits_for_one_turn_of_each_other(seed: int) -> None:
    assert longest_wait(make(), seed) <= 1


def test_a_planted_queue_without_turns_fails_that() -> None:
    assert longest_wait(FirstComeFirstServed(), 0) > 1
