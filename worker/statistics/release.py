"""The one release of a statistics job: integer sums over all slots, and the noise that was charged for.

A record's part is a function of its own cells; integers add up the same in every order and place. So the sums need no
injection into slots. Every pass computes on as many rows, of which empty slots are masked: how many records there are
cuts and sizes no array that is computed on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError
from core.parts.stored import StoredPart
from core.privacy.mechanism import MechanismConfig
from core.statistics.columns import Cells
from core.statistics.plans import Asked
from worker.data.joined import AnyPart, Loaded, Rows
from worker.statistics.base import Noise

ROWS = 2**16  # of a pass


@dataclass(frozen=True)
class Release:
    """What leaves: for each query its noisy sums, float64, in integers of 1/unit, and the std of the noise.

    Attributes:
        stds: in units of 1; 0 on public data without privacy.
    """

    noisy: tuple[Tensor, ...]
    stds: tuple[float, ...]

    @property
    def state(self) -> dict[str, Tensor]:
        """What the digest of the job's one step is over."""
        return {f"query.{number}": noisy for number, noisy in enumerate(self.noisy)}


def private_sums(asked: Asked, part: AnyPart, slots: int) -> list[NDArray[np.int64]]:
    """The sums of each query over a part's records: exact, and private.

    Args:
        slots: N. So many rows are passed over, in ⌈N / ROWS⌉ passes.

    Raises:
        PrivacyError: the part has more records than slots.
    """
    rows: Rows = Loaded(part) if isinstance(part, StoredPart) else part
    if len(rows) > slots:
        raise PrivacyError("a part has more records than slots")
    totals = [np.zeros(each.size, dtype=np.int64) for each in asked.plans]
    for start in range(0, max(slots, 1), ROWS):
        sums = asked.sums(_cells(rows, start, min(ROWS, slots)))
        totals = [total + more for total, more in zip(totals, sums, strict=True)]
    return totals


def _cells(rows: Rows, start: int, size: int) -> Cells:
    """The records from `start` on in `size` rows; rows without a record hold zeros and are not present."""
    taken = rows.rows(np.arange(min(start, len(rows)), min(start + size, len(rows)), dtype=np.int64))
    x = taken.x if isinstance(taken.x, np.ndarray) else np.zeros((len(taken.y), 0), dtype=np.float32)
    wide, y = np.zeros((size, x.shape[1]), dtype=np.float32), np.zeros(size, dtype=np.float64)
    wide[: len(x)], y[: len(x)] = x, taken.y
    return Cells(wide, y, np.arange(size) < len(x))


def release(
    asked: Asked, sums: list[NDArray[np.int64]], mechanism: MechanismConfig | None, key: bytes | None
) -> Release:
    """Adds to each query's sums the noise of its share; the result is bit for bit the same for the same sums and key.

    Args:
        mechanism: the stored one; None on public data without privacy.
        key: 32 bytes of purpose "release".

    Raises:
        PrivacyError: the mechanism has other queries, or a sum is beyond 2⁵³.
    """
    stds = (0.0,) * len(sums) if mechanism is None else mechanism.noise_stds()
    if len(stds) != len(sums):
        raise PrivacyError("the job's queries and its stored mechanism differ")
    noisy = list[Tensor]()
    for number, (private, std, plan) in enumerate(zip(sums, stds, asked.plans, strict=True)):
        if len(private) and int(np.abs(private).max()) > 2**53:
            raise PrivacyError("a sum is beyond what float64 holds exactly")
        exact = torch.from_numpy(private.astype(np.float64))
        if mechanism is not None:
            if key is None:
                raise PrivacyError("noise needs a key")
            exact = Noise(key, number).add(exact, std * plan.unit)
        noisy.append(exact)
    return Release(tuple(noisy), stds)
