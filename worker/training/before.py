"""Statistics of the training part, released once before a job's first step: the protocol, and a job's releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from worker.data.records import Records

Prepare = Callable[[Records], Records]  # transforms records


@dataclass(frozen=True)
class Released:
    """The result of a release.

    Attributes:
        prepare: transforms the records that passes see from now on, in both parts; None: unchanged.
        tensors: published with the weights, by name.
    """

    prepare: Prepare | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Release(Protocol):
    """A statistic of the training part, released once per job."""

    @property
    def charged(self) -> bool:
        """True if it has noise and was paid for: under other keys it would be a second release."""
        ...

    def release(self, train: Records, key: bytes, *, data_public: bool) -> Released:
        """Releases it. The result is bit for bit the same for the same records and key.

        Args:
            train: the training records.
            key: 32 bytes of purpose "release", of the job's first segment.

        Raises:
            PrivacyError: the records are private and nothing was charged.
        """
        ...
