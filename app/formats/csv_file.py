"""CSV as in RFC 4180: UTF-8, one header row, quoted cells may hold line breaks. Strict about quotes and ragged rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, TextIO

from app.formats.records import Table
from app.formats.sealed import Named
from app.formats.unpacking import opened

MAX_CELL_CHARACTERS = MAX_LINE_CHARACTERS = 32 * 1024 * 1024
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


Header = Callable[[list[str], Table], list[str]]


def read(path: Named, records: Table, *, header: Header | None = None, **dialect: Any) -> None:
    """Reads a file. `dialect` (the csv module's) sets other separators; `header` turns the first line's cells into
    names."""
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    # Bytes that are not UTF-8 become lone surrogates, which are counted in the columns in use.
    raw = opened(path, records)
    with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        _check_separator(file.readline(MAX_LINE_CHARACTERS), records, dialect.get("delimiter", ","))
        file.seek(0)
        rows = csv.reader(_lines(file, records), strict=True, **dialect)
        try:
            _read(rows, records, header)
        except csv.Error as error:
            # The module's own texts ("',' expected after '\"'", "unexpected end of data") quote nothing from the cells.
            raise records.broken(f"line {rows.line_num}: {error}") from None


def _lines(file: TextIO, records: Table) -> Iterator[str]:
    """Yields the file's lines; rejects lines longer than MAX_LINE_CHARACTERS."""
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARACTERS:
            raise records.broken(f"line {number} is longer than {MAX_LINE_CHARACTERS} characters")
        yield line


def _check_separator(first_line: str, records: Table, right: str) -> None:
    """Raises InvalidRequest if all the wanted columns are there, but between other separators."""
    wanted = {each.name for each in (*records.features, records.label)}
    if wanted <= _split(first_line, right):
        return
    for separator, name in SEPARATORS.items():
        if wanted <= _split(first_line, separator):
            raise records.broken(
                f"its columns are separated by {name} ({separator!r}); write it with {SEPARATORS[right]}, or "
                f'declare "csv": {{"separator": {json.dumps(separator)}}}'
            )


def _split(line: str, separator: str) -> set[str]:
    try:
        return set(next(csv.reader([line], delimiter=separator), []))
    except csv.Error:  # the reader reports it
        return set()


def _read(rows: Any, records: Table, named: Header | None) -> None:
    header = next(rows, None)
    if not header:
        raise records.broken("it is empty; the first line must name the columns")
    if named is not None:
        header = named(header, records)
    records.begin(header)
    places = [header.index(each.name) for each in records.features]
    take = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
    label = header.index(records.label.name)
    ragged, first = 0, 0
    for row in rows:
        if len(row) == len(header):
            records.add(take(row), row[label])
        elif row:  # a blank line is not a record
            ragged += 1
            first = first or rows.line_num
    if ragged:
        raise records.broken(
            f"{ragged} rows do not have the header's {len(header)} cells; the first of them ends in line {first}"
        )
