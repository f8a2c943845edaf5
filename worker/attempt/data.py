"""Which stored parts an attempt reads: those of its data sets, in the order of their ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.db.declared import Declared
from app.db.models import Dataset
from app.formats.damage import DataDamagedError
from worker.messages import Part, Parts

Stored = Mapping[str, Any]  # a part as a data set's row names it


def shape_of(said: Declared, dataset_id: str, datasets: Sequence[Dataset]) -> dict[str, Any]:
    """The public sizes of what a job reads: its blocks' declared sizes add up, and the widths are its data set's.

    Args:
        said: the declaration that the job was priced with; it holds the sizes of the data set's own block.
    """
    shapes = [said.shape if each.id == dataset_id else each.shape for each in datasets]
    return said.shape | {name: sum(each[name] for each in shapes) for name in ("records_train", "records_holdout")}


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

    Raises:
        DataDamagedError: one has no training part: the job would read less than its rate says.
    """
    ordered = sorted(datasets, key=lambda each: each.id)
    if any("train" not in each.parts for each in ordered):
        raise DataDamagedError("a stored part of the data set was deleted")

    def named(part: Stored, dataset: Dataset) -> Part:
        cache = None if features is None else str(features(dataset.id))
        return Part(path=str(opened(part)), sha256=part["sha256"], cache_dir=cache)

    train, holdout = (
        tuple(named(each.parts[name], each) for each in ordered if name in each.parts) for name in ("train", "holdout")
    )
    return Parts(train=train, holdout=holdout, public=named(side, ordered[0]) if side else None)
