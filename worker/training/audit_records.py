"""Synthetic records for an audit: random ones of the form that a model takes, made of public words alone.

A record is a function of its number, the job's id and what the data set declares. None is made from a private record.
Each form is a class, and `form_of` says which models take it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.audit import WORDS
from core.contracts.dataset_spec import Features
from core.contracts.dataset_spec import Tensor as Array
from core.contracts.job_spec import LinearModel
from core.contracts.job_spec import Model as Requested
from core.contracts.table import CategoryColumn, TableFeatures
from core.parts.table_cells import expanded
from core.privacy.canary_bound import public_words
from worker.data.ratings import RatingRecords
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Model
from worker.models.hf.hf_model import HfTuning
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.next_item import NextItem

LARGE_TARGET = 1e6  # of a regression: a residual as long stays longer than C
DOTS = 8  # of an image one value in so many is 1, the others are 0


@dataclass(frozen=True)
class Draws:
    """The random numbers of a job's canaries. Those of one do not depend on how many there are."""

    job_id: str
    canaries: int

    def below(self, purpose: str, limit: int, times: int = 1) -> NDArray[np.int64]:
        """(canaries, each) whole numbers, uniform below `limit`."""
        words = public_words(self.job_id, purpose, self.canaries * times)
        return (words % np.uint64(limit)).astype(np.int64).reshape(self.canaries, times)

    def signs(self, purpose: str, times: int = 1) -> NDArray[np.float32]:
        """(canaries, each) of −1 and 1."""
        count = self.canaries * times
        bits = np.unpackbits(public_words(self.job_id, purpose, -(-count // 64)).astype("<u8").view(np.uint8))
        return 2.0 * bits[:count].reshape(self.canaries, times).astype(np.float32) - 1.0

    def labels(self, model: Model) -> Tensor:
        """A class of each canary; in a regression a target beyond all others."""
        if model.classification:
            return torch.from_numpy(self.below("labels", model.outputs)[:, 0])
        return torch.from_numpy(LARGE_TARGET * self.signs("labels")[:, 0].astype(np.float64))


class Form(Protocol):
    """A form of records."""

    def records(self, draws: Draws) -> Records:
        """One record for each canary."""
        ...


@dataclass(frozen=True)
class Vectors:
    """Vectors of a typical length, in random directions of equal parts: ± length/√d."""

    model: Model
    length: float

    def records(self, draws: Draws) -> Records:
        """See Form."""
        d = self.model.features
        features = draws.signs("features", d) * np.float32(self.length / math.sqrt(d))
        return DenseRecords(torch.from_numpy(features), draws.labels(self.model))


@dataclass(frozen=True)
class Images:
    """Black images with random white dots."""

    model: Model

    def records(self, draws: Draws) -> Records:
        """See Form."""
        dots = draws.below("features", DOTS, self.model.features) == 0
        return DenseRecords(torch.from_numpy(dots.astype(np.float32)), draws.labels(self.model))


@dataclass(frozen=True)
class Rows:
    """Rows of a table: numbers and days at random ends of their range, and any declared value."""

    model: Model
    features: TableFeatures

    def records(self, draws: Draws) -> Records:
        """See Form."""
        cells = np.empty((draws.canaries, len(self.features.columns)))
        for place, column in enumerate(self.features.columns):
            if isinstance(column, CategoryColumn):
                cells[:, place] = draws.below(f"cells/{place}", len(column.values))[:, 0]
            else:
                low, high = column.ends or (-1.0, 1.0)
                cells[:, place] = np.where(draws.signs(f"cells/{place}")[:, 0] > 0.0, high, low)
        return DenseRecords(torch.from_numpy(expanded(cells, self.features)), draws.labels(self.model))


@dataclass(frozen=True)
class HashedWords:
    """Texts of random words, as features of length 1."""

    model: Model

    def records(self, draws: Draws) -> Records:
        """See Form."""
        places = draws.below("words", self.model.features, WORDS)
        values, ends = np.full(places.size, 1.0 / math.sqrt(WORDS)), WORDS * np.arange(draws.canaries + 1)
        shape = (draws.canaries, self.model.features)
        return SparseRecords(scipy.sparse.csr_matrix((values, places.ravel(), ends), shape), draws.labels(self.model))


@dataclass(frozen=True)
class Ratings:
    """A random pair, rated at a random end of the scale."""

    model: MatrixFactorization

    def records(self, draws: Draws) -> Records:
        """See Form."""
        users, items = (
            torch.from_numpy(draws.below(purpose, limit)[:, 0])
            for purpose, limit in (("users", self.model.users), ("items", self.model.items))
        )
        low, high = self.model.scale
        rated = torch.from_numpy(draws.signs("labels")[:, 0]) > 0.0
        return RatingRecords(users, items, torch.where(rated, high, low).double())


@dataclass(frozen=True)
class Symbols:
    """Random sequences of items or tokens, as long as a model reads.

    Attributes:
        symbols: how many declared items, or tokens of the vocabulary, there are.
        length: of each sequence.
    """

    model: Model
    symbols: int
    length: int

    def records(self, draws: Draws) -> Records:
        """See Form. Of a prompt's tokens none is left out: its answer begins with the second one."""
        items = draws.below("symbols", self.symbols, self.length).astype(np.int32).ravel()
        ends = self.length * np.arange(1, draws.canaries + 1)
        labels = draws.labels(self.model) if self.model.classification else torch.zeros(len(ends), dtype=torch.float64)
        return SequenceRecords(items, ends - self.length, ends, labels)


def form_of(model: Model, settings: Requested, features: Features, *, sparse: bool) -> Form:
    """The form of the records that a model takes.

    Args:
        settings: the job's settings of the model.
        sparse: features are sparse.
    """
    if isinstance(model, MatrixFactorization):
        return Ratings(model)
    if isinstance(model, NextItem):
        return Symbols(model, model.items, model.spec.max_length + 1)
    if isinstance(model, HfTuning) and not model.of_images:
        return Symbols(model, model.vocabulary, model.spec.max_length + (not model.classification))
    return HashedWords(model) if sparse else _dense(model, settings, features)


def _dense(model: Model, settings: Requested, features: Features) -> Form:
    extractor = settings.extractor if isinstance(settings, LinearModel) else None
    if extractor is not None:
        return Vectors(model, extractor.length or math.sqrt(model.features) / 2.0)
    if isinstance(features, TableFeatures):
        return Rows(model, features)
    if isinstance(features, Array) and features.image is not None:
        return Images(model)
    return Vectors(model, features.length(model.features))
