"""The ranks of an attempt: processes that compute the same job together, and which passes each of them takes.

Every rank draws the same batch and cuts it into the same passes of P records. Rank r of W takes passes r, r + W, …: its
own rows of the list, in order, are again cut into passes of P, and these are the same passes. Nothing but sums of
passes is exchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import TransientError

if TYPE_CHECKING:  # those that start ranks load no torch
    from torch import Tensor


class RanksError(TransientError):
    """A rank is gone, or cannot be reached: the attempt ends without a word, and its job is queued again."""

    code = "ranks"


class RanksDifferError(RanksError):
    """A rank computed something else: a machine's fault, and a crash of the attempt."""


class Ranks(Protocol):
    """One rank's view of all of them. Each call is collective: every rank makes it, in the same order.

    Attributes:
        rank: 0 … size − 1. Rank 0 alone speaks to the supervisor.
        size: W.

    Raises:
        RanksError: from every call, if another rank is gone.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def add_up(self, numbers: Tensor) -> None:
        """Replaces numbers by their sums over all ranks, added in the order of ranks: the same bits in every rank. Sums
        of floats have other bits for another number of ranks; sums of int64 have not."""
        ...

    def add_up_at(self, rank: int, integers: Tensor) -> None:
        """Replaces one rank's int64 numbers by their sums over all ranks. The other ranks' are lost."""
        ...

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        """Replaces the numbers of all ranks by those of one."""
        ...

    def agree(self, content: bytes) -> bool:
        """Returns True if all ranks give the same 32 bytes."""
        ...

    def least(self, number: int) -> int:
        """Returns the smallest number that a rank gives."""
        ...

    def from_first(self, message: bytes = b"") -> bytes:
        """Returns rank 0's message, once it has sent one. The other ranks' arguments are ignored."""
        ...


class Alone:
    """One rank: nothing to exchange."""

    rank, size = 0, 1

    def add_up(self, numbers: Tensor) -> None:
        """See Ranks.add_up."""

    def add_up_at(self, rank: int, integers: Tensor) -> None:
        """See Ranks.add_up_at."""

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        """See Ranks.from_rank."""

    def agree(self, content: bytes) -> bool:
        """See Ranks.agree."""
        return True

    def least(self, number: int) -> int:
        """See Ranks.least."""
        return number

    def from_first(self, message: bytes = b"") -> bytes:
        """See Ranks.from_first."""
        return message


ALONE = Alone()


def own_rows(count: int, rows: int, ranks: Ranks) -> NDArray[np.int64]:
    """The places, among `count` records in passes of P = `rows`, of those in this rank's passes.

    Only a batch's last pass is not full, so it is also the last one of the rank that takes it.

    >>> class Second(Alone):
    ...     rank, size = 1, 2
    >>> own_rows(7, 2, Second()).tolist()
    [2, 3, 6]
    """
    places = np.arange(count)
    own_places: NDArray[np.int64] = places[places // rows % ranks.size == ranks.rank]
    return own_places


def count_of_own(count: int, rows: int, ranks: Ranks) -> int:
    """How many of `count` rows are in this rank's passes: the length of `own_rows`.

    >>> count_of_own(7, 2, Alone())
    7
    """
    full, remainder = divmod(count, rows)
    own_count = len(range(ranks.rank, full, ranks.size)) * rows
    return own_count + remainder if full % ranks.size == ranks.rank else own_count


def first_row(number: int, rows: int, ranks: Ranks) -> int:
    """The place of the first record of this rank's pass with this number, among all records of the batch."""
    return (number * ranks.size + ranks.rank) * rows
