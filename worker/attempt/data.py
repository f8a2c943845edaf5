"""Which stored parts an attempt reads: those of its data sets, in the order of their ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.db.models import Dataset
from worker.messages import Part, Parts

Stored = Mapping[str, Any]  # a part as a data set's row names it


def parts_of(
    opened: Callable[[Stored], Path],
    features: Callable[[str], Path] | None,
    datasets: Sequence[Dataset],
    side: Stored | None,
) -> Parts:
    """The parts of the data sets, which an attempt joins.

    The order of ids is the same in every attempt, so a replay joins the same rows.

    Args:
        opened: a part as a file of this machine.
        features: where a data set's features are cached, if the job reads records through an extractor: a folder of the
            data set's own, which is deleted with it; those of the public one with the first data set's.
        side: the training part of the public data set that an optimizer uses.
    """
    ordered = sorted(datasets, key=lambda each: each.id)

    def named(part: Stored, dataset: Dataset) -> Part:
        cache = None if features is None else str(features(dataset.id))
        return Part(path=str(opened(part)), sha256=part["sha256"], cache_dir=cache)

    train, holdout = (
        tuple(named(each.parts[name], each) for each in ordered if name in each.parts) for name in ("train", "holdout")
    )
    return Parts(train=train, holdout=holdout, public=named(side, ordered[0]) if side else None)
