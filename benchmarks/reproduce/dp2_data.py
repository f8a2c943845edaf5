"""The data of the DP² experiment: IMDB reviews as a hashed bag of words, and MovieLens-100k's ratings."""

from __future__ import annotations

import csv
import hashlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import ROOT, Data
from core.contracts.dataset_spec import HashedText
from core.parts.hashing import hashed
from worker.data.ratings import RatingRecords
from worker.data.records import SparseRecords

sys.path.append(str(ROOT / "scripts"))
from fetch_data import cache_folder, fetch_ratings, fetch_reviews

BUCKETS, USERS, ITEMS = 10_000, 943, 1682
HASHED = {"kind": "hashed_text", "column": "text", "buckets": BUCKETS}
PUBLIC = 0.01  # of the training reviews, set apart as side information: 1 %, as in the paper
HOLDOUT = 0.2


def shares(contents: list[bytes]) -> NDArray[np.float64]:
    """For each record a number in [0, 1) that its content fixes: splits are by it, and the same everywhere."""
    words = [int.from_bytes(hashlib.sha256(b"scrimp/reproduce/" + each).digest()[:8], "big") for each in contents]
    return np.array(words) / 2.0**64


def reviews(*, unit_length: bool = False, words: bool = False) -> Data:
    """25,000 reviews; a fifth is held out by a hash of its text. 1 % of the others are public, and not trained on.

    Args:
        unit_length: rows of length 1, as the service makes them of a registered text; else of zeros and ones.
        words: a column is one of the 10,000 most frequent words of all reviews, as in the paper, and not a bucket.
    """
    matrix, labels, share = _bags(words)
    if not unit_length:
        matrix.data[:] = 1.0

    def part(mask: NDArray[np.bool_]) -> SparseRecords:
        return SparseRecords(matrix[mask], torch.from_numpy(labels[mask]))

    held = share < HOLDOUT
    public = ~held & (share >= 1.0 - PUBLIC * (1.0 - HOLDOUT))
    return Data(
        task={"kind": "classification", "label": "label", "classes": ["0", "1"]},
        features=HASHED,
        train=part(~held & ~public),
        holdout=part(held),
        features_count=BUCKETS,
        outputs=2,
        sparse=True,
        side=part(public),
    )


def _bags(words: bool) -> tuple[Any, NDArray[np.int64], NDArray[np.float64]]:
    """Rows, labels and shares; made once, and kept in the cache."""
    kept = cache_folder() / f"imdb-{'words' if words else 'bags'}-{BUCKETS}.npz"
    if not kept.exists():
        with fetch_reviews().open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        texts = [row["text"] for row in rows]
        x = _frequent_words(texts) if words else hashed(texts, HashedText.model_validate(HASHED))
        labels = np.array([int(row["label"]) for row in rows])
        share = shares([row["text"].encode() for row in rows])
        np.savez(kept, data=x.data, indices=x.indices, indptr=x.indptr, labels=labels, share=share)
    with np.load(kept) as found:
        parts = (found[name] for name in ("data", "indices", "indptr"))
        matrix = scipy.sparse.csr_matrix(tuple(parts), shape=(len(found["labels"]), BUCKETS))
        return matrix, found["labels"], found["share"]


def _frequent_words(texts: list[str]) -> Any:
    """Zeros and ones: which of the most frequent words each text has."""
    from sklearn.feature_extraction.text import CountVectorizer

    matrix = CountVectorizer(max_features=BUCKETS, binary=True, dtype=np.float32).fit_transform(texts)
    matrix.sort_indices()
    return matrix


def on_training(data: Data, records: int = 5000) -> Data:
    """The same, scored on some that it is trained on (the file is sorted by label: on some of all places).

    The paper chooses settings by that.
    """
    return replace(data, holdout=data.train.select(np.linspace(0, len(data.train) - 1, records).astype(np.int64)))


def validating(data: Data, share: float = 0.2) -> Data:
    """A validation split: a share of the training records takes the hold-out's place and is not trained on.

    Settings are chosen by it; the hold-out stays unseen. The file is sorted by label: records of all places are taken.
    """
    every = np.arange(len(data.train))
    held = np.linspace(0, len(every) - 1, round(share * len(every))).astype(np.int64)
    return replace(data, train=data.train.select(np.setdiff1d(every, held)), holdout=data.train.select(held))


def ratings() -> Data:
    """100,000 ratings; a fifth is held out by a hash of user and item."""
    users, items, labels = np.loadtxt(fetch_ratings(), skiprows=1, usecols=(0, 1, 2), dtype=np.int64).T
    share = shares([f"{user}/{item}".encode() for user, item in zip(users, items, strict=True)])

    def part(mask: NDArray[np.bool_]) -> RatingRecords:
        columns = (torch.from_numpy(each[mask]) for each in (users - 1, items - 1, labels))
        user, item, label = columns
        return RatingRecords(user, item, label.double())

    held = share < HOLDOUT
    ids = {name: {"kind": "numbered", "count": count} for name, count in (("users", USERS), ("items", ITEMS))}
    return Data(
        task={"kind": "rating", "scale": [1.0, 5.0]},
        features={"kind": "interactions", "layout": "inter", **ids},
        train=part(~held),
        holdout=part(held),
        features_count=USERS + ITEMS,
        outputs=1,
    )
