"""JSON lines: one flat object a line. A key that a line lacks is a missing cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from app.formats.records import Records
from app.formats.sealed import Named
from app.formats.unpacking import opened

MAX_LINE_BYTES = 32 * 1024 * 1024


def read(path: Named, records: Records) -> None:
    """Reads a JSON-lines file; rejects lines longer than MAX_LINE_BYTES."""
    names = [each.name for each in records.features]
    label = records.label.name
    wanted = {*names, label}
    seen: set[str] = set()
    for line in _objects(path, records):
        records.add([line.get(name) for name in names], line.get(label))
        if records.count == 1:
            seen = set(line)
        elif not seen.issuperset(wanted):
            seen.update(wanted & line.keys())
    if records.count:
        records.begin(sorted(seen))


def _objects(path: Named, records: Records) -> Iterator[dict[str, Any]]:
    number = 0
    with opened(path, records) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise records.broken(f"line {number} is longer than {MAX_LINE_BYTES} bytes")
            if not line.strip():
                continue
            try:
                # Decoded first: from bytes, json would guess the encoding line by line.
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), object_pairs_hook=_unique)
            except UnicodeDecodeError:
                raise records.broken(f"line {number} is not UTF-8") from None
            except KeyError:
                raise records.broken(f"line {number} repeats a name") from None
            except RecursionError:
                raise records.broken(f"line {number} is nested too deeply") from None
            except ValueError:  # its text may quote the line
                raise records.broken(f"line {number} is not JSON") from None
            if not isinstance(value, dict):
                raise records.broken(f"line {number} is not an object")
            yield value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError
    return value
