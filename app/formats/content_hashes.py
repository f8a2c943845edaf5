"""What a registration keeps of its records' contents: a hash of all, and sorted digests where they are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.formats.asked import ParseRequest
from core.contracts.dataset_spec import SplitHoldout
from core.disk import Room
from core.parts.digests import Keys, Messages, MultisetHash, record_digests, records_hmac
from core.parts.sealed import DataKey
from core.parts.sorted_digests import SortedDigests


@dataclass(frozen=True)
class Needs:
    """What has to be known of records' contents beside their hash. Public.

    Attributes:
        split: digests that split off a hold-out, or choose among a user's records.
        units, classes, earlier_hashes: see Contents.
    """

    split: bool
    units: bool
    classes: bool
    earlier_hashes: bool

    @classmethod
    def of(cls, request: ParseRequest, name: str) -> Needs:
        """For one of the two files."""
        spec, has_file = request.spec, request.holdout_file is not None
        is_data, users = name == "file", spec.privacy.user_column is not None
        splits = is_data and isinstance(spec.holdout, SplitHoldout)
        bounds = is_data and users and spec.privacy.max_records_per_user is not None
        is_private = is_data and spec.privacy.sensitivity == "private"
        return cls(
            split=splits or bounds,
            units=has_file or (is_private and not bounds),
            classes=splits and not bounds,
            earlier_hashes=request.earlier_hashes,
        )


class Contents:
    """The contents of a file's records, as they arrive; in memory as SortedDigests says, whatever their number.

    Records are compared as they are stored: numbers in float32, in which two files may agree.

    Args:
        folder, name: where temporary files go, and how they begin.
        room, seal: see SortedDigests.

    Attributes:
        multiset: names all of them.
        units: their digests, where they are compared with those of other files; else None.
        classes: digests under the key of the split, where there is one of records; else None.
        sent: digests of the records as they were sent, where a registration's earlier hash is wanted; else None.
    """

    def __init__(self, folder: Path, name: str, keys: Keys, needs: Needs, room: Room, seal: DataKey | None) -> None:
        self._keys, self._needs = keys, needs
        self.multiset = MultisetHash(keys.content)

        def new(purpose: str, is_needed: bool) -> SortedDigests | None:
            return SortedDigests(folder / f"{name}.{purpose}", room=room, key=seal) if is_needed else None

        self.units, self.classes = new("units", needs.units), new("classes", needs.classes)
        self.sent = new("sent", needs.earlier_hashes)

    def add(self, stored: Messages, sent: Messages) -> NDArray[np.uint64] | None:
        """Adds records: their contents as they are stored, and as they were sent. Returns the digests for the split,
        (n, 2), if it needs them."""
        digests = record_digests(stored, self._keys.content)
        self.multiset.add(digests)
        if self.units is not None:
            self.units.add(digests)
        if self.sent is not None:
            self.sent.add(digests if sent is stored else record_digests(sent, self._keys.content))
        split = record_digests(sent, self._keys.split) if self._needs.split else None
        if self.classes is not None and split is not None:
            self.classes.add(split)
        return split

    @property
    def needs_sent(self) -> bool:
        """Whether `add` looks at the contents as they were sent."""
        return self._needs.split or self._needs.earlier_hashes

    def close(self) -> None:
        """Ends what is added."""
        for digests in self._sorted:
            digests.close()

    def remove(self) -> None:
        """Removes the temporary files."""
        for digests in self._sorted:
            digests.remove()

    def earlier_hmac(self) -> str | None:
        """See app.formats.records_hmac; None if it is not needs."""
        if self.sent is None:
            return None
        return records_hmac((each.repeated() for each in self.sent), self._keys.content)

    @property
    def _sorted(self) -> list[SortedDigests]:
        return [each for each in (self.units, self.classes, self.sent) if each is not None]
