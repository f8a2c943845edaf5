"""Hashed n-grams of words: each text's features depend on that text alone."""

from __future__ import annotations

import numpy as np

from core.contracts.dataset_spec import HashedText
from core.contracts.extractor import Words
from core.parts.stored_records import Csr


def hashed(texts: list[str], features: HashedText | Words) -> Csr:
    """(n, buckets) L2-normalized counts (or presence) of hashed n-grams of words. Nothing is fitted to the data.

    A text without a word becomes the zero vector.
    """
    from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415 - takes a second

    vectorizer = HashingVectorizer(
        n_features=features.buckets,
        ngram_range=tuple(features.ngrams),
        binary=features.binary,
        alternate_sign=False,
        norm="l2",
        dtype=np.float32,
    )
    matrix = vectorizer.transform(texts)
    matrix.sort_indices()
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    return Csr(indptr, indices, matrix.data, (len(texts), features.buckets))
