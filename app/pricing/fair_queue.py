"""A fair queue for a few places: each key may hold some and wait for some, and keys take turns.

    a free place goes to the first key in the round that is below its limit; a served key moves to the round's end

A key that asks for one place at a time waits for at most one turn of each other key, however many requests they have.
No turn is interrupted. So one place is never taken by a key that holds all others, and long turns share all places but
one: it is given to no expensive key while the others have long turns. A key is expensive for PENALTY times as long as
its last long turn took, whatever it asks for in between. So long turns of n keys take at most n / (1 + PENALTY) of the
last place's time, and for the rest of it a key with short turns waits for short turns alone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

EXPENSIVE_S = 2.0
PENALTY = 9.0


class Ticket:
    """A request for a place; `place` is the place's number, once it is given."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.place: int | None = None
        self.began_s = 0.0
        self.given = threading.Event()


class FairTurns:
    """Gives places to keys in turns. Safe to share between threads.

    Args:
        places: the number of places; the lowest free one is given first. If there are several, one key holds at most
            `places - 1` of them, and so do expensive keys together with turns that are long already.
        waiting: the most requests of one key that may wait.
        refusal: builds the error for a request over this limit.
        clock: seconds on a monotonic clock.
    """

    def __init__(
        self,
        places: int,
        waiting: int,
        refusal: Callable[[], Exception],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._most_waiting, self._refusal, self._clock = max(1, places - 1), waiting, refusal, clock
        self._expensive_until: dict[str, float] = {}  # of keys that are
        self._running: set[Ticket] = set()
        self._free = sorted(range(places), reverse=True)
        self._held: Counter[str] = Counter()
        self._round: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, key: str, *, again: bool = False) -> Iterator[int]:
        """Waits for a place, yields its number, and frees it at the end of the block.

        Args:
            again: True if the caller had a place before for the same work: it is then not refused half-way.

        Raises:
            Exception: the refusal, if the key's waiting requests are at their limit.
        """
        ticket = self.ask(key, again=again)
        try:
            ticket.given.wait()
            yield cast(int, ticket.place)
        finally:
            self.leave(ticket)

    @property
    def waiting(self) -> int:
        """How many requests have no place yet."""
        with self._lock:
            return sum(map(len, self._round.values()))

    def ask(self, key: str, *, again: bool = False) -> Ticket:
        """Puts a ticket into the key's queue; serves it at once if a place is free. Raises like `turn`."""
        with self._lock:
            ticket = Ticket(key)
            self._round.setdefault(key, deque()).append(ticket)
            self._give()
            if not (again or ticket.given.is_set()) and len(self._round[key]) > self._most_waiting:
                self._round[key].pop()
                raise self._refusal()
            return ticket

    def leave(self, ticket: Ticket) -> None:
        """Returns a ticket's place, or withdraws its request."""
        with self._lock:
            if ticket.place is None:
                self._drop(ticket)
                return
            self._running.remove(ticket)
            self._note(ticket.key, self._clock() - ticket.began_s)
            self._held[ticket.key] -= 1
            if not self._held[ticket.key]:
                del self._held[ticket.key]
            self._free = sorted([*self._free, ticket.place], reverse=True)
            self._give()

    def _give(self) -> None:
        while self._free and (key := self._next()) is not None:
            ticket = self._round[key].popleft()
            ticket.place, ticket.began_s = self._free.pop(), self._clock()
            self._running.add(ticket)
            self._held[key] += 1
            self._round.move_to_end(key)
            if not self._round[key]:
                del self._round[key]
            ticket.given.set()

    def _next(self) -> str | None:
        now = self._clock()
        long = sum(self._is_expensive(each.key) or now - each.began_s > EXPENSIVE_S for each in self._running)
        for key in self._round:
            if self._held[key] < self._share and (long < self._share or not self._is_expensive(key)):
                return key
        return None

    def _is_expensive(self, key: str) -> bool:
        return self._clock() < self._expensive_until.get(key, 0.0)

    def _note(self, key: str, took_s: float) -> None:
        now = self._clock()
        self._expensive_until = {each: until for each, until in self._expensive_until.items() if until > now}
        if took_s > EXPENSIVE_S:
            self._expensive_until[key] = max(self._expensive_until.get(key, 0.0), now + PENALTY * took_s)

    def _drop(self, ticket: Ticket) -> None:
        self._round[ticket.key].remove(ticket)
        if not self._round[ticket.key]:
            del self._round[ticket.key]
