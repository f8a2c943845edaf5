"""What a selection of random size draws in secret: how many runs count, each run's keys and its learning rate.

All follows from the attempt's own keys, so that a retry draws the same. None of it may leave but the best run's rate.

Source: decision 72; HKDF: RFC 5869.
"""

from __future__ import annotations

import math
from itertools import accumulate

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from core.contracts.hpo import Space
from core.errors import PrivacyError
from worker.messages import Keys, Segment
from worker.noise.attempt_keys import KEY_BYTES, checked_key

WORD = 2**64
DIGITS = 6  # of a rate: another machine's logarithm draws the same one


def keys_of_run(keys: Keys, number: int) -> Segment:
    """A run's own keys, one for each purpose: without the attempt's they look independent."""
    derived = {
        name: _bytes_for(value, f"run/{number}").hex() for name, value in keys.model_dump().items() if _is_key(name)
    }
    return Segment(from_step=1, **derived)


def hidden_size(keys: Keys, weights: tuple[int, ...]) -> int:
    """K, with P(K = k) exactly the k-th weight over their sum. Its work is the same for every K.

    Args:
        keys: the attempt's.
        weights: of K = 1, 2, …; whole numbers.
    """
    total, number = sum(weights), 0
    if not 0 < total < WORD:
        raise PrivacyError("the weights of a selection must be positive, and fit in a word")
    while (word := _word(keys, f"size/{number}")) >= WORD - WORD % total:
        number += 1
    drawn = word % total
    return 1 + sum(drawn >= upto for upto in accumulate(weights))


def hidden_rate(keys: Keys, space: Space) -> float:
    """A run's learning rate: uniform in its logarithm, or over the points of a log grid.

    Args:
        keys: the run's own.
    """
    (lower, upper), unit = space.rates, ((_word(keys, "rate") >> 11) + 0.5) * 2.0**-53
    points = space.points.learning_rate if space.points is not None else None
    if points is not None:
        unit = math.floor(unit * points) / max(points - 1, 1)
    drawn = math.exp(math.log(lower) + unit * (math.log(upper) - math.log(lower)))
    return min(max(float(f"{drawn:.{DIGITS}g}"), lower), upper)


def _is_key(name: str) -> bool:
    return name.endswith("_key")


def _word(keys: Keys, purpose: str) -> int:
    return int.from_bytes(_bytes_for(keys.release_key, purpose)[:8], "big")


def _bytes_for(key: str, purpose: str) -> bytes:
    info = f"scrimp/v1/selection/{purpose}".encode()
    return HKDFExpand(SHA256(), KEY_BYTES, info).derive(checked_key(bytes.fromhex(key)))
