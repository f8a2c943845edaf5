"""From a raw data file to checked, split, immutable parts. Runs in a helper process (app.sandbox).

file ── reader (csv, parquet, npz, jsonl) ── Records ── checks ── features ── split ── train.npz, holdout.npz
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.dataset_spec import (
    Columns,
    DatasetSpec,
    HashedText,
    LastItemHoldout,
    SplitHoldout,
    rounded,
)
from app.contracts.table import TableFeatures
from app.errors import InvalidRequest
from app.formats import digests, interactions, users
from app.formats.columns import Classes, chunks
from app.formats.digests import Keys
from app.formats.foreign import what_else
from app.formats.readers import reader_of
from app.formats.records import Records
from app.formats.stored import Csr, Features, Pairs, Sequences, StoredPart, Texts, save_part

DEVIATION = 0.1  # the relative deviation from the declared number of records above which the owner is warned


@dataclass(frozen=True)
class Parsed:
    """One file, checked."""

    part: StoredPart
    digests: digests.RecordDigests
    dropped: int = 0  # rows with undeclared ids
    sides: NDArray[np.uint64] | None = None  # the users' sides, if users are split and are not records

    @property
    def records(self) -> int:
        """How many records the part has."""
        return len(self.part.y)

    def select(self, mask: NDArray[np.bool_]) -> StoredPart:
        """The part's records where the mask is True."""
        user = None if self.part.user is None else self.part.user[mask]
        return StoredPart(x=_rows(self.part.x, mask), y=self.part.y[mask], user=user)

    def bounded(self, names: list[str], most: int, keys: Keys) -> Parsed:
        """Keeps at most this many records of each user. Digests still cover the whole file."""
        numbers = users.numbered(names)
        stays = users.kept(numbers, self.digests, most)
        part = replace(self, part=replace(self.part, user=numbers)).select(stays)
        return replace(self, part=part, sides=users.sides(names, keys)[stays])

    def in_holdout(self, fraction: float) -> NDArray[np.bool_]:
        """True for each record that the split holds out."""
        words = self.digests.split if self.sides is None else self.sides
        return digests.in_holdout(digests.RecordDigests(words, words), fraction)


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """Checks a data set's files against its specification, and writes its parts.

    Args:
        request: `spec` (DatasetSpec), `file` and `holdout_file` (paths, the second null but for a public hold-out),
            `output_dir` (an empty folder), `keys` ({"split", "content"}: hex), `max_unpacked_bytes`.

    Returns:
        `parts` ({"train", "holdout"}: {"file", "sha256"}), `features`, `outputs`, `sparse`: public.
        `contents` ([{"part", "kind", "hmac"}]): keyed, for the service.
        `content_sha256`, `counts`, `warnings`: functions of private data, for the owner alone.

    Raises:
        InvalidRequest: a file does not match the specification; columns and counts are named.
    """
    spec = DatasetSpec.model_validate(request["spec"])
    keys = digests.Keys(**{name: bytes.fromhex(key) for name, key in request["keys"].items()})
    files = {name: Path(request[name]) for name in ("file", "holdout_file") if request[name] is not None}
    parsed = {name: _parsed(spec, path, name, keys, request["max_unpacked_bytes"]) for name, path in files.items()}
    data, extra = parsed["file"], parsed.get("holdout_file")
    parts = {"train": data.part}
    if extra is not None:
        if extra.part.shape[1] != data.part.shape[1]:
            detail = f"its records have {extra.part.shape[1]} features, but those of the data have {data.part.shape[1]}"
            raise InvalidRequest.at("/holdout_file", detail)
        parts["holdout"] = extra.part
    elif isinstance(spec.holdout, SplitHoldout):
        mask = data.in_holdout(spec.holdout.fraction)
        parts = {"train": data.select(~mask), "holdout": data.select(mask)}
    elif isinstance(spec.holdout, LastItemHoldout):
        parts = {"train": _without_last(data.part), "holdout": data.part}
    hashes = {name: digests.file_digests(path, keys) for name, path in files.items()}
    return {
        "parts": {name: _saved(Path(request["output_dir"]) / f"{name}.npz", part) for name, part in parts.items()},
        "features": spec.features.numbers(data.part.shape[1]),
        "outputs": spec.task.outputs,
        "sparse": data.part.sparse,
        "contents": [each for name in files for each in _contents(name, hashes[name][1], parsed[name], keys)],
        "content_sha256": hashes["file"][0],
        "counts": _counts(data, extra)
        | {name: parts[name].units if name in parts else 0 for name in ("train", "holdout")},
        "warnings": _warnings(spec, data, extra, parts),
    }


def _parsed(spec: DatasetSpec, path: Path, name: str, keys: digests.Keys, max_unpacked_bytes: int) -> Parsed:
    if spec.format == "interactions":
        table = interactions.new_records(spec, name, max_unpacked_bytes)
        if other := what_else(path, "parquet" if table.layout == "parquet" else "csv"):
            raise table.broken(f"it is {other}")
        interactions.read(path, table)
        table.check()
        return Parsed(table.part(), digests.record_digests(table.contents(), keys), table.dropped)
    records = Records(spec, name, max_unpacked_bytes)
    if other := what_else(path, spec.format):
        raise records.broken(f"it is {other}")
    dialect = {"delimiter": spec.csv.separator} if spec.csv is not None else {}
    import_module(f"app.formats.{reader_of(spec.format).module}").read(path, records, **dialect)
    records.check()
    parsed = _features_and_labels(spec, records, keys)
    most = spec.privacy.max_records_per_user
    if records.users is None or most is None:
        return parsed
    return parsed.bounded(records.users.values, most, keys)


def _features_and_labels(spec: DatasetSpec, records: Records, keys: digests.Keys) -> Parsed:
    y = records.targets()
    labels = digests.label_contents(y, records.labels.names if isinstance(records.labels, Classes) else None)
    if records.texts is not None:
        texts = records.texts.values
        x = hashed(texts, spec.features) if isinstance(spec.features, HashedText) else Texts.of(texts)
        return Parsed(
            StoredPart(x=x, y=y),
            digests.record_digests(digests.text_contents(texts, labels), keys),
        )
    matrix = records.matrix()
    contents = matrix if records.cells is None else records.cells.contents()
    names = spec.features.names if isinstance(spec.features, Columns | TableFeatures) else None
    return Parsed(
        StoredPart(x=_float32(matrix), y=y),
        digests.record_digests(digests.number_contents(contents, names, labels), keys),
    )


def hashed(texts: list[str], features: HashedText) -> Csr:
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


def _float32(matrix: NDArray[Any]) -> NDArray[np.float32]:
    out = np.empty(matrix.shape, dtype=np.float32)
    start = 0
    for rows in chunks(matrix):
        out[start : start + len(rows)] = rows
        start += len(rows)
    return out


def _rows(x: Features, mask: NDArray[np.bool_]) -> Features:
    if isinstance(x, Pairs):
        return Pairs(x.users[mask], x.items[mask], x.sizes)
    if isinstance(x, Texts):
        return Texts.of([text for text, kept in zip(x.texts(), mask.tolist(), strict=True) if kept])
    if isinstance(x, Sequences):
        lengths = np.diff(x.ends, prepend=0)
        return Sequences(x.items[np.repeat(mask, lengths)], np.cumsum(lengths[mask], dtype=np.int64), x.size)
    if not isinstance(x, Csr):
        return x[mask]
    lengths = np.diff(x.indptr)
    cells = np.repeat(mask, lengths)
    indptr = np.concatenate(([0], np.cumsum(lengths[mask]))).astype(np.int64)
    return Csr(indptr, x.indices[cells], x.data[cells], (int(mask.sum()), x.shape[1]))


def _without_last(part: StoredPart) -> StoredPart:
    """The same users, each without the last item."""
    if not isinstance(part.x, Sequences):
        raise InvalidRequest.at("/holdout/kind", "hold-out kind 'last_item' needs a task of kind 'next_item'")
    stays = np.ones(len(part.x.items), dtype=np.bool_)
    stays[part.x.ends - 1] = False
    ends = part.x.ends - np.arange(1, len(part.x.ends) + 1)
    return replace(part, x=Sequences(part.x.items[stays], ends, part.x.size))


def _saved(path: Path, part: StoredPart) -> dict[str, str]:
    return {"file": path.name, "sha256": save_part(path, part)}


def _counts(data: Parsed, extra: Parsed | None) -> dict[str, int]:
    """Counts the records of the data file, its protected units, and what both files leave out: rows with undeclared
    ids, and records of users with too many."""
    over = len(data.digests.content) - data.records
    dropped = data.dropped + over + (extra.dropped if extra else 0)
    return {"records": len(data.digests.content), "dropped": dropped, "units": data.part.units}


def _contents(name: str, file_hmac: str, parsed: Parsed, keys: digests.Keys) -> list[dict[str, str]]:
    part = "data" if name == "file" else "holdout"
    return [
        {"part": part, "kind": "file", "hmac": file_hmac},
        {"part": part, "kind": "records", "hmac": digests.records_hmac(parsed.digests, keys)},
    ]


def _warnings(spec: DatasetSpec, data: Parsed, extra: Parsed | None, parts: dict[str, StoredPart]) -> list[str]:
    warnings = []
    declared, found = spec.privacy.records, data.part.units
    noun = "records" if data.part.user is None else "users"
    if declared is not None and abs(found - declared) > DEVIATION * declared:
        warnings.append(
            f"the file holds {found} {noun}; you declared {declared}: sampling rates, step sizes and scores use the "
            "declared number"
        )
    if declared == found != rounded(found):
        warnings.append(
            f"you declared the exact number of {noun}, {found}, which makes it public: a rounded one, such as "
            f"{rounded(found)}, shows less"
        )
    dropped = len(data.digests.content) - data.records
    if dropped:
        warnings.append(f"{dropped} records of users with more than {spec.privacy.max_records_per_user} are left out")
    warnings += [f"the {name} part holds no record" for name, part in parts.items() if not len(part.y)]
    if extra is not None:
        known = set(map(bytes, data.digests.content))
        common = sum(bytes(each) in known for each in extra.digests.content)
        if common:
            warnings.append(
                f"{common} records of the hold-out file are also in the data: scores on it will be too high"
            )
    return warnings
