"""Fits a preset to a data set: a recipe knows neither its records nor its hold-out; both are public."""

from __future__ import annotations

from typing import Any

from scrimp.models import Dataset

TARGET_STD = 0.01  # a point of accuracy: smaller differences between models are seldom real
# noise_mu of the score, least and most. The hold-out has an account of its own; on the training part the score is paid
# from the same total as the training.
BOUNDS = {"holdout": (0.01, 0.05), "train": (0.01, 0.02)}


def fitted(recipe: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Returns a recipe whose evaluation suits a data set: on its hold-out if it has one, else on the training part.

    The noise is about ± TARGET_STD of accuracy at the public number of scored records, within BOUNDS.

    Args:
        recipe: a preset's JobSpec; one without an evaluation is returned as it is.
    """
    if recipe.get("evaluation") is None:
        return recipe
    on = "holdout" if dataset.holdout is not None else "train"
    records = dataset.shape.records_holdout if on == "holdout" else dataset.shape.records_train
    least, most = BOUNDS[on]
    noise_mu = min(max(1.0 / (TARGET_STD * max(records, 1)), least), most)
    return recipe | {"evaluation": recipe["evaluation"] | {"on": on, "noise_mu": float(f"{noise_mu:.2g}")}}
