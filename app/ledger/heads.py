"""The last known head of each data set's ledger, in files outside every backup of the database.

    <heads>/<data set>.json          the newest recorded head, with the balances after it
    <heads>/<data set>.checkpoint    the newest signed checkpoint, with its witnesses' cosignatures
    <heads>/noise-epoch              derives the noise secret since a backup was last restored

A head is recorded before an attempt's first private pass, and after a settlement. A database that was restored from an
older backup has lost entries; this file has not. It lies beside the storage root, and is never restored with the
database: a rollback of both leaves no trace.

Guarantee: `write` returns once the record is on disk. No older record replaces it, even with concurrent writers.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from app.contracts.base import Document
from app.db.models import Account
from app.disk import sync
from app.ids import now
from app.ledger.entries import balance_of
from app.ledger.notes import lines, read
from app.ledger.witnesses import Witness, required
from app.secrets import write_private
from app.settings import Settings

EPOCH_FILE = "noise-epoch"
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
        balances = {name: Balance.model_validate(parts) for name, parts in balance_of(account).items()}
        return cls(
            dataset=account.dataset_id,
            seq=account.entries,
            head=account.head,
            **balances,
            cap_epsilon=account.cap_epsilon,
            owner=owner,
            contents=contents,
            joined_into=account.joined_into,
            recorded_at=now(),
        )


class UnreadableHeadError(Exception):
    """A record exists and cannot be read, so its content is unknown."""


def _gains(before: str, note: str) -> bool:
    """True if this is the same checkpoint with a signature that the one before lacks."""
    return read(before) == read(note) and not set(lines(note)) <= set(lines(before))


def _damaged() -> str:
    raise ValueError("it belongs to another data set")


class Heads:
    """The folder of records, and the witnesses that must have seen a ledger. Safe for any number of threads, processes
    and hosts that share it.

    Args:
        witnesses: without their newest checkpoint nothing is admitted; empty: none is asked.
    """

    def __init__(self, folder: Path, witnesses: tuple[Witness, ...] = ()) -> None:
        self.folder, self.witnesses = folder, witnesses

    @classmethod
    def of(cls, settings: Settings) -> Heads:
        """The folder of records and the required witnesses in these settings."""
        return cls(settings.effective_heads_dir, required(settings))

    def read(self, dataset_id: str) -> Head | None:
        """The record of a data set; None if there is none.

        Raises:
            UnreadableHeadError: it is damaged, or the folder cannot be read.
        """
        try:
            text = self._path(dataset_id).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableHeadError(type(error).__name__) from None
        try:
            found = Head.model_validate_json(text)
        except ValidationError:
            raise UnreadableHeadError("it is damaged") from None
        if found.dataset != dataset_id:
            raise UnreadableHeadError("it belongs to another data set")
        return found

    def recorded(self) -> list[str]:
        """The data sets that have a record."""
        return sorted(path.stem for path in self.folder.glob("ds_*.json"))

    def write(self, head: Head) -> None:
        """Records a head, on disk before this returns. Does nothing if a newer one is recorded already.

        Raises:
            UnreadableHeadError: a record exists, and its content is unknown.
            OSError: the folder cannot be written.
        """
        with self.locked():
            before = self.read(head.dataset)
            if before is None or before.seq < head.seq:
                self._put(self._path(head.dataset), head.model_dump_json())

    def replace(self, head: Head) -> None:
        """Replaces the record of a head that the database has lost; keeps the old one and its checkpoint beside it."""
        with self.locked():
            path, aside = self._path(head.dataset), f".forgotten-{secrets.token_hex(4)}"
            for each, suffix in ((path, aside), (self._checkpoint(head.dataset), f"{aside}-checkpoint")):
                if each.exists():
                    each.replace(each.with_suffix(suffix))
            self._put(path, head.model_dump_json())

    def checkpoint(self, dataset_id: str) -> str | None:
        """The newest signed checkpoint of a data set, as a note; None if there is none.

        Raises:
            UnreadableHeadError: it is damaged, or the folder cannot be read.
        """
        try:
            note = self._checkpoint(dataset_id).read_text(encoding="utf-8")
            return note if read(note).dataset == dataset_id else _damaged()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UnreadableHeadError(f"the checkpoint: {type(error).__name__}") from None

    def keep_checkpoint(self, dataset_id: str, note: str) -> None:
        """Keeps a checkpoint, on disk before this returns; does nothing if one of more entries is kept, or the same one
        with all its signatures.

        Raises:
            UnreadableHeadError: one is kept, and its content is unknown.
            OSError: the folder cannot be written.
        """
        with self.locked():
            before = self.checkpoint(dataset_id)
            if before is None or read(before).size < read(note).size or _gains(before, note):
                self._put(self._checkpoint(dataset_id), note)

    def epoch(self) -> str | None:
        """The epoch from which the noise secret is derived; None before the first rotation."""
        try:
            return (self.folder / EPOCH_FILE).read_text().strip()
        except FileNotFoundError:
            return None

    def rotate_epoch(self) -> str:
        """Starts a new epoch of the noise key: no earlier key is used again. Returns its public name."""
        with self.locked():
            self._put(self.folder / EPOCH_FILE, secrets.token_hex(16))
        return self.epoch() or ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Serializes writers."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _path(self, dataset_id: str) -> Path:
        return self.folder / f"{dataset_id}.json"

    def _checkpoint(self, dataset_id: str) -> Path:
        return self.folder / f"{dataset_id}.checkpoint"

    def _put(self, path: Path, text: str) -> None:
        write_private(path, text.removesuffix("\n") + "\n", overwrite=True)  # this syncs the file
        sync(self.folder)
