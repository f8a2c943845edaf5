"""What a data set's owner declared, in words. Each kind of task and of features has its own; mypy names a new one."""

from __future__ import annotations

from typing import assert_never

from markupsafe import Markup

from app.dashboard.numbers import integer
from core.contracts.dataset_spec import (
    ClassificationTask,
    Columns,
    Features,
    HashedText,
    Interactions,
    LanguageModelTask,
    NextItemTask,
    NodeColumns,
    RatingTask,
    RegressionTask,
    Task,
    Tensor,
    Text,
)
from core.contracts.table import TableFeatures


def features_in_words(features: Features, rows: int) -> Markup:
    """The features of a data set.

    Args:
        rows: of the model, one for each declared id.
    """
    match features:
        case HashedText():
            source = Markup("hashed text of <code>{}</code>, {} buckets").format(
                features.column, integer(features.buckets)
            )
        case Text():
            source = Markup("texts of <code>{}</code>").format(features.column)
        case Interactions():
            source = Markup("{}items, {} rows").format("users and " if features.users else "", integer(rows))
        case NodeColumns():
            buckets = integer(features.keep)
            source = Markup("{} columns of a graph's nodes, and {} of each one's list").format(
                len(features.columns), buckets
            )
        case Columns() | TableFeatures():
            source = Markup("{} columns").format(len(features.names))
        case Tensor() if features.image is not None:
            shape = features.image
            source = Markup("images, {} × {} pixels, {} channels").format(shape.width, shape.height, shape.channels)
        case Tensor():
            source = Markup("array <code>{}</code>").format(features.array)
        case _:
            assert_never(features)
    return source


def task_in_words(task: Task) -> Markup:
    """What is predicted."""
    match task:
        case ClassificationTask():
            classes = len(task.classes)
            label = Markup("classification, label <code>{}</code>, {} classes").format(task.label, classes)
        case RegressionTask():
            label = Markup("regression, label <code>{}</code>").format(task.label)
        case RatingTask():
            label = Markup("rating, <code>{}</code> of each user's <code>{}</code>").format(task.rating, task.item)
        case NextItemTask():
            label = Markup("next_item, each user's <code>{}</code> by <code>{}</code>").format(task.item, task.time)
        case LanguageModelTask() if task.prompt is not None:
            label = Markup("language_model, of answers to <code>{}</code>").format(task.prompt)
        case LanguageModelTask():
            label = Markup("language_model")
        case _:
            assert_never(task)
    return label
