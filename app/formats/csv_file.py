"""CSV as in RFC 4180: UTF-8, one header row, quoted cells may hold line breaks. Strict about quotes and ragged rows.

Arrow parses blocks of whole rows, all cells as bytes. It is lenient about quotes: text after a closing quote joins the
cell, so that one stray quote makes one record of several. A pattern looks at quotes first, and cuts blocks at ends of
rows.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from app.formats import reader_records
from app.formats.reader_records import Table
from app.formats.row_faults import RowFault
from app.formats.unpacking import opened
from core.errors import InvalidRequest
from core.parts.sealed import Named

MAX_ROW_BYTES = 32 * 1024 * 1024
BLOCK_BYTES_OF_HELD = 4  # of a block's text, for each of the cells or characters that it may hold
BYTES_OF_COLUMN = 256  # of a block's text: Arrow takes 10 µs a column of a block, however few its rows are
SHOWN_ROWS = 10
MOST_RAGGED = 100_000  # of a file that is refused: Arrow calls a function for each
BAD_QUOTES = "has a quoted cell without an end, or with text behind its closing quote"
NO_HEADER = "it is empty; the first line must name the columns"
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Header = Callable[[list[str], Table], list[str]]


@dataclass(frozen=True)
class Dialect:
    """How a file is written; `header` turns the first row's cells into names."""

    separator: str = ","
    quotes: bool = True
    header: Header | None = None

    @cached_property
    def cells(self) -> re.Pattern[bytes]:
        """The cells of one row."""
        other = rb"[^\r\n" + re.escape(self.separator.encode()) + rb"]"
        quoted = rb'"(?:[^"]++|"")*+"|(?!")' if self.quotes else b""
        cell = rb"(?:" + quoted + other + rb"*+)"
        return re.compile(cell + rb"(?:" + re.escape(self.separator.encode()) + cell + rb")*+")

    @cached_property
    def rows(self) -> re.Pattern[bytes]:
        """Whole rows."""
        return re.compile(rb"(?:" + self.cells.pattern + rb"[\r\n])*+")

    def end(self, text: bytes) -> int:
        """Where the last whole row ends that has right quotes."""
        if not self.quotes or b'"' not in text:
            return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        match = self.rows.match(text)
        return 0 if match is None else match.end()

    def may_go_on(self, text: bytes) -> bool:
        """True for the beginning of a row."""
        if not self.quotes or b'"' not in text:
            return True
        return any(self.cells.fullmatch(each) is not None for each in (text, text + b'"'))


def read(path: Named, table: Table, dialect: Dialect = Dialect()) -> None:
    """Reads a file block by block.

    Raises:
        InvalidRequest: a column is missing, a row has another number of cells, or its quotes are wrong.
    """
    with opened(path, table) as file:
        _Reader(table, dialect).read(file)


class _Reader:
    def __init__(self, table: Table, dialect: Dialect) -> None:
        self._table, self._dialect = table, dialect
        self._rows = self._ragged = 0  # so far
        self._first_ragged: list[int] = []
        self._block_bytes = BLOCK_BYTES_OF_HELD * reader_records.HELD

    def read(self, file: BinaryIO) -> None:
        """Reads the header, then all rows."""
        columns: list[str] = []
        for block in self._blocks(file):
            if columns:
                self._add(block, columns)
                self._check_ragged(columns, MOST_RAGGED)
            else:
                columns, remaining = self._header(block)
                self._block_bytes = max(self._block_bytes, BYTES_OF_COLUMN * len(columns))
                self._add(remaining, columns)
        if not columns:
            raise self._table.broken(NO_HEADER)
        self._check_ragged(columns, 0)

    def _check_ragged(self, columns: list[str], limit: int) -> None:
        """Raises InvalidRequest if more than `limit` rows have another number of cells."""
        if self._ragged <= limit or self._table.drops_rows:
            return
        lacks = f"have the header's {len(columns)} cells"
        raise self._table.broken(
            f"{self._ragged}{' or more' if limit else ''} rows do not {lacks}; rows are counted from 1 below "
            "the header",
            [RowFault(f"/{self._table.file}", number, f"does not {lacks}") for number in self._first_ragged],
        )

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """The file's text in pieces of whole rows.

        Raises:
            InvalidRequest: a row is too long, or its quotes are wrong.
        """
        text = file.read(self._block_bytes).removeprefix(BYTE_ORDER_MARK)
        self._check_separator(text)
        while True:
            end = self._dialect.end(text)
            if end:
                yield text[:end]
                text = text[end:]
            if not self._dialect.may_go_on(text):
                raise self._broken(BAD_QUOTES)
            if len(text) > MAX_ROW_BYTES:
                raise self._broken(f"is longer than {MAX_ROW_BYTES} bytes")
            chunk = file.read(self._block_bytes)
            if not chunk:
                break
            text += chunk
        if text:
            text += b"\n"
            if self._dialect.end(text) < len(text):
                raise self._broken(BAD_QUOTES)
            yield text

    def _broken(self, reason: str) -> InvalidRequest:
        """The error for the next row."""
        if not self._table.began:
            return self._table.broken(f"its first line {reason}")
        return self._table.broken_row(self._rows + 1, reason)

    def _header(self, block: bytes) -> tuple[list[str], bytes]:
        """The columns' places as names for Arrow, and the rest of the block."""
        row = re.compile(self._dialect.cells.pattern + rb"(?:\r\n?|\n)").match(block)
        end = len(block) if row is None else row.end()
        csv.field_size_limit(MAX_ROW_BYTES)
        lines = io.StringIO(block[:end].decode(errors="surrogateescape"), newline="")
        names = next(
            csv.reader(
                lines,
                delimiter=self._dialect.separator,
                quoting=csv.QUOTE_MINIMAL if self._dialect.quotes else csv.QUOTE_NONE,
            ),
            [],
        )
        if not names:
            raise self._table.broken(NO_HEADER)
        if self._dialect.header is not None:
            names = self._dialect.header(names, self._table)
        self._table.begin(names)
        self._places = {name: str(names.index(name)) for name in self._table.names}
        return [str(place) for place in range(len(names))], block[end:]

    def _add(self, block: bytes, columns: list[str]) -> None:
        """Adds the rows of a block; notes those with another number of cells."""
        if not block.strip(b"\r\n"):
            return
        ragged = list[int]()
        is_unicode = _is_unicode(block)
        if not is_unicode:  # Arrow decodes a ragged row for the function below
            block = block.decode("latin-1").encode()

        def skipped(row: pc.InvalidRow) -> str:
            ragged.append(row.number - 1)
            return "skip"

        used = sorted(set(self._places.values()))
        quote = '"' if self._dialect.quotes else False
        table = pc.read_csv(
            pa.py_buffer(block),
            pc.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=columns),
            pc.ParseOptions(
                delimiter=self._dialect.separator,
                quote_char=quote,
                newlines_in_values=True,
                invalid_row_handler=skipped,
            ),
            pc.ConvertOptions(check_utf8=False, column_types=dict.fromkeys(used, pa.binary()), include_columns=used),
        )
        count = table.num_rows + len(ragged)
        rows = np.delete(np.arange(self._rows + 1, self._rows + count + 1), ragged)
        self._first_ragged += [self._rows + 1 + each for each in ragged[: SHOWN_ROWS - len(self._first_ragged)]]
        self._rows += count
        self._ragged += len(ragged)
        if self._table.drops_rows:
            self._table.dropped += len(ragged)
        cells = {name: _whole(table.column(place)) for name, place in self._places.items()}
        self._table.add(cells if is_unicode else {name: _as_sent(each) for name, each in cells.items()}, rows)

    def _check_separator(self, text: bytes) -> None:
        """Raises InvalidRequest if all the wanted columns are there, but between other separators."""
        wanted, right = set(self._table.names), self._dialect.separator
        first = re.split(rb"[\r\n]", text, maxsplit=1)[0].decode(errors="surrogateescape")
        if wanted <= _split(first, right):
            return
        for separator, name in SEPARATORS.items():
            if wanted <= _split(first, separator):
                raise self._table.broken(
                    f"its columns are separated by {name} ({separator!r}); write it with {SEPARATORS[right]}, or "
                    f'declare "csv": {{"separator": {json.dumps(separator)}}}'
                )


def _is_unicode(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_sent(cells: pa.Array) -> pa.Array:
    """The bytes of cells that were recoded for Arrow."""
    return pa.array([each.decode().encode("latin-1") for each in cells.to_pylist()], pa.binary())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _split(line: str, separator: str) -> set[str]:
    try:
        return set(next(csv.reader([line], delimiter=separator), []))
    except csv.Error:  # the reader reports it
        return set()
