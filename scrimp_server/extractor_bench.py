"""Which extractor's features make the best linear probe of a public data set: cross-validated, by the service's code.

Nothing is charged, so nothing private is read: a data set that is not declared public is refused before its file is
opened.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sqlalchemy import or_, select

from app.catalogue import extractors
from app.db.database import Database
from app.db.models import Dataset
from app.settings import Settings
from app.storage import parts
from app.storage.seals import Seals
from core.contracts.dataset_spec import DatasetSpec, Tensor, Text
from core.contracts.extractor import HASHED_WORDS, ImageInput, Words
from core.parts.part_files import load_part
from core.parts.sealed import DataKey
from core.parts.stored_records import Csr, StoredPart, Texts
from scrimp_server.inline import Data, run
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.extractors.features import Kept, extracted
from worker.extractors.words import hashed_words

DELTA = 1e-5
SETTLED = 300  # steps without privacy, which are free
NUMBERS = "none"  # in an extractor's place: arrays as they are


class BenchRefusedError(Exception):
    """Why a data set cannot be measured, in words for the operator."""


@dataclass(frozen=True)
class Public:
    """A public data set's records, and where the features of all of them are cached, and sealed under which key."""

    spec: DatasetSpec
    part: StoredPart
    sha256: str
    cache: Path
    classes: int
    seal: DataKey | None = None


@dataclass(frozen=True)
class Score:
    """Accuracy over the folds: mean and standard deviation. `epsilon` None: without privacy."""

    epsilon: float | None
    mean: float
    deviation: float


@dataclass(frozen=True)
class Row:
    """An extractor's scores.

    Attributes:
        features: how many its vectors have.
        milliseconds: of processor time, for each record's features; None if they were cached.
    """

    extractor: str
    features: int
    milliseconds: float | None
    scores: tuple[Score, ...]


@contextmanager
def opened(db: Database, settings: Settings, name: str, records: int | None) -> Iterator[Public]:
    """The training records of a public data set: all, or so many of them at random. Public data have no blocks.

    Raises:
        BenchRefusedError: there is none, it is not public, or it is nothing that an extractor reads and a probe learns.
        DataDamagedError: its content is missing or differs from the registered one.
    """
    with db.read() as session:
        row = session.scalar(select(Dataset).where(or_(Dataset.id == name, Dataset.name == name)))
        if row is None:
            raise BenchRefusedError(f"there is no data set {name!r}")
        if row.sensitivity != "public":
            raise BenchRefusedError(
                f"{name} is private: every number computed from it is charged, and this command charges nothing. "
                "Compare extractors on a public data set of the same kind, or by a study's jobs"
            )
        spec = DatasetSpec.model_validate(row.spec)
        part, id_, classes = row.parts.train, row.id, row.shape.outputs
        if part is None:
            raise BenchRefusedError(f"the content of {name!r} was deleted")
    if not spec.task.is_classification or not isinstance(spec.features, Text | Tensor):
        raise BenchRefusedError(f"{name} has no classes, or neither texts nor images: an extractor reads nothing of it")
    part_store = parts.of(settings)
    with part_store.held(part.path, part.sha256) as path:
        seal = Seals(settings).key_of(path)
        stored = load_part(path, part.sha256, None if seal is None else seal.key)
        if records is None or records >= len(stored.y):
            yield Public(spec, stored, part.sha256, part_store.features(id_), classes, seal)
            return
        rows = np.sort(np.random.default_rng(0).permutation(len(stored.y))[:records])
        yield Public(spec, _chosen(stored, rows), f"{part.sha256}/{records}", Path(), classes)


def fitting(public: Public, models_root: Path | None) -> dict[str, extractors.Extractor | None]:
    """The extractors that read the data set's records, by name; None: built in."""
    texts = isinstance(public.spec.features, Text)
    kind = "text" if texts else "tensor"
    built_in = HASHED_WORDS if texts else NUMBERS
    return {built_in: None} | {each.name: each for each in extractors.every(models_root) if each.takes == kind}


def bench(
    public: Public,
    models_root: Path | None,
    names: Sequence[str],
    epsilons: Sequence[float],
    folds: int,
    image: ImageInput | None,
) -> Iterator[Row]:
    """Yields a row for each extractor that reads the data set's records.

    Args:
        names: of the extractors, NUMBERS for arrays as they are; none: all that fit.
        epsilons: of the private probes, beside the one without privacy.
        image: how records are images; None: as the data set declares.

    Raises:
        BenchRefusedError: no extractor fits, or images have no form.
    """
    texts = isinstance(public.spec.features, Text)
    fit = fitting(public, models_root)
    strange = [name for name in names if name not in fit]
    if strange:
        raise BenchRefusedError(f"no extractor {', '.join(strange)} reads these records; there are: {', '.join(fit)}")
    form = None if texts or names == [NUMBERS] else (image or declared_image(public.spec))
    with tempfile.TemporaryDirectory() as scratch:
        cache = public.cache if public.cache != Path() else Path(scratch)
        for name in names or fit:
            began, files_before = time.process_time(), set(cache.glob("*.arrow"))
            features, length = _made(public, fit[name], cache, form)
            spent = (time.process_time() - began) * 1e3 / max(1, len(public.part.y))
            fresh = name == NUMBERS or set(cache.glob("*.arrow")) != files_before
            print(f"{name}: features are ready", file=sys.stderr, flush=True)
            scores = tuple(cross_validated(public, features, length, each, folds) for each in (None, *epsilons))
            yield Row(name, features.shape[1], round(spent, 2) if fresh else None, scores)


def _made(
    public: Public, one: extractors.Extractor | None, cache: Path, form: ImageInput | None
) -> tuple[StoredPart, float]:
    """The records' features, and about how long they are. None in the extractor's place: the built-in ones."""
    cache_kept = Kept(seal=public.seal)
    if one is not None:
        features = extracted(
            public.part, public.sha256, one.folder, one.sha256, cache, lambda: None, form, storage=cache_kept
        )
        length = one.manifest.length
    elif isinstance(public.spec.features, Text):
        words = Words()
        features = hashed_words(public.part, public.sha256, extractors.WORDS_SHA256, words, cache, storage=cache_kept)
        length = 1.0
    else:
        features, length = public.part, public.spec.features.length(public.part.shape[1])
    if not isinstance(features, StoredPart):
        raise BenchRefusedError("these features do not fit memory")
    return features, length


def declared_image(spec: DatasetSpec) -> ImageInput:
    """How a data set's arrays are images.

    Raises:
        BenchRefusedError: it does not say.
    """
    declared = spec.features.image if isinstance(spec.features, Tensor) else None
    if declared is None:
        raise BenchRefusedError("the data set does not say how its arrays are images: give --image")
    return ImageInput(height=declared.height, width=declared.width, channels=declared.channels)


def cross_validated(public: Public, features: StoredPart, length: float, epsilon: float | None, folds: int) -> Score:
    """A linear probe at the rate from public numbers, judged by the fold that it did not see."""
    order = np.random.default_rng(1).permutation(len(features.y))
    scores = []
    for fold in range(folds):
        held_out = np.sort(order[fold::folds])
        training = np.setdiff1d(order, held_out)
        data = Data(
            task=public.spec.task.model_dump(mode="json"),
            features=_features(features, length),
            train=_records(features, training),
            holdout=_records(features, held_out),
            features_count=features.shape[1],
            outputs=public.classes,
            sparse=features.sparse,
        )
        scores.append(run(data, _probe(epsilon), seed=fold).last("accuracy"))
    return Score(epsilon, round(statistics.mean(scores), 5), round(statistics.stdev(scores), 5))


def _probe(epsilon: float | None) -> dict[str, Any]:
    return {
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA} if epsilon else None,
        "optimizer": {"kind": "dp_sgd", "momentum": 0.9, "free_step": bool(epsilon)},
        "length": {"steps": "auto" if epsilon else SETTLED},
        "evaluation": {},
    }


def _features(features: StoredPart, length: float) -> dict[str, Any]:
    if features.sparse:
        return {"kind": "hashed_text", "column": "text", "buckets": features.shape[1]}
    return {"kind": "tensor", "array": "x", "typical_length": length}


def _records(features: StoredPart, rows: NDArray[np.int64]) -> Records:
    labels = torch.from_numpy(features.y[rows])
    if isinstance(features.x, Csr):
        matrix = scipy.sparse.csr_matrix(
            (features.x.data, features.x.indices, features.x.indptr), shape=features.x.shape
        )
        return SparseRecords(matrix[rows], labels)
    return DenseRecords(torch.from_numpy(np.ascontiguousarray(features.x[rows])), labels)  # type: ignore[index]


def _chosen(stored: StoredPart, rows: NDArray[np.int64]) -> StoredPart:
    if isinstance(stored.x, Texts):
        texts = list(stored.x.texts())
        return replace(stored, x=Texts.of([texts[row] for row in rows]), y=stored.y[rows])
    return replace(stored, x=stored.x[rows], y=stored.y[rows])  # type: ignore[index]
