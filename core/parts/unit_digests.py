"""The keyed digests of a file's protected units (app.datasets.unit_files): a later block is compared with them.

A unit is a record, named by its content, or a user, named by its id. The file holds each unit once, sorted by digest:
it tells as much of the data as the parts do to somebody with the key, and without it how many units there are.

    units     16 bytes each. A later block must have none of them.
    people    PEOPLE_FILE, then 32 bytes each: digest, number, and how many of the person's records this file keeps. A
              later block may have them, within the bound on a person's records.

A person's number is the same in all blocks of a data set, so that a job has one coin for it: FIRST_NUMBER times the
block's place from 1 on, plus the place among the people of the first file that has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from core.parts.damage import DataDamagedError
from core.parts.digests import DIGEST_BYTES, Keys, Messages, keyed_digests
from core.parts.sealed import DataKey, Named, create, finish
from core.parts.sorted_digests import Ascending

USER = b"scrimp/user"
DIGEST = np.dtype(f"S{DIGEST_BYTES}")  # compared and sorted as bytes, which is the order of the words
UNIT = np.dtype([("digest", DIGEST)])
PERSON = np.dtype([("digest", DIGEST), ("number", ">i8"), ("kept", ">i8")])
PEOPLE_FILE = b"scrimp people 1\0"  # as long as a digest, which it is not
FIRST_NUMBER = 2**40  # the numbers of older parts begin with 0, and are told apart by block (worker.data.joined)
AT_ONCE = 2**16  # digests in memory, of each of two files
UNREADABLE = "the units of a block cannot be read"
CHANGED = "the units of a block differ from the registered ones"


def of_users(users: Iterable[str], keys: Keys) -> NDArray[np.uint64]:
    """(users, 2): each user's digest under the key for contents."""
    return keyed_digests(Messages.joined(user.encode() for user in users), keys.content, USER)


def save(path: Path, digests: Iterable[Ascending], key: DataKey | None = None) -> str:
    """Writes digests in ascending order as a new file of mode 0600, synced to disk. Returns the SHA-256 of its content.

    Args:
        key: seals it.
    """
    hashed = hashlib.sha256()
    with create(path, key) as file:
        for block in digests:
            content = block.digests.astype(">u8").tobytes()
            hashed.update(content)
            file.write(content)
        finish(file)
    return hashed.hexdigest()


def save_people(
    path: Path,
    words: NDArray[np.uint64],
    numbers: NDArray[np.int64],
    stays: NDArray[np.int64],
    key: DataKey | None = None,
) -> str:
    """Writes a file of people, as `save` does.

    Args:
        words: (n, 2), their digests, each once.
        numbers, kept: (n,).
    """
    people = np.empty(len(words), dtype=PERSON)
    people["digest"], people["number"], people["kept"] = _digests(words), numbers, stays
    content = PEOPLE_FILE + people[np.argsort(people["digest"])].tobytes()
    with create(path, key) as file:
        file.write(content)
        finish(file)
    return hashlib.sha256(content).hexdigest()


def _digests(words: NDArray[np.uint64]) -> NDArray[np.bytes_]:
    return np.frombuffer(words.astype(">u8").tobytes(), dtype=DIGEST)


@dataclass(frozen=True)
class Saved:
    """A file of digests, as `save` wrote it."""

    file: Named
    sha256: str


@dataclass(frozen=True)
class Known:
    """What earlier files say of some people.

    Attributes:
        numbers: int64 (n,): each one's number; -1 if no earlier file has the person.
        kept: int64 (n,): how many records they keep.
    """

    numbers: NDArray[np.int64]
    kept: NDArray[np.int64]


def known(words: NDArray[np.uint64], earlier: Sequence[Saved]) -> Known:
    """Looks people up in all earlier files, in memory of a few blocks of `AT_ONCE`, and of these people.

    Args:
        words: (n, 2), their digests.

    Raises:
        DataDamagedError: a file is missing, is none of people, or differs from the registered one.
    """
    digests = _digests(words)
    order = np.argsort(digests)
    ordered = digests[order]
    result = Known(np.full(len(words), -1), np.zeros(len(words), dtype=np.int64))
    for saved in earlier:
        with _Sorted(saved) as file:
            if file.type is not PERSON:
                raise DataDamagedError(CHANGED)
            for people in file.rest():
                start = np.searchsorted(ordered, people["digest"][0])
                end = np.searchsorted(ordered, people["digest"][-1], side="right")
                places = np.searchsorted(people["digest"], ordered[start:end])
                same = people["digest"][places] == ordered[start:end]
                mine, their_people = order[start:end][same], people[places[same]]
                result.numbers[mine] = their_people["number"]
                result.kept[mine] += their_people["kept"]
            file.finish()
    return result


def is_of_people(file: Named) -> bool:
    """Returns True for a file of people.

    Raises:
        DataDamagedError: it cannot be read.
    """
    try:
        with file.open("rb") as content:
            return content.read(len(PEOPLE_FILE)) == PEOPLE_FILE
    except OSError:
        raise DataDamagedError(UNREADABLE) from None


def shared(some: Saved, more_people: Saved) -> int:
    """How many digests two files have in common: a merge of two sorted files, in memory of a few blocks of `AT_ONCE`.

    Raises:
        DataDamagedError: one is missing or differs from the registered one.
    """
    with _Sorted(some) as one, _Sorted(more_people) as other:
        count = 0
        while len(mine := one.front()) and len(their_digests := other.front()):
            last = min(mine["digest"][-1], their_digests["digest"][-1])
            count += _common(one.take(last)["digest"], other.take(last)["digest"])
        for side in (one, other):
            side.finish()
    return count


def _common(some: NDArray[np.bytes_], more_digests: NDArray[np.bytes_]) -> int:
    """How many of some sorted digests are among other sorted ones."""
    if len(more_digests) == 0:
        return 0
    places = np.minimum(np.searchsorted(more_digests, some), len(more_digests) - 1)
    return int(np.count_nonzero(more_digests[places] == some))


class _Sorted:
    """A file's units in the order of their digests, a block at a time; its hash is compared at its end.

    Attributes:
        type: UNIT, or PERSON.
    """

    def __init__(self, saved: Saved) -> None:
        self._sha256, self._hashed = saved.sha256, hashlib.sha256()
        try:
            self._file = saved.file.open("rb")
            self._begin = self._file.read(len(PEOPLE_FILE))
        except OSError:
            raise DataDamagedError(UNREADABLE) from None
        self.type = UNIT
        if self._begin == PEOPLE_FILE:
            self.type, self._begin = PERSON, b""
            self._hashed.update(PEOPLE_FILE)
        self._block = self._last = np.empty(0, dtype=self.type)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def front(self) -> NDArray[np.void]:
        """The units that were read and not taken; empty at the end of the file."""
        if len(self._block) == 0:
            try:
                content = self._begin + self._file.read(AT_ONCE * self.type.itemsize - len(self._begin))
            except OSError:
                raise DataDamagedError(UNREADABLE) from None
            self._begin = b""
            self._hashed.update(content)
            if len(content) % self.type.itemsize:
                raise DataDamagedError(CHANGED)
            self._block = np.frombuffer(content, dtype=self.type)
            self._check_order()
        return self._block

    def _check_order(self) -> None:
        """Raises DataDamagedError unless the digests ascend: else a merge would not end."""
        ordered = np.append(self._last["digest"], self._block["digest"])
        if np.any(ordered[1:] <= ordered[:-1]):
            raise DataDamagedError(CHANGED)
        self._last = self._block[-1:] if len(self._block) else self._last

    def take(self, last: np.bytes_) -> NDArray[np.void]:
        """Takes the units in front up to this one."""
        count = int(np.searchsorted(self._block["digest"], last, side="right"))
        taken, self._block = self._block[:count], self._block[count:]
        return taken

    def rest(self) -> Iterator[NDArray[np.void]]:
        """The units that were not taken, a block at a time."""
        while len(block := self.front()):
            self._block = self._block[:0]
            yield block

    def finish(self) -> None:
        """Reads the rest, and compares the hash of all.

        Raises:
            DataDamagedError: it differs.
        """
        for _ in self.rest():
            pass
        if self._hashed.hexdigest() != self._sha256:
            raise DataDamagedError(CHANGED)
