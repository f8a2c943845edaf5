"""Which stored parts an attempt reads: those of its data sets, in the order of their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from app.db.models import Dataset
from worker.messages import Part, Parts

Stored = Mapping[str, str]  # a part as a data set's row names it


def parts_of(root: Path, datasets: Sequence[Dataset], side: Stored | None, *, extracted: bool) -> Parts:
    """The parts of the data sets, which an attempt joins.

    The order of ids is the same in every attempt, so a replay joins the same rows.

    Args:
        root: the storage root.
        side: the training part of the public data set that an optimizer uses.
        extracted: the job reads records through an extractor. Each data set's features are cached in a folder of its
            own, which is deleted with it; those of the public one with the first data set's.
    """
    ordered = sorted(datasets, key=lambda each: each.id)

    def named(part: Stored, dataset: Dataset) -> Part:
        cache = root / "datasets" / dataset.id / "features"
        path = str(root / part["path"])
        return Part(path=path, sha256=part["sha256"], cache_dir=str(cache) if extracted else None)

    train, holdout = (
        tuple(named(each.parts[name], each) for each in ordered if name in each.parts) for name in ("train", "holdout")
    )
    return Parts(train=train, holdout=holdout, public=named(side, ordered[0]) if side else None)
