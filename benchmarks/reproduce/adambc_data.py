"""Reuters R52 as hashed words: 6,532 news to train on, 2,568 to score on, 52 topics of 2,840 down to 1."""

from __future__ import annotations

import csv
import sys

import numpy as np
import scipy.sparse
import torch

from benchmarks.reproduce.runs import ROOT, Data
from core.contracts.dataset_spec import HashedText
from core.parts.hashing import hashed
from worker.data.records import SparseRecords

sys.path.append(str(ROOT / "scripts"))
from fetch_data import fetch_news

BUCKETS = 1024


def news(*, on_training: bool = False) -> Data:
    """As the service would make it of the CSV: presence of hashed words, rows of length 1.

    Args:
        on_training: scored on what it is trained on: settings are chosen by that.
    """
    with fetch_news().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    spec = {"kind": "hashed_text", "column": "text", "buckets": BUCKETS}
    x = hashed([row["text"] for row in rows], HashedText.model_validate(spec))
    matrix = scipy.sparse.csr_matrix((x.data, x.indices, x.indptr), shape=x.shape)
    classes = sorted({row["label"] for row in rows})
    labels = np.array([classes.index(row["label"]) for row in rows])
    test = np.array([row["part"] == "test" for row in rows])
    train, holdout = (SparseRecords(matrix[mask], torch.from_numpy(labels[mask])) for mask in (~test, test))
    return Data(
        task={"kind": "classification", "label": "label", "classes": classes},
        features=spec,
        train=train,
        holdout=train if on_training else holdout,
        features_count=BUCKETS,
        outputs=len(classes),
        sparse=True,
    )
