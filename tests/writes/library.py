"""The preloaded library: built, armed, read, and the power cut after it (faulty.c)."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from core.native.build import build

SOURCE = Path(__file__).with_name("faulty.c")
BYTES, PATH = 64 * 2**20, 512
HEADER = struct.Struct(f"=5Q4IQ{PATH}s{PATH}s{PATH}s")
RECORD = struct.Struct(f"=5Q2I{PATH}s")
OPERATIONS = ("", "write", "sync", "truncate", "rename")
WRITE, SYNC, TRUNCATE, RENAME = range(1, 5)
# What a fault does; by its number in faulty.c.
KINDS = {"error": 1, "full": 2, "torn": 3, "torn, dies": 4, "lost": 5}
PAUSE = 6
WAITS = struct.Struct("=Q")
WAITS_AT = HEADER.size - 3 * PATH - WAITS.size
Moved = tuple[Path, Path]  # a home, and its copy


def library(folder: Path) -> Path | None:
    """The library, compiled into a folder; None without a compiler."""
    made = folder / "faulty.so"
    return made if build(made, (SOURCE,), "-Wno-stringop-truncation", "-ldl") is not None else None


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th operation; 0: nothing. A lost one is followed by the power cut `delay` operations on."""

    at: int = 0
    kind: str = "error"
    delay: int = 0


@dataclass(frozen=True)
class Record:
    """An operation that was done, and what the file held there before."""

    n: int
    op: int
    path: Path
    offset: int
    old_size: int
    length: int
    kept: bytes
    is_known: bool


class Map:
    """The map that all processes of a history share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("wb") as file:
            file.truncate(BYTES)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), BYTES)

    def arm(self, home: Path, side: Path, fault: Fault | None) -> None:
        """From now on operations below `home` count, from 1. Without a fault each waits halfway until `go_on`."""
        texts = (os.fsencode(home), os.fsencode(side), b"")
        at, delay, kind = (0, 0, PAUSE) if fault is None else (fault.at, fault.delay, KINDS[fault.kind])
        self.memory[:] = bytes(BYTES)
        self.memory[: HEADER.size] = HEADER.pack(
            0, at, 0, delay, 0, kind if at or fault is None else 0, *[0] * 4, *texts
        )

    @property
    def waits(self) -> int:
        """The operation that waits halfway; 0: none."""
        return int(WAITS.unpack_from(self.memory, WAITS_AT)[0])

    def go_on(self) -> None:
        """Lets it go on."""
        WAITS.pack_into(self.memory, WAITS_AT, 0)

    def rest(self) -> None:
        """Nothing counts any more."""
        self.memory[: HEADER.size] = bytes(HEADER.size)

    @property
    def count(self) -> int:
        return int(self._header()[0])

    @property
    def hit(self) -> tuple[str, Path] | None:
        """Which operation was hit, on which file; None if none was."""
        header = self._header()
        return (OPERATIONS[header[7]], _path(header[12])) if header[7] else None

    def _header(self) -> tuple[int, ...]:
        return HEADER.unpack_from(self.memory)

    def records(self) -> Iterator[Record]:
        """All operations that were noted, in order."""
        used, at = self._header()[4], HEADER.size
        while at - HEADER.size < used:
            n, offset, old_size, length, kept, op, torn, path = RECORD.unpack_from(self.memory, at)
            if n == 0:  # a process died as it wrote this one
                return
            content = self.memory[at + RECORD.size : at + RECORD.size + kept]
            yield Record(n, op, _path(path), offset, old_size, length, content, not torn)
            at += (RECORD.size + kept + 7) & ~7

    def undo(self, n: int | None, moved: Moved) -> None:
        """Undoes the half that was done of a write that waits, in a copy of the home. Nothing else is half done."""
        for record in self.records():
            if record.n == n and record.op == WRITE:
                _undo(_moved(record, moved))

    def cut_power(self, fault: Fault, side: Path, moved: Moved | None = None) -> None:
        """Undoes what was lost. A write, truncation or rename: itself. A sync: all writes to its file since the last
        sync that was none.

        Args:
            moved: does so in a copy of the home.
        """
        records = [_moved(record, moved) for record in self.records() if record.n <= fault.at]
        last = next((record for record in reversed(records) if record.n == fault.at), None)
        if last is None:
            return
        if last.op == RENAME:
            before = _at(_path(last.kept), moved)
            if last.path.exists():
                last.path.rename(before)
            if side.exists():
                shutil.copy(side, last.path)
            return
        if last.op != SYNC:
            _undo(last)
            return
        for record in reversed(records[:-1]):
            if record.path == last.path and record.op == SYNC:
                return
            if record.path == last.path:
                _undo(record)


def _at(path: Path, moved: Moved | None) -> Path:
    return path if moved is None else moved[1] / path.relative_to(moved[0])


def _moved(record: Record, moved: Moved | None) -> Record:
    return replace(record, path=_at(record.path, moved))


def _undo(record: Record) -> None:
    if not record.is_known or not record.path.is_file():
        return
    with record.path.open("r+b") as file:
        file.seek(record.offset)
        file.write(record.kept)
        end = record.offset + record.length
        if record.op == WRITE and record.old_size < end:
            size = file.seek(0, os.SEEK_END)
            if size <= end:
                file.truncate(min(size, record.old_size))
            else:  # later writes are behind it: a hole
                start = max(record.offset, record.old_size)
                file.seek(start)
                file.write(bytes(end - start))


def _path(text: object) -> Path:
    assert isinstance(text, bytes)
    return Path(os.fsdecode(text.split(b"\0")[0]))
