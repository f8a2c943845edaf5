"""A part's users and labels in arrays that have a place for each slot: their memory does not tell how many records are.

What an attempt takes before its step is charged must not depend on n: where memory is short, it would tell n for free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from core.statistics.statistics_passes import column_bytes
from worker.data.joined import Joined, Rows

COPIES = {"y": 2, "user": 3}  # of a column that several parts have, while it is joined; of one part's there is one


def fill(rows: Rows, name: str, out: NDArray[Any]) -> None:
    """Reads a column into the first places of `out`, one for each slot. While it is read, memory is held for the slots
    without a record too.

    Raises:
        PrivacyError: the part has more records than slots.
    """
    empty = len(out) - len(rows)
    if empty < 0:
        raise PrivacyError("a part has more records than slots")
    spare = np.ones((COPIES[name] if isinstance(rows, Joined) else 1) * empty, dtype=np.int64)  # written, so taken
    out[: len(rows)] = rows.column(name)
    del spare


def reserve(width: int, slots: int, mechanism: MechanismConfig | None) -> NDArray[np.int8]:
    """As much memory as `fill` takes at most of so many slots, written, so that it is taken."""
    of_users = mechanism is not None and mechanism.unit == "user"
    return np.ones(column_bytes(width, slots, of_users=of_users), dtype=np.int8)


def check_users(rows: Rows, mechanism: MechanismConfig | None, slots: int) -> None:
    """Checks that no user has more records than the noise covers. A record that is a whole user is not read.

    Raises:
        PrivacyError: the mechanism protects another unit than the data set's, or fewer records per user than the part
            has; or the part has more records than slots.
    """
    layout = rows.layout
    if mechanism is None:
        return
    if (mechanism.unit == "user") != layout.users:
        raise PrivacyError("the mechanism protects another unit than the data set's")
    if not layout.users or layout.kind == "sequences":
        return
    limit, numbers = (
        mechanism.training.records_per_unit,
        -1 - np.arange(slots, dtype=np.int64),
    )  # of nobody, all distinct
    fill(rows, "user", numbers)
    numbers.sort()
    if bool((numbers[limit:] == numbers[:-limit]).any()):
        raise PrivacyError("a user has more records than the mechanism covers")
