"""The data of the linear scaling experiment: Fashion-MNIST, as pixels and as frozen features, and hashed IMDB reviews.

All public. Parts of them, so that some thousand runs fit into an hour of one core: the report says which.
"""

from __future__ import annotations

import csv
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import ROOT, Data
from core.contracts.dataset_spec import HashedText
from core.contracts.extractor import ImageInput
from core.parts.hashing import hashed
from worker.data.records import DenseRecords, SparseRecords
from worker.extractors.efficientnet import EfficientNet

sys.path.append(str(ROOT / "scripts"))

PIXELS, FROZEN = 20_000, 8_000  # records: the first ones of Fashion-MNIST, whose order is random
TEST, FROZEN_TEST = 5_000, 2_000
IMAGE_SIZE = 64  # pixels a side that the extractor sees
BUCKETS = 32_768
TENSOR = {"kind": "tensor", "array": "x"}
CLOTHES = {"kind": "classification", "label": "y", "classes": list(range(10))}


def pixels() -> Data:
    """Fashion-MNIST's pixels, 0 … 1, four averaged to one: 14 × 14; 20,000 records, 5,000 of the test part."""
    (x, y), (test_x, test_y) = _fashion(PIXELS), _fashion(TEST, "-test")
    return _dense(_halved(x), y, _halved(test_x), test_y)


def frozen() -> Data:
    """What EfficientNet-Lite0 makes of Fashion-MNIST at 64 × 64: 1,280 features of the first 8,000 records; the next
    2,000 of the training part are held out."""
    x, y = _fashion(FROZEN + FROZEN_TEST)
    made = _features(x, "train")
    return _dense(made[:FROZEN], y[:FROZEN], made[FROZEN:], y[FROZEN:])


def reviews() -> Data:
    """25,000 IMDB reviews in 32,768 hashed words, binary, of length 1; a fifth is held out by a hash of the text."""
    from fetch_data import fetch_reviews

    with fetch_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    made = hashed([row["text"] for row in rows], HashedText(column="text", buckets=BUCKETS))
    matrix = scipy.sparse.csr_matrix((made.data, made.indices, made.indptr), shape=made.shape)
    y = np.array([int(row["label"]) for row in rows])
    held = np.array([hashlib.blake2b(row["text"].encode()).digest()[0] < 256 / 5 for row in rows])
    train, test = (SparseRecords(matrix[mask], torch.from_numpy(y[mask])) for mask in (~held, held))
    return Data(
        task={"kind": "classification", "label": "label", "classes": [0, 1]},
        features={"kind": "hashed_text", "column": "text", "buckets": BUCKETS},
        train=train,
        holdout=test,
        features_count=BUCKETS,
        outputs=2,
        sparse=True,
    )


DATA: dict[str, Callable[[], Data]] = {"imdb": reviews, "pixels": pixels, "frozen": frozen}


def _dense(x: NDArray[Any], y: NDArray[Any], test_x: NDArray[Any], test_y: NDArray[Any]) -> Data:
    train, test = (
        DenseRecords(torch.from_numpy(features), torch.from_numpy(labels))
        for features, labels in ((x, y), (test_x, test_y))
    )
    return Data(
        task=CLOTHES, features=TENSOR, train=train, holdout=test, features_count=x.shape[1], outputs=len(set(y))
    )


def _fashion(records: int, part: str = "") -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from fetch_data import fetch_images

    path = fetch_images()
    with np.load(path.with_name(f"{path.stem}{part}.npz")) as stored:
        return stored["x"][:records].reshape(records, -1), stored["y"][:records]


def _halved(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196))


def _features(x: NDArray[np.float32], part: str) -> NDArray[np.float32]:
    """By the service's own extractor, one record at a time; kept in the cache folder."""
    from add_extractor import fetch_images
    from fetch_data import cache_folder

    kept = cache_folder() / f"fashion-mnist-lite0-{IMAGE_SIZE}-{part}-{len(x)}.npy"
    if kept.exists():
        return np.asarray(np.load(kept))
    folder = cache_folder() / f"efficientnet-lite0-{IMAGE_SIZE}"
    if not folder.exists():
        fetch_images(folder, IMAGE_SIZE)
    sha256 = hashlib.sha256((folder / "extractor.json").read_bytes()).hexdigest()
    extractor = EfficientNet(folder, sha256, ImageInput(height=28, width=28, channels=1))
    made = np.empty((len(x), extractor.features), dtype=np.float32)
    began = time.perf_counter()
    for row, record in enumerate(x):
        made[row] = extractor(record).numpy()
    _save(kept, made)
    print(f"{len(x)} records: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return made


def _save(path: Path, made: NDArray[np.float32]) -> None:
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        np.save(file, made)
    partial.replace(path)
