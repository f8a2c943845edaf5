"""JSON lines: one flat object a line. A key that a line lacks is a missing cell.

Python reads the lines, not Arrow: a column may hold 1 on one line and "1" on the next, and Arrow refuses a block of
such lines without a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from app.formats import reader_records
from app.formats.cell_blocks import arrow_or_list
from app.formats.reader_records import Table
from app.formats.unpacking import opened
from core.parts.sealed import Named

MAX_LINE_BYTES = 32 * 1024 * 1024


def read(path: Named, table: Table) -> None:
    """Reads a JSON-lines file; rejects lines longer than MAX_LINE_BYTES."""
    names, seen, first = table.names, set[str](), 1
    block, block_bytes = list[dict[str, Any]](), 0

    def hand_on() -> None:
        columns = {name: arrow_or_list([each.get(name) for each in block]) for name in names}
        table.add(columns, np.arange(first, first + len(block)))

    for value, size in _objects(path, table):
        if not block and first == 1:
            seen.update(value)
        elif not seen.issuperset(names):
            seen.update(value.keys() & set(names))
        block.append(value)
        block_bytes += size
        if block_bytes >= reader_records.HELD:
            hand_on()
            first, block, block_bytes = first + len(block), [], 0
    if block:
        hand_on()
    if first > 1 or block:
        table.begin(sorted(seen))


def _objects(path: Named, table: Table) -> Iterator[tuple[dict[str, Any], int]]:
    """Each line's object, and the line's length."""
    number = 0
    with opened(path, table) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise table.broken_row(number, f"is longer than {MAX_LINE_BYTES} bytes", "line")
            if not line.strip():
                continue
            try:
                # Decoded first: from bytes, json would guess the encoding line by line.
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), object_pairs_hook=_unique)
            except UnicodeDecodeError:
                raise table.broken_row(number, "is not UTF-8", "line") from None
            except KeyError:
                raise table.broken_row(number, "repeats a name", "line") from None
            except RecursionError:
                raise table.broken_row(number, "is nested too deeply", "line") from None
            except ValueError:  # its text may quote the line
                raise table.broken_row(number, "is not JSON", "line") from None
            if not isinstance(value, dict):
                raise table.broken_row(number, "is not an object", "line")
            yield value, len(line)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError
    return value
