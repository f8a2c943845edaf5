"""Files of a schema in every dialect that is met, and in some that should not be: rows, then bytes."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.cases import Schema

CANARY = "zq7canary"  # what feature cells hold: no text of an error may hold it
GOOD = (0.0, -0.0, 1.5, -3.0, 1e-300, 3.4e38, 7, -(2**53))
BAD = (float("nan"), float("inf"), 1e39, 1e308, None, "", " ", CANARY, "1_0", "0x1F", "1,5", "１２", True, 10**400)
NESTED = ([CANARY], {"a": CANARY}, [[[]]])
TEXTS = ("good film", "", "x", "ÄÖ 文字", CANARY + " bad", "a\nb", "nul\x00nul", '"quoted", text', "word " * 200)
BAD_TEXTS = (None, 5, "\ud800", [CANARY])
Row = dict[str, Any]


def encode(schema: Schema, rng: Random) -> bytes:
    """A file of this schema: whole, though its cells may be bad and its dialect not ours."""
    if schema.format == "npz":
        return _npz(schema, rng)
    rows = _rows(schema, rng)
    names = list(rows[0]) if rows else [*schema.features, schema.label]
    writers: dict[str, Callable[[list[str], list[Row], Random], bytes]]
    writers = {"csv": _csv, "jsonl": _jsonl, "parquet": parquet_file, "arrow": _arrow_file}
    return writers[schema.format](names, rows, rng)


def _rows(schema: Schema, rng: Random) -> list[Row]:
    bad = rng.choice((0.0, 0.0, 0.0, 0.05, 0.5))
    names = [*schema.features, schema.label]
    if rng.random() < 0.1:
        names.append("more")
    if rng.random() < 0.05:
        names.pop(rng.randrange(len(names)))
    rng.shuffle(names)
    return [{name: _cell(schema, name, rng, bad) for name in names} for _ in range(rng.choice((0, 1, 2, 9, 40)))]


def _cell(schema: Schema, name: str, rng: Random, bad: float) -> Any:
    broken = rng.random() < bad
    if name == schema.label and schema.classes is not None:
        # A few labels outside the declared classes are shown to the owner who sent them.
        return (
            rng.choice((None, "", "w", 2, 0.5, True, 10**400, float("nan"), "\ud800"))
            if broken
            else rng.choice(schema.classes)
        )
    if name in schema.features and schema.kind == "hashed_text":
        return rng.choice(BAD_TEXTS if broken else TEXTS)
    if broken:
        return rng.choice((*BAD, *NESTED) if schema.format == "jsonl" else BAD)
    return rng.choice(GOOD) if rng.random() < 0.3 else rng.gauss(0.0, 10.0)


def _csv(names: list[str], rows: list[Row], rng: Random) -> bytes:
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=rng.choice(",,,,,,;\t|"),
        quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
        lineterminator=rng.choice(("\n", "\n", "\r\n", "\r")),
    )
    if rng.random() < 0.97:
        writer.writerow(names)
    for row in rows:
        cells = ["" if row[name] is None else row[name] for name in names]
        writer.writerow(cells if rng.random() < 0.99 else cells[1:])
    encoding = rng.choice(("utf-8",) * 6 + ("utf-8-sig", "utf-16", "latin-1"))
    return out.getvalue().encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def _jsonl(names: list[str], rows: list[Row], rng: Random) -> bytes:
    ascii_only, missing = rng.random() < 0.5, rng.choice((0.0, 0.0, 0.1))
    lines = []
    for row in rows:
        kept = {name: row[name] for name in names if rng.random() >= missing}
        if rng.random() < 0.01:
            kept["deep"] = json.loads("[" * 200 + "]" * 200)
        lines.append(json.dumps(kept, ensure_ascii=ascii_only))
        if rng.random() < 0.02:
            lines.append(rng.choice(("", "  ", "[]", "7", "null", '{"a": 1, "a": 2}')))
    encoding = rng.choice(("utf-8",) * 8 + ("utf-8-sig", "utf-16"))
    return (rng.choice(("\n", "\r\n")).join(lines) + "\n").encode(encoding, "surrogatepass")


def parquet_file(names: list[str], rows: list[Row], rng: Random) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [_arrow([row[name] for row in rows], rng, pa) for name in names]
    if rng.random() < 0.03:
        names = [names[0]] * len(names)
    out = io.BytesIO()
    version = rng.choice(("1.0", "2.0"))
    pq.write_table(
        pa.Table.from_arrays(columns, names=names),
        out,
        compression=rng.choice(("none", "snappy", "zstd", "gzip", "lz4", "brotli")),
        use_dictionary=rng.random() < 0.5,
        data_page_version=version,
        row_group_size=rng.choice((1, 7, 1000)) if rows else 1000,
        write_page_checksum=rng.random() < 0.2,
        store_schema=rng.random() < 0.5,
    )
    return out.getvalue()


def _arrow_file(names: list[str], rows: list[Row], rng: Random) -> bytes:
    import pyarrow as pa

    columns = [_arrow([row[name] for row in rows], rng, pa) for name in names]
    if rng.random() < 0.03:
        names = [names[0]] * len(names)
    table, out = pa.Table.from_arrays(columns, names=names), io.BytesIO()
    make = rng.choice((pa.ipc.new_file, pa.ipc.new_stream))
    with make(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=rng.choice((None, "lz4", "zstd")))) as file:
        file.write_table(table, max_chunksize=rng.choice((1, 7, 1000)))
    return out.getvalue()


def _arrow(cells: list[Any], rng: Random, pa: Any) -> Any:
    """Cells in some Arrow type that can hold them."""
    types = [pa.float64(), pa.float32(), pa.int64(), pa.int8(), pa.bool_(), pa.decimal128(38, 9)]
    types += [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.timestamp("ns")]
    types += [pa.list_(pa.float64()), pa.binary(), pa.float16(), pa.uint64(), pa.null(), None]
    texts = any(isinstance(cell, str) for cell in cells)
    for kind in (rng.choice(types) if rng.random() < 0.3 else None, pa.string() if texts else pa.float64()):
        try:
            return pa.array([_as(cell, kind, pa) for cell in cells], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.array([None if cell is None else ascii(cell) for cell in cells], pa.string())


def _as(cell: Any, kind: Any, pa: Any) -> Any:
    if cell is None or kind is None:
        return cell
    made: Any = cell
    if pa.types.is_decimal(kind):
        made = Decimal(repr(float(cell)))
    elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        made = int(float(cell))
    elif pa.types.is_list(kind):
        made = [float(cell)]
    elif pa.types.is_boolean(kind):
        made = bool(cell)
    elif pa.types.is_binary(kind):
        made = str(cell).encode()
    elif pa.types.is_float16(kind):
        made = np.float16(cell)
    return made


def _npz(schema: Schema, rng: Random) -> bytes:
    n, bad = rng.choice((0, 1, 2, 9, 40)), rng.random() < 0.2
    shape = rng.choice(((n, 3), (n, 2, 2), (n,), (n, 0), (n, 1, 1, 2), ()))
    x: Any = np.array([rng.gauss(0.0, 9.0) for _ in range(int(np.prod(shape)))]).reshape(shape)
    x = x.astype(rng.choice(("<f8", ">f8", "<f4", "<f2", "i1", "<u8", "?", "<f8", "<f8", "g", "<c16", "<M8[s]", "S9")))
    if bad and x.size and x.dtype.kind == "f":
        x.flat[0] = rng.choice((np.nan, np.inf, 1e300))
    labels = [rng.gauss(0.0, 1.0) if schema.classes is None else rng.choice(schema.classes) for _ in range(n)]
    y: Any = np.array([str(each) for each in labels] if rng.random() < 0.3 else labels)
    if rng.random() < 0.1:
        y = y.reshape(-1, 1) if rng.random() < 0.5 else y[:-1]
    members = {schema.features[0]: _npy(np.asfortranarray(x) if rng.random() < 0.2 else x, rng)}
    members[schema.label] = _npy(y, rng)
    if rng.random() < 0.1:
        members[rng.choice(("../../escape", "/etc/passwd", "more", "a/b"))] = _npy(np.ones(2), rng)
    return _zip(members, rng)


def _npy(array: Any, rng: Random) -> bytes:
    out = io.BytesIO()
    version = rng.choice((None, None, (1, 0), (2, 0), (3, 0)))
    np.lib.format.write_array(out, array, version=version, allow_pickle=False)
    content = out.getvalue()
    if rng.random() < 0.1:  # a header that lies, in as many bytes
        end = content.index(b"\n")
        head = content[:end]
        lies = ((b"(", b"(9"), (b"(", b"(-"), (b"False", b"True "), (b"<f8", b"|O "), (b"<f8", b"<U9"), (b"<", b">"))
        old, new = rng.choice(lies)
        head = head.replace(old, new, 1)[:end].ljust(end)
        content = head + content[end:]
    return content


def _zip(members: dict[str, bytes], rng: Random) -> bytes:
    out = io.BytesIO()
    kinds = (zipfile.ZIP_STORED,) * 3 + (zipfile.ZIP_DEFLATED,) * 3 + (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(out, "w", rng.choice(kinds)) as archive:
        for name, content in members.items():
            suffix = ".npy" if rng.random() < 0.99 else rng.choice((".txt", "", ".npy/"))
            archive.writestr(zipfile.ZipInfo(name.replace("\x00", "") + suffix), content, archive.compression)
    return out.getvalue()
