"""Amazon video games as SASRec prepared it: `user item` a line, in the order of time for each user. Public."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduce.runs import Data
from worker.data.sequence_records import SequenceRecords

LONGEST = 10_000  # events of a user that are counted
CORE = 5  # events that a user needs, among the kept items


def games(file: Path, items: int, *, validation: bool) -> Data:
    """Users with at least `CORE` events among the most popular items; the last event is held out.

    Args:
        file: `user item` a line. It is read where it lies, never copied.
        items: how many of the most popular items are kept. The list is counted on the whole file and is public.
        validation: hold out the last event but one, and leave the last one out.
    """
    events = np.loadtxt(file, dtype=np.int64)
    users, rows = _kept(events[:, 0], events[:, 1], items)
    starts = np.flatnonzero(np.diff(users, prepend=-1))
    ends = np.append(starts[1:], len(users))
    long = ends - starts >= CORE
    starts, ends = starts[long], ends[long] - validation
    features = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": items}}
    return Data(
        task={"kind": "next_item"},
        features=features,
        train=SequenceRecords(rows, starts, ends - 1),
        holdout=SequenceRecords(rows, starts, ends),
        features_count=items,
        outputs=1,
        sparse=True,
    )


def _kept(
    users: NDArray[np.int64], names: NDArray[np.int64], items: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The events with the most popular items: their users, in order, and the items' rows, the most popular first."""
    there, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    row = np.empty(len(there), dtype=np.int32)
    row[np.argsort(-counts, kind="stable")] = np.arange(len(there), dtype=np.int32)
    found = row[inverse]
    order = np.argsort(users, kind="stable")
    order = order[found[order] < items]
    return users[order], found[order]


def popularity(data: Data, k: int, last: int | None = None) -> tuple[float, float]:
    """NDCG and HIT at k of one ranking for everybody: by how often the training sequences have an item.

    Args:
        last: counts only so many of each sequence's last items.
    """
    train, holdout = data.train, data.holdout
    if not isinstance(train, SequenceRecords) or not isinstance(holdout, SequenceRecords):
        raise TypeError("popularity is of sequences")
    ids = train.padded(last or LONGEST).numpy()
    counts = np.bincount(ids[ids > 0] - 1, minlength=data.features_count)
    held = holdout.padded(1).numpy()[:, 0] - 1
    ranks = (counts[None] >= counts[held][:, None]).sum(axis=1)  # ties count against it
    hits = ranks <= k
    return float((hits / np.log2(ranks + 1.0)).mean()), float(hits.mean())
