"""Sequences in memory: each record has its items' rows, in order. Private if the data set is."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.data.passes import Batch, Cuttable, gathered, gathered_array, moved
from worker.data.placed import CPU


class SequenceRecords(Cuttable["SequenceRecords"]):
    """n sequences of any lengths.

    Args:
        items: int32 (rows,), one record after the other.
        starts, ends: int64 (n,), each record's range in `items`.
        labels: (n,); None: each record is its own label.
        device: of `windows` and `padded`.
    """

    def __init__(
        self,
        items: NDArray[np.int32],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        labels: Tensor | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._items, self._starts, self._ends, self._device = items, starts, ends, device
        self.labels = torch.zeros(len(ends), dtype=torch.float64, device=device) if labels is None else labels

    def __len__(self) -> int:
        return len(self._ends)

    def select(self, indices: NDArray[np.int64]) -> SequenceRecords:
        """The records at these indices, in their order."""
        at = moved(torch.from_numpy(indices), self.labels.device)
        return SequenceRecords(self._items, self._starts[indices], self._ends[indices], self.labels[at], self._device)

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> SequenceRecords:
        """See Cuttable.piece. Padding rows are empty sequences."""
        starts, ends = (gathered_array(each, places) for each in (self._starts, self._ends))
        return SequenceRecords(self._items, starts, ends, gathered(self.labels, places), self._device)

    def to(self, device: torch.device) -> SequenceRecords:
        """The same records, whose windows are on a device. The items stay on the processor: they are small."""
        return SequenceRecords(self._items, self._starts, self._ends, moved(self.labels, device), device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The labels."""
        return (self.labels,)

    def without_seen(self, scores: Tensor) -> Tensor:
        """The scores (n, M + 1), item i in column i + 1, with −∞ for all items before each record's last one."""
        lengths = np.maximum(self._ends - self._starts - 1, 0)
        rows = np.repeat(np.arange(len(self)), lengths)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        seen = self._items[np.repeat(self._starts, lengths) + within].astype(np.int64) + 1
        left = scores.clone()
        left[moved(torch.from_numpy(rows), scores.device), moved(torch.from_numpy(seen), scores.device)] = -torch.inf
        return left

    def item_counts(self, items: int, length: int) -> Tensor:
        """How many records have each declared item among the inputs of `windows(length)`: float64 (items,).

        A record counts at most once for an item, and for at most `length` items. Private.
        """
        ids = self.windows(length)[0].cpu().numpy()
        rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
        distinct = np.unique(rows[ids > 0] * np.int64(items) + ids[ids > 0] - 1)
        return torch.from_numpy(np.bincount(distinct % items, minlength=items).astype(np.float64))

    def windows(self, length: int) -> tuple[Tensor, Tensor]:
        """The last items, and the successor of each: int64 (n, length) each, item i as i + 1, padded with 0.

        All have one length, so that no step's time reveals its sequences' lengths.
        """
        ids = self.padded(length + 1)
        targets = ids[:, 1:]
        return torch.where(targets != 0, ids[:, :-1], 0), targets

    def kept(self, places: NDArray[np.bool_], times: int) -> SequenceRecords:
        """Every record `times` times, one after the other: its last items, where `places` (each · n, length) is true.

        The first and the last of a record's items stay in any case.
        """
        length = places.shape[1]
        ids = self.padded(length).cpu().numpy().repeat(times, axis=0)
        present = ids != 0
        last = np.maximum(present.sum(axis=1), 1) - 1
        places_used = places.copy()
        places_used[:, 0] = True
        places_used[np.arange(len(last)), last] = True
        places_used &= present
        ends = np.cumsum(places_used.sum(axis=1), dtype=np.int64)
        items = (ids[places_used] - 1).astype(np.int32)
        return SequenceRecords(items, np.append(0, ends)[:-1], ends, self.labels.repeat_interleave(times), self._device)

    def padded(self, length: int) -> Tensor:
        """The last items, int64 (n, length): item i as i + 1, padded with 0."""
        lengths = np.minimum(self._ends - self._starts, length)[:, None]
        places = np.arange(length)
        present = places < lengths
        at = np.where(present, self._ends[:, None] - lengths + places, 0)
        items = np.where(present, self._items[at], -1) if len(self._items) else np.full(present.shape, -1)
        return moved(torch.from_numpy(items.astype(np.int64) + 1), self._device)


COUNTED_ROWS = 4096  # sequences that are counted together


def item_counts(batch: Batch[SequenceRecords], items: int, length: int) -> Tensor:
    """See SequenceRecords.item_counts: of all rows of a batch. Empty rows have no items."""
    total = torch.zeros(items, dtype=torch.float64)
    for part in batch.passes(COUNTED_ROWS, torch.float64):
        total += part.records.item_counts(items, length)
    return total
