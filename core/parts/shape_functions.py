"""What a linear model of a table has learned of each column: a number for each bin or category, as a table.

The function of a column adds to the model's output: the second of two outputs less the first (answers rise with it, and
undo the clipping: core.privacy.two_class_answers), a class's logit, or the target in its unit. Each is shown less its
mean over the places, as the intercept could hold any constant. All of it follows from the weights: post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from core.contracts.dataset_spec import ClassificationTask, RegressionTask, Task
from core.contracts.shape_function import ShapeFunction
from core.contracts.table import CategoryColumn, DateColumn, NumberColumn, TableFeatures

LINE = ("lowest", "highest")  # the places of a number without bins: the ends of its range


def shape_functions(weight: NDArray[np.float64], features: TableFeatures, task: Task) -> list[ShapeFunction]:
    """Returns the function of each column and each pair, in the order of the declaration.

    Args:
        weight: (outputs, features.width).
    """
    names, outputs = _outputs(weight, task)
    blocks = {column.name: places_of(column) for column in features.columns}
    functions, at = [], 0
    for column in features.columns:
        part = outputs[:, at : at + column.width]
        if not _has_blocks(column):  # a line over the range
            part = part[:, :1] * np.array([-1.0, 1.0])
        functions.append(_function((column.name,), (_labels(column),), names, part))
        at += column.width
    for first, second in features.pairs:
        size = len(blocks[first]) * len(blocks[second])
        functions.append(_function((first, second), (blocks[first], blocks[second]), names, outputs[:, at : at + size]))
        at += size
    return functions


def places_of(column: NumberColumn | DateColumn | CategoryColumn) -> tuple[str, ...]:
    """Names a column's features, in order."""
    if isinstance(column, CategoryColumn):
        return (*map(str, column.values), *(() if column.other is None else (column.other,)))
    if not _has_blocks(column):
        return LINE[:1] if column.width == 1 else (LINE[0], "missing")
    edges = [f"{edge:.4g}" for edge in column.edges] if isinstance(column, NumberColumn) else []
    between = (f"{low} to {high}" for low, high in pairwise(edges))
    missing = ("missing",) if column.missing == "own" else ()
    return (f"below {edges[0]}", *between, f"from {edges[-1]}", *missing)


def _labels(column: NumberColumn | DateColumn | CategoryColumn) -> tuple[str, ...]:
    return places_of(column) if _has_blocks(column) else LINE


def _has_blocks(column: NumberColumn | DateColumn | CategoryColumn) -> bool:
    return isinstance(column, CategoryColumn) or (isinstance(column, NumberColumn) and column.bins is not None)


def _outputs(weight: NDArray[np.float64], task: Task) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names of outputs, and the weights in their units."""
    if isinstance(task, ClassificationTask):
        if len(weight) == 2:
            return (f"score of {task.classes[1]}",), weight[1:] - weight[:1]
        return tuple(f"logit of {each}" for each in task.classes), weight
    scale = (task.range[1] - task.range[0]) / 2.0 if isinstance(task, RegressionTask) and task.range else 1.0
    return (task.label_column or "target",), weight * scale


def _function(
    columns: tuple[str, ...],
    places: Sequence[tuple[str, ...]],
    outputs: tuple[str, ...],
    part: NDArray[np.float64],
) -> ShapeFunction:
    centred = part - part.mean(axis=1, keepdims=True)
    values = tuple(tuple(float(f"{value:.5g}") for value in row) for row in centred)
    return ShapeFunction(columns=columns, places=tuple(places), outputs=outputs, values=values)
