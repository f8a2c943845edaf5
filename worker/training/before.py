"""What a job releases of its training part once, before its first step: the protocol, and which releases a job has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from worker.data.records import Records


@dataclass(frozen=True)
class Released:
    """What came of a release.

    Attributes:
        prepare: what passes see of records from now on, of both parts; None: as they are.
        tensors: handed out with the weights, by name.
    """

    prepare: Callable[[Records], Records] | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Release(Protocol):
    """A statistic of the training part, released once a job."""

    @property
    def charged(self) -> bool:
        """It has noise, and was paid for: under other keys it would be a second release."""
        ...

    def release(self, train: Records, key: bytes, *, data_public: bool) -> Released:
        """Releases it. The same bit for bit for the same records and key.

        Args:
            train: the training records.
            key: 32 bytes of purpose "release", of the job's first segment.

        Raises:
            PrivacyError: private records, and nothing was charged.
        """
        ...
