"""From a raw data file to checked, split, immutable parts. Runs in a helper process (app.sandbox.limited).

file ── reader (csv, parquet, …) ── blocks of columns ── checks ── features ── split ── train.arrow, holdout.arrow

A file is read once, in pieces, and never held whole. An Arrow file's piece is one of its record batches; interaction
tables are ordered in memory. Of other records nothing is held but, in temporary files, sorted digests
(core.parts.sorted_digests). Where users' records are bounded it is 24 bytes a record, and four times that at the end;
the records wait in a file until all users are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app import progress
from app.formats import interactions
from app.formats.asked import (
    ContentHash,
    ParsedFiles,
    ParseRequest,
    PartCount,
    PartCounts,
    SealedPart,
    SealKey,
    WrittenParts,
)
from app.formats.content_hashes import Contents, Needs
from app.formats.edge_lists import Lists
from app.formats.edges import Edges
from app.formats.foreign import what_else
from app.formats.ingest import Bounded, Earlier, Parts, Piece, Split
from app.formats.reader_records import Records, Table, Taken
from app.formats.readers import reader_of
from app.formats.user_sequences import History, new_records
from core.contracts.blocks import UNITS
from core.contracts.dataset_spec import (
    Columns,
    DatasetSpec,
    Features,
    HashedText,
    LastItemHoldout,
    NodeColumns,
    SplitHoldout,
)
from core.contracts.memory import in_memory, record_bytes
from core.contracts.slots import Slots, rounded
from core.contracts.stored_documents import Counts
from core.contracts.table import TableFeatures
from core.disk import Room, is_full
from core.errors import InvalidRequest, StorageFull
from core.parts import digests, unit_digests
from core.parts.columns import chunks
from core.parts.digests import Keys, Messages
from core.parts.hashing import hashed
from core.parts.layout import Layout
from core.parts.sealed import DataKey, Named, readable
from core.parts.sorted_digests import Ascending, common, squares
from core.parts.stored_records import StoredPart, Texts
from core.parts.unit_digests import Saved

LAST = "\U0010ffff"  # behind every column's name
DEVIATION = 0.1  # the relative deviation from the declared number of records above which the owner is warned
UNPACKED_FREELY_BYTES = 2**26  # whatever the ratio: it takes seconds to read


@dataclass(frozen=True)
class Output:
    """Where parts go, and under which keys.

    Attributes:
        folder: an empty one.
        keys: for the split, and for digests of contents.
        seal: seals all files.
        slots: see ParseRequest.
        earlier: the blocks before this one.
        room: what they leave of the disk.
    """

    folder: Path
    keys: Keys
    seal: DataKey | None
    slots: Slots | None
    earlier: Earlier
    room: Room


@dataclass
class Parsed:
    """One file, checked and written.

    Attributes:
        contents: what is known of its records' contents. Private.
        save_units: writes the file of its protected units; see core.parts.unit_digests.
        dropped: rows with undeclared ids, or that cannot be used.
        warnings: what those are.
    """

    parts: Parts
    contents: Contents
    save_units: Callable[[Path], str]
    dropped: int
    warnings: list[str]


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """Checks a data set's files against its specification, and writes its parts: JSON of a `ParseRequest` in, of
    `ParsedFiles` out, as on the pipe.

    Raises:
        InvalidRequest: a file does not match the specification; columns and counts are named.
        StorageFull: the disk is full.
    """
    try:
        with progress.of_reads():
            return _parse(ParseRequest.model_validate(request)).model_dump(mode="json")
    except OSError as error:
        if is_full(error):
            raise StorageFull("the service's disk is full: an operator has to free some space") from None
        raise


def _parse(request: ParseRequest) -> ParsedFiles:
    spec, keys = request.spec, digests.Keys(bytes.fromhex(request.keys.split), bytes.fromhex(request.keys.content))
    earlier = Earlier(request.place, tuple(_saved(each) for each in request.earlier))
    to = Output(
        Path(request.output_dir), keys, _seal(request.seal), request.slots, earlier, Room(request.reserve_bytes)
    )
    file = readable(Path(request.file), _key(request.opens.file))
    edges = _edges(request)
    with digests.file_sha256(file) as file_sha256:
        data = _parsed(request, file, "file", to, edges)
        sha256 = file_sha256()
    contents, parts, extra = _contents("data", file, sha256, data, to.keys), data.parts.written, None
    if request.holdout_file is not None:
        file = readable(Path(request.holdout_file), _key(request.opens.holdout_file))
        with digests.file_sha256(file) as file_sha256:
            extra = _parsed(request, file, "holdout_file", to, edges)
            contents += _contents("holdout", file, file_sha256(), extra, to.keys)
        parts = parts | extra.parts.written
        _check_widths(data, extra)
    counted = data.parts.units | (extra.parts.units if extra is not None else {})
    rows = data.parts.rows | (extra.parts.rows if extra is not None else {})
    parsed = ParsedFiles(
        parts=WrittenParts(train=parts.get("train"), holdout=parts.get("holdout")),
        features=spec.features.numbers(data.parts.layout.features),
        outputs=spec.task.outputs,
        sparse=data.parts.layout.is_sparse,
        contents=contents,
        content_sha256=sha256,
        units_sha256=None if spec.privacy.sensitivity == "public" else data.save_units(to.folder / UNITS),
        stored=PartCounts(
            train=PartCount(units=counted["train"], rows=rows["train"]),
            holdout=PartCount(units=counted["holdout"], rows=rows["holdout"]) if "holdout" in rows else None,
        ),
        squares=_squares(spec, data),
        counts=_counts(data, extra, counted),
        warnings=(*_warnings(spec, data, extra, counted), *(() if edges is None else edges.warnings())),
    )
    for arrived in (data, extra):
        if arrived is not None:
            arrived.contents.remove()
    return parsed


def _unpacked_limit(request: ParseRequest, name: str) -> int:
    """What a file of n bytes may unpack to: min(`max_unpacked_bytes`, max(64 MiB, ratio · n)).

    A small file that unpacks to much would hold a reader for long. Pictures are exempt: a plain one is honest.
    """
    if request.spec.format == "images":
        return request.max_unpacked_bytes
    by_ratio = int(request.max_unpack_ratio * Path(getattr(request, name)).stat().st_size)
    return min(request.max_unpacked_bytes, max(UNPACKED_FREELY_BYTES, by_ratio))


def _check_widths(data: Parsed, extra: Parsed) -> None:
    mine, extra_features = data.parts.layout.features, extra.parts.layout.features
    if extra_features != mine:
        detail = f"its records have {extra_features} features, but those of the data have {mine}"
        raise InvalidRequest.at("/holdout_file", detail)


def _saved(people: SealedPart) -> Saved:
    return Saved(readable(Path(people.path), _key(people.key)), people.sha256)


def _edges(request: ParseRequest) -> Edges | None:
    """The file of edges, read; None without one."""
    features = request.spec.features
    if request.edges_file is None or not isinstance(features, NodeColumns) or features.edges is None:
        return None
    edges = Edges(request.spec, features.edges, _unpacked_limit(request, "edges_file"), Lists(features.keep))
    _fill(request.spec, readable(Path(request.edges_file), _key(request.opens.edges_file)), edges)
    edges.check()
    return edges


def _parsed(request: ParseRequest, path: Named, name: str, to: Output, edges: Edges | None) -> Parsed:
    spec, max_unpacked_bytes = request.spec, _unpacked_limit(request, name)
    contents = Contents(to.folder, name, to.keys, Needs.of(request, name), to.room, to.seal)
    destination = _destination(spec, name, to)
    try:
        table: Table
        users = None
        if spec.format == "interactions":
            table = found = new_records(spec, name, max_unpacked_bytes)
            if other := what_else(path, "parquet" if found.layout == "parquet" else "csv"):
                raise found.broken(f"it is {other}")
            interactions.read(path, found)
            found.check()
            messages = Messages.joined(found.contents())
            destination.add(Piece(found.part(), split=contents.add(messages, messages)))
            users = unit_digests.of_users(found.users, to.keys) if isinstance(found, History) else None
        else:
            lists = None if edges is None else edges.lists
            table = records = Records(
                spec,
                name,
                max_unpacked_bytes,
                lambda taken: destination.add(_piece(spec, records, taken, contents)),
                lists,
            )
            _fill(spec, path, records)
            records.check()
        parts = destination.close()
        contents.close()
        if isinstance(destination, Bounded):
            return Parsed(parts, contents, destination.save_people, table.dropped, table.warnings())
        unit_lists = contents.units if users is None else [Ascending.of(users)]
        return Parsed(
            parts,
            contents,
            lambda file: unit_digests.save(file, unit_lists or (), to.seal),
            table.dropped,
            table.warnings(),
        )
    finally:
        destination.abandon()


def _destination(spec: DatasetSpec, name: str, to: Output) -> Split | Bounded:
    """Where a file's records go."""
    if name == "holdout_file":
        return Split(to.folder, "holdout", None, to.room, key=to.seal)
    fraction = spec.holdout.fraction if isinstance(spec.holdout, SplitHoldout) else None
    last_item, slots = isinstance(spec.holdout, LastItemHoldout), partial(_slots_on_disk, spec, to.slots)
    split = Split(to.folder, "train", fraction, to.room, last_item=last_item, slots=slots, key=to.seal)
    limit = spec.privacy.max_records_per_user
    if spec.privacy.user_column is None or limit is None:
        return split
    return Bounded(split, to.folder, limit, to.keys, to.seal, to.earlier)


def _slots_on_disk(spec: DatasetSpec, slots: Slots | None, layout: Layout) -> Mapping[str, int]:
    """The slots of a private data set's parts, if they stay on disk while a job trains; else none. Public sizes decide.

    Records are stored in the order of these slots: what is hashed, counted or compared is computed before.
    """
    if slots is None:
        return {}
    features, varies = spec.features.numbers(layout.features), layout.is_sparse or layout.kind == "texts"
    if in_memory(slots.train.rows, record_bytes(features, sparse=varies, rating=layout.kind == "pairs")):
        return {}
    holdout = {} if slots.holdout is None else {"holdout": slots.holdout.rows}
    return {"train": slots.train.rows} | holdout


def _fill(spec: DatasetSpec, path: Named, table: Table) -> None:
    """Reads a file of rows in the declared format."""
    if other := what_else(path, spec.format):  # type: ignore[arg-type]
        raise table.broken(f"it is {other}")
    module = import_module(f"app.formats.{reader_of(spec.format).module}")  # type: ignore[arg-type]
    if spec.csv is not None:
        module.read(path, table, module.Dialect(spec.csv.separator))
    else:
        module.read(path, table)


def _piece(spec: DatasetSpec, records: Records, taken: Taken, contents: Contents) -> Piece:
    y = taken.y
    labels = digests.label_contents(y, records.classes.names if records.classes is not None else None)
    if taken.texts is not None:
        texts = taken.texts
        x = hashed(texts, spec.features) if isinstance(spec.features, HashedText) else Texts.of(texts)
        messages = Messages.joined(digests.text_contents(texts, labels))
        return Piece(StoredPart(x=x, y=y), taken.users, contents.add(messages, messages))
    if taken.matrix is None or taken.contents is None:
        raise ValueError("a piece holds texts or numbers")
    names = _names(spec.features, taken.matrix.shape[1])
    matrix = _float32(taken.matrix)
    rounded = matrix if taken.contents is taken.matrix else _float32(taken.contents)
    stored = sent = digests.number_contents(rounded, names, labels)
    if contents.needs_sent and not np.can_cast(taken.contents.dtype, np.float32):
        sent = digests.number_contents(taken.contents, names, labels)
    return Piece(StoredPart(x=matrix, y=y), taken.users, contents.add(stored, sent))


def _names(features: Features, width: int) -> list[str] | None:
    """By which a record's numbers are ordered in its content; a node's ids come last."""
    if not isinstance(features, Columns | TableFeatures):
        return None
    if isinstance(features, TableFeatures):
        texts = (f"{each.name}{LAST}{place:06}" for each in features.texts for place in range(each.cells))
        return [*(each.name for each in features.columns), *texts]
    return [*features.names, *(f"{LAST}{place:06}" for place in range(len(features.names), width))]


def _seal(seal: SealKey | None) -> DataKey | None:
    return None if seal is None else DataKey(bytes.fromhex(seal.key), bytes.fromhex(seal.wrap))


def _key(key: str | None) -> bytes | None:
    return None if key is None else bytes.fromhex(key)


def _float32(matrix: NDArray[Any]) -> NDArray[np.float32]:
    out = np.empty(matrix.shape, dtype=np.float32)
    start = 0
    for rows in chunks(matrix):
        out[start : start + len(rows)] = rows
        start += len(rows)
    return out


def _counts(data: Parsed, extra: Parsed | None, counted: dict[str, int]) -> Counts:
    """Counts the records of the data file, its protected units, and what both files leave out: rows with undeclared
    ids, and records of users with too many."""
    return Counts(
        records=data.contents.multiset.count,
        dropped=data.dropped + data.parts.over + (extra.dropped if extra else 0),
        units=data.parts.all_units,
        train=counted.get("train", 0),
        holdout=counted.get("holdout", 0),
    )


def _squares(spec: DatasetSpec, data: Parsed) -> PartCount:
    """Σ (class size)² over classes that a split's hash puts on one side: equal records, or a user's. 0 without one."""
    if not isinstance(spec.holdout, SplitHoldout):
        return PartCount(units=0, rows=0)
    by_user = data.parts.row_squares
    if by_user is not None:
        return PartCount(units=data.parts.all_units, rows=by_user)
    classes = squares(data.contents.classes or ())
    return PartCount(units=classes, rows=classes)


def _contents(
    part: Literal["data", "holdout"], file: Named, sha256: str, parsed: Parsed, keys: Keys
) -> tuple[ContentHash, ...]:
    """The keyed hashes of a file and its records; those of before too, if they are wanted."""
    of_file, of_records = digests.keyed_sha256(sha256, keys), parsed.contents.multiset.hmac()
    new = (
        ContentHash(part=part, kind="sha256", hmac=of_file),
        ContentHash(part=part, kind="multiset", hmac=of_records),
    )
    earlier = parsed.contents.earlier_hmac()
    if earlier is None:
        return new
    own_hash = ContentHash(part=part, kind="file", hmac=digests.file_hmac(file, keys))
    return (*new, own_hash, ContentHash(part=part, kind="records", hmac=earlier))


def _warnings(spec: DatasetSpec, data: Parsed, extra: Parsed | None, counted: dict[str, int]) -> tuple[str, ...]:
    warnings = [*data.warnings, *(extra.warnings if extra is not None else ())]
    declared, unit_count = spec.privacy.records, data.parts.all_units
    noun = "users" if data.parts.layout.users else "records"
    if declared is not None and abs(unit_count - declared) > DEVIATION * declared:
        warnings.append(
            f"the file holds {unit_count} {noun}; you declared {declared}: sampling rates, step sizes and "
            "scores use the "
            "declared number"
        )
    if declared == unit_count != rounded(unit_count):
        warnings.append(
            f"you declared the exact number of {noun}, {unit_count}, which makes it public: a rounded one, such as "
            f"{rounded(unit_count)}, shows less"
        )
    if data.parts.over:
        over, limit = data.parts.over, spec.privacy.max_records_per_user
        place = " in all blocks together" if data.parts.returning else ""
        warnings.append(f"{over} records of users with more than {limit}{place} are left out")
    if data.parts.returning:
        warnings.append(f"{data.parts.returning} users are in earlier blocks too: tell nobody else")
    warnings += [f"the {name} part holds no record" for name, count in counted.items() if not count]
    if extra is not None:
        common_records = common(extra.contents.units or (), data.contents.units or ())
        if common_records:
            warnings.append(
                f"{common_records} records of the hold-out file are also in the data: scores on it will be too high"
            )
    return tuple(warnings)
