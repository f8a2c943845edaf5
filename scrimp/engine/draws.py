"""Keys from the system, each step's draw, and the rows that it takes: as a job has them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from core.contracts.slots import PartSlots
from core.privacy.slot_numbers import default_slots, rows_of_step
from scrimp.engine.errors import MisusedError
from scrimp.engine.own_records import FieldRecords, Fields
from worker.data.secret_slots import Slotted
from worker.noise.attempt_keys import Purpose, derive_key
from worker.noise.batch_sampling import PoissonSampler
from worker.noise.secret_places import RandomOrder

KEY_ID = "engine"


class OneOwner:
    """What has keys cannot be copied or pickled: two of them would draw the same noise for different sums."""

    def __reduce__(self) -> NoReturn:
        raise MisusedError(f"a {type(self).__name__} has keys, and a copy would draw the same noise: make another one")


class Keys(OneOwner):
    """Fresh keys from the operating system. They stay in this process: neither a file nor a report has them."""

    def __init__(self) -> None:
        self._secret, self._salt = secrets.token_bytes(32), secrets.token_bytes(16)

    def of(self, purpose: Purpose) -> bytes:
        """The key of one purpose."""
        return derive_key(self._secret, KEY_ID, self._salt, purpose)


@dataclass(frozen=True)
class Places:
    """The public numbers of a draw.

    Attributes:
        records: the number that is declared. N follows from it, and no draw depends on the real one.
        sample_rate: q.
    """

    records: int
    sample_rate: float

    def __post_init__(self) -> None:
        if self.records < 1:
            raise MisusedError("the public number of records is at least 1")
        if not 0.0 < self.sample_rate <= 1.0:
            raise MisusedError("the sampling rate is a number above 0 and at most 1")

    @property
    def slots(self) -> int:
        """N: coins are tossed for so many places, occupied or not."""
        return default_slots(self.records)

    @property
    def rows(self) -> int:
        """R: every step has so many rows; a draw is larger with a probability of at most 2⁻⁶⁰."""
        return rows_of_step(PartSlots(units=self.slots, rows=self.slots), self.sample_rate)

    @property
    def expected_batch_size(self) -> int:
        """L = q · records, rounded: the divisor of every step."""
        return max(1, round(self.sample_rate * self.records))


class Draws:
    """Draws each step's records, and gives them secret, uniformly random rows."""

    def __init__(self, keys: Keys, places: Places) -> None:
        self._places = places
        self._sampler = PoissonSampler(keys.of("sampler"), places.sample_rate, places.slots)
        self._order = RandomOrder(keys.of("order"))

    def rows(self, step: int, records: FieldRecords) -> Slotted[Fields]:
        """The step's rows. Raises MisusedError if there are more records than places."""
        if len(records) > self._places.slots:
            raise MisusedError(
                f"the data have more records than places: {self._places.slots} follow from the {self._places.records} "
                "that were declared; declare more before training begins"
            )
        drawn = self._sampler.draw(step)
        numbers = drawn[: np.searchsorted(drawn, len(records))]
        rows = self._places.rows
        return Slotted.injected(records, self._order.of(step, max(rows, len(numbers))), rows, numbers)
