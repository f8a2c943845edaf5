"""What only the owner of a data set is told: functions of private data that nobody paid for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.keys.service import Caller

T = TypeVar("T")


@dataclass(frozen=True)
class ForOwner(Generic[T]):
    """Counts, warnings and refusals of a file: an answer takes them from `told_to`, which asks for the caller.

    Nobody else gets any of it, admins included, so that no part has to be filtered by what it tells.

    Args:
        owner_key: whose data set it is about.
        value: for rows that keep it; answers never read it (tests/architecture/test_for_owner.py).
    """

    owner_key: str
    value: T = field(repr=False)

    def told_to(self, caller: Caller) -> T | None:
        """The whole of it to the owner, and None to everybody else."""
        return self.value if caller.id == self.owner_key else None
