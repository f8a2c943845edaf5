"""The last known head of each data set's ledger, in records outside every backup of the database.

    <data set>.json          the newest recorded head, with the balances after it
    <data set>.checkpoint    the newest signed checkpoint, with its witnesses' cosignatures
    <data set>.persons       of whom two decide together, as they were last named
    noise-epoch              derives the noise secret since a backup was last restored
    <job>.mark               what left a job that has not ended (app.lifecycle.marks)

A head is recorded before an attempt's first private pass, and after a settlement. A database that was restored from an
older backup has lost entries; this record has not. It lies in a folder beside the storage root, or in a bucket
(app.ledger.transparency.outside_records), and is never restored with the database: a rollback of both leaves no trace.

Guarantee: `write` returns once the record is on disk. A head or a checkpoint replaces only the record that its writer
has compared with the ledger. Of two databases that went on from one recorded head, the second finds the other's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from app.db.models import Account
from app.ledger.entries import balance_of
from app.ledger.transparency.notes import lines, read
from app.ledger.transparency.outside_records import InFolder, Record, Records, records_of
from app.ledger.transparency.witnesses import Witness, required
from app.settings import Settings
from core.contracts.approvals import Persons
from core.contracts.base import Document
from core.ids import now

EPOCH = "noise-epoch"
TRIES = 100  # each loss means that another writer won
Units = Annotated[int, Field(ge=0)]


class Balance(Document):
    """One account, in the filter's integer units."""

    budget: Units
    spent: Units
    held: Units


class Head(Document):
    """The end of a data set's chain at some moment.

    Attributes:
        seq, head: the last entry's number and hash.
        train, holdout: the balances after it.
        cap_epsilon: the cap at that moment.
        owner, contents: the data set's owner, and keyed hashes of the registered content. A second registration by that
            owner would be a second budget, even if the database has lost the first one.
        joined_into: the data set whose ledger this one was joined to; None: it is open.
    """

    version: Literal[1] = 1
    dataset: str
    seq: Annotated[int, Field(ge=1)]
    head: str
    train: Balance
    holdout: Balance
    cap_epsilon: float
    owner: str | None = None
    contents: tuple[str, ...] = ()
    joined_into: str | None = None
    recorded_at: AwareDatetime

    @classmethod
    def of(cls, account: Account, owner: str | None, contents: tuple[str, ...]) -> Head:
        """The head of an account's chain, with its balances."""
        balances = balance_of(account)
        return cls(
            dataset=account.dataset_id,
            seq=account.entries,
            head=account.head,
            train=Balance.model_validate(balances.train, from_attributes=True),
            holdout=Balance.model_validate(balances.holdout, from_attributes=True),
            cap_epsilon=account.cap_epsilon,
            owner=owner,
            contents=contents,
            joined_into=account.joined_into,
            recorded_at=now(),
        )


class NamedPersons(Document):
    """The persons of a data set, as its owner, or two of those before them, named them for the `version`-th time."""

    dataset: str
    version: Annotated[int, Field(ge=1)]
    persons: Persons

    def same_persons(self, other: NamedPersons) -> bool:
        """True if each key is the same person's in both; their order says nothing."""
        return self.persons.by_key() == other.persons.by_key()


class UnreadableHeadError(Exception):
    """A record exists and cannot be read, so its content is unknown."""


@dataclass(frozen=True)
class KnownHead:
    """A head as it was read, and the record that has it. Both are None if there is none."""

    head: Head | None
    record: Record | None


class SupersededError(Exception):
    """Another writer kept a checkpoint, or named persons, that the database has not been compared with."""


def _gains(old: str, note: str) -> bool:
    """True if this is the same checkpoint with a signature that the one before lacks."""
    return read(old) == read(note) and not set(lines(note)) <= set(lines(old))


class Heads:
    """The recorded heads, and the witnesses that must have seen a ledger. Safe for any number of threads, processes and
    hosts that share the records.

    Args:
        folder: where the records lie.
        witnesses: without their newest checkpoint nothing is admitted; empty: none is asked.
        records: where they lie instead of the folder.
    """

    def __init__(self, folder: Path, witnesses: tuple[Witness, ...] = (), records: Records | None = None) -> None:
        self.folder, self.witnesses = folder, witnesses
        self.records: Records = records or InFolder(folder)

    @classmethod
    def of(cls, settings: Settings) -> Heads:
        """The records and the required witnesses in these settings."""
        return cls(settings.effective_heads_dir, required(settings), records_of(settings))

    def read(self, dataset_id: str) -> Head | None:
        """The record of a data set; None if there is none.

        Raises:
            UnreadableHeadError: it is damaged, or the folder cannot be read.
            Unavailable: the bucket does not answer.
        """
        head = self.read_all([dataset_id])[dataset_id]
        if isinstance(head, UnreadableHeadError):
            raise head
        return head

    def read_all(self, dataset_ids: Iterable[str]) -> dict[str, Head | UnreadableHeadError | None]:
        """Several records, each as `read` answers it or with its error. Raises Unavailable."""
        ids = list(dataset_ids)
        records = self.records.read_all([_head(each) for each in ids])
        return {each: _parsed(each, record) for each, record in zip(ids, records, strict=True)}

    def recorded(self) -> list[str]:
        """The data sets that have a record. Raises Unavailable."""
        return [name.removesuffix(".json") for name in self.records.names(".json") if name.startswith("ds_")]

    def known(self, dataset_id: str) -> KnownHead:
        """The record of a data set, for a writer that compares it with the ledger. Raises as `read`."""
        try:
            record = self.records.read(_head(dataset_id))
        except OSError as error:
            raise UnreadableHeadError(type(error).__name__) from None
        head = _parsed(dataset_id, record)
        if isinstance(head, UnreadableHeadError):
            raise head
        return KnownHead(head, record)

    def write(self, head: Head, compared: KnownHead) -> bool:
        """Records a head, on disk before this returns. Writes nothing if the record is as new.

        Args:
            compared: the record that this head's ledger was found to contain.

        Returns:
            False if another writer changed the record since: the ledger must be compared with that one.

        Raises:
            OSError, Unavailable: it cannot be written.
        """
        if compared.head is not None and compared.head.seq >= head.seq:
            return True
        return self.records.put(_head(head.dataset), _line(head.model_dump_json()), compared.record)

    def replace(self, head: Head) -> None:
        """Replaces the record of a head that the database has lost; keeps the old one and its checkpoint beside it."""
        aside = f"{head.dataset}.forgotten-{secrets.token_hex(4)}"
        note = _checkpoint(head.dataset)
        for name, target in ((_head(head.dataset), aside), (note, f"{aside}-checkpoint")):
            old = self.records.read(name)
            if old is not None:
                self.records.put(target, old.content.decode(errors="replace"), None)
        self._change(_head(head.dataset), lambda _: head.model_dump_json())
        self.records.remove(note)

    def checkpoint(self, dataset_id: str) -> str | None:
        """The newest signed checkpoint of a data set, as a note; None if there is none.

        Raises:
            UnreadableHeadError: it is damaged, or the folder cannot be read.
            Unavailable: the bucket does not answer.
        """
        try:
            return _note(dataset_id, self.records.read(_checkpoint(dataset_id)))
        except (OSError, ValueError) as error:
            raise UnreadableHeadError(f"the checkpoint: {type(error).__name__}") from None

    def keep_checkpoint(self, dataset_id: str, note: str, compared: str | None) -> None:
        """Keeps a checkpoint, on disk before this returns; does nothing if one of more entries is kept, or the same one
        with all its signatures.

        Args:
            compared: the kept checkpoint that the ledger was found to begin with; None: there was none.

        Raises:
            SupersededError: another one was kept since.
            UnreadableHeadError: one is kept, and its content is unknown.
            OSError, Unavailable: it cannot be written.
        """

        def newer(record: Record | None) -> str | None:
            old = _note_kept(dataset_id, record)
            if old is None or _gains(old, note):
                return note
            if read(old) == read(note):
                return None
            if old != compared:
                raise SupersededError("another checkpoint was kept meanwhile")
            return note if read(old).size < read(note).size else None

        self._change(_checkpoint(dataset_id), newer)

    def keep_cosignatures(self, dataset_id: str, note: str) -> None:
        """Keeps signatures of a checkpoint, on disk before this returns; does nothing if another one is kept.

        Raises:
            UnreadableHeadError, OSError, Unavailable: as `keep_checkpoint`.
        """

        def signed(record: Record | None) -> str | None:
            old = _note_kept(dataset_id, record)
            return note if old is None or _gains(old, note) else None

        self._change(_checkpoint(dataset_id), signed)

    def named(self, dataset_id: str) -> NamedPersons | None:
        """The persons of a data set who were named last; None if none ever were.

        Raises:
            UnreadableHeadError: the record is damaged, or the folder cannot be read.
            Unavailable: the bucket does not answer.
        """
        try:
            return _named(dataset_id, self.records.read(_persons(dataset_id)))
        except OSError as error:
            raise UnreadableHeadError(f"its persons: {type(error).__name__}") from None

    def keep_named(self, persons: NamedPersons) -> None:
        """Records persons, on disk before this returns. Does nothing if they, or later ones, are recorded.

        Raises:
            SupersededError: another database named others by the same number.
            UnreadableHeadError, OSError, Unavailable: as `write`.
        """

        def newer(record: Record | None) -> str | None:
            old = _named(persons.dataset, record)
            if old is not None and old.version == persons.version and not old.same_persons(persons):
                raise SupersededError("other persons were named meanwhile")
            return persons.model_dump_json() if old is None or old.version < persons.version else None

        self._change(_persons(persons.dataset), newer)

    def epoch(self) -> str | None:
        """The epoch from which the noise secret is derived; None before the first rotation."""
        record = self.records.read(EPOCH)
        return None if record is None else record.content.decode().strip()

    def rotate_epoch(self) -> str:
        """Starts a new epoch of the noise key: no earlier key is used again. Returns its public name."""
        epoch = secrets.token_hex(16)
        self._change(EPOCH, lambda _: epoch)
        return epoch

    def _change(self, name: str, made_of: Callable[[Record | None], str | None]) -> None:
        """Writes what follows from the present record; again if another writer came first. None: nothing is written."""
        for _ in range(TRIES):
            record = self.records.read(name)
            text = made_of(record)
            if text is None or self.records.put(name, _line(text), record):
                return
        raise OSError(f"others keep writing {name}")


def _line(text: str) -> str:
    return text.removesuffix("\n") + "\n"


def _head(dataset_id: str) -> str:
    return f"{dataset_id}.json"


def _checkpoint(dataset_id: str) -> str:
    return f"{dataset_id}.checkpoint"


def _persons(dataset_id: str) -> str:
    return f"{dataset_id}.persons"


def _named(dataset_id: str, record: Record | None) -> NamedPersons | None:
    if record is None:
        return None
    try:
        persons = NamedPersons.model_validate_json(record.content)
    except ValidationError:
        raise UnreadableHeadError("its persons: the record is damaged") from None
    if persons.dataset != dataset_id:
        raise UnreadableHeadError("its persons: the record belongs to another data set")
    return persons


def _parsed(dataset_id: str, record: Record | OSError | None) -> Head | UnreadableHeadError | None:
    if record is None:
        return None
    if isinstance(record, OSError):
        return UnreadableHeadError(type(record).__name__)
    try:
        head = Head.model_validate_json(record.content)
    except ValidationError:
        return UnreadableHeadError("it is damaged")
    return head if head.dataset == dataset_id else UnreadableHeadError("it belongs to another data set")


def _note_kept(dataset_id: str, record: Record | None) -> str | None:
    """A checkpoint's note. Raises UnreadableHeadError if its content is unknown."""
    try:
        return _note(dataset_id, record)
    except ValueError as error:
        raise UnreadableHeadError(f"the checkpoint: {type(error).__name__}") from None


def _note(dataset_id: str, record: Record | None) -> str | None:
    """A checkpoint's note. Raises ValueError if it is damaged or another data set's."""
    if record is None:
        return None
    note = record.content.decode()
    if read(note).dataset != dataset_id:
        raise ValueError("it belongs to another data set")
    return note
