"""Reads one registration's file and stores what it says: a data set, or a block of one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.orm import Session

from app.datasets import duplicates, growth, parsed, readings, repository, sources, storage
from app.datasets.block_entry import enter, examine
from app.datasets.growth import Changed, Stale
from app.datasets.parsing import Parsers
from app.datasets.readings import Claimed, Lost
from app.datasets.storing import Block, New, published, store
from app.db.database import Database
from app.ledger import behind
from app.ledger.transparency.heads import Heads
from app.sandbox.limited import Interrupted, Watch
from app.settings import Settings
from core.contracts.blocks import BlockSpec
from core.errors import InvalidRequest, Unavailable

TRIES, AGAIN_S = 30, 1.0  # while the data key is being rotated, or a retirement recorded


@dataclass(frozen=True)
class File:
    """A claimed registration's file."""

    db: Database
    settings: Settings
    parsers: Parsers
    claimed: Claimed
    watch: Watch

    def parse_and_store(self, folder: Path) -> None:
        """Reads the file, and stores it as a data set, or as a block."""
        claimed, watch = self.claimed, self.watch
        if not folder.exists():
            raise InvalidRequest.at("/file", "the file is gone: register it again")
        sources.fetch(claimed.sources, folder, self.settings, self.parsers)
        work = folder / f"attempt-{claimed.attempt}"
        for old in folder.glob("attempt-*"):
            shutil.rmtree(old, ignore_errors=True)
        work.mkdir(mode=0o700)
        for name in claimed.sources:
            file = storage.arrived(folder, name)
            (work / file.name).hardlink_to(file)
        if watch.stop.is_set():
            raise Interrupted
        if claimed.block is not None:
            return self._append(claimed.block, work)
        earlier = duplicates.compares_earlier_hashes(self.db, self.settings, claimed.owner_key)
        content = parsed.read(self.settings, self.parsers, claimed.spec, work, watch, earlier_hashes=earlier)
        new = New(claimed.id, claimed.owner_key, claimed.spec)
        with published(self.settings, new.dataset_id, content, unclaimed=(Lost,)) as published_parts:

            def stored() -> None:
                duplicates.check_forgotten(self.db, self.settings, new.owner_key, content.known_as)
                with self._ending() as session:
                    readings.end(session, claimed, store(session, self.settings, new, content, published_parts))

            self._again(stored)
        return None

    def _again(self, store: Callable[[], None]) -> None:
        """Stores what was read, again while something else is under way."""
        for _ in range(TRIES):
            try:
                return store()
            except Stale:
                raise
            except (Unavailable, Changed):
                if self.watch.stop.wait(AGAIN_S):
                    raise
        return store()

    @contextmanager
    def _ending(self) -> Iterator[Session]:
        """The transaction that ends the registration."""
        with self.db.write() as session:
            repository.take_turns(session)
            readings.begin_end(session, self.claimed)
            yield session

    def _append(self, block: Block, work: Path) -> None:
        """Reads a block under its data set's declaration as it is now."""
        claimed = self.claimed
        to = growth.still_growing(self.db, block.parent_id)
        block_spec = BlockSpec(
            label=block.label, records=claimed.spec.privacy.records or 0, slots=claimed.spec.privacy.slots
        )
        new = New(claimed.id, claimed.owner_key, growth.declaration(to, block_spec), block)
        later = growth.after(self.db, self.settings, to, work)
        earlier = duplicates.compares_earlier_hashes(self.db, self.settings, claimed.owner_key)
        content = parsed.read(self.settings, self.parsers, new.spec, work, self.watch, later, earlier_hashes=earlier)
        with published(self.settings, new.dataset_id, content, unclaimed=(Lost,)) as published_parts:

            def stored() -> None:
                """Compares the block with the data set as it is now, which it was read under the declaration of."""
                now = replace(growth.still_growing(self.db, to.id), declaration=to.declaration)
                recorded = examine(self.db, self.settings, now, new.spec, content)
                with self._ending() as session:
                    entered = enter(session, self.settings, now, new, content, published_parts, recorded)
                    readings.end(session, claimed, entered)

            self._again(stored)
        behind.record_soon(self.db, Heads.of(self.settings), new.dataset_id)
