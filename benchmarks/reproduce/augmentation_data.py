"""The data of the experiment on augmentation: Fashion-MNIST at 14 × 14, and hashed IMDB reviews."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from benchmarks.reproduce.linear_scaling_data import CLOTHES, TENSOR, pixels
from benchmarks.reproduce.rate_data import data
from benchmarks.reproduce.runs import Data

FITTED, VALIDATED, TESTED = 3_000, 1_000, 2_000  # images
TEXTS, TEXTS_VALIDATED = 6_000, 2_000


@cache
def images() -> tuple[Data, Data]:
    """Judged by the validation part, and by records of the test part; both fitted on the same images."""
    them = pixels()
    train = them.train.select(np.arange(FITTED))
    places = (np.arange(FITTED, FITTED + VALIDATED), np.arange(TESTED))
    made = [
        Data(CLOTHES, TENSOR, train, source.select(at), 196, 10)
        for source, at in zip((them.train, them.holdout), places, strict=True)
    ]
    return made[0], made[1]


@cache
def texts() -> tuple[Data, Data]:
    """As `images`, of reviews in a random order; judged in the end by all held-out reviews."""
    them = data("imdb")
    order = np.random.default_rng(0).permutation(len(them.train))
    fitted = replace(them, train=them.train.select(order[:TEXTS]))
    return replace(fitted, holdout=them.train.select(order[TEXTS : TEXTS + TEXTS_VALIDATED])), fitted
