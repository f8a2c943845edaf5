"""Appends blocks: checks and stores a file at once. Large ones wait for the background (app.datasets.accepting).

Either way the same steps: the file is parsed under the data set's declaration, compared with all blocks (`examine`),
and stored in one transaction in which the data set is as it was compared (`enter`).
"""

from __future__ import annotations

from app.datasets import duplicates, growth, parsed, quota, repository
from app.datasets.block_entry import enter, examine
from app.datasets.declaring import Declared
from app.datasets.growth import Growing
from app.datasets.parsing import Parsers
from app.datasets.resolving import check_files
from app.datasets.sources import Arrived
from app.datasets.storing import New, published
from app.db.database import Database
from app.grants import service as grants
from app.keys.service import Caller
from app.settings import Settings
from core.ids import new_id


def append(
    db: Database,
    settings: Settings,
    parsers: Parsers,
    caller: Caller,
    to: Growing,
    label: str,
    arrived: Arrived,
) -> Declared:
    """Checks and stores a block, and opens its account with the data set's cap.

    Args:
        to: what `blocks.growing` answered.
        arrived: with the data set's declaration, and the block's number of records.
        folder: as `service.register` takes it.

    Raises:
        InvalidRequest: the file cannot be used.
        Conflict: `quota-exceeded`; as `examine` and `enter`.
        Unavailable: the units of a block cannot be read.
        LimitError: as `service.register`.
    """
    with db.read() as session:
        growth.check_room(session, to.id, label)
    check_files(arrived.spec, arrived.sources.keys())
    spec = arrived.spec.without_files()
    earlier, later = (
        duplicates.compares_earlier_hashes(db, settings, to.owner_key),
        growth.after(db, settings, to, arrived.folder),
    )
    content = parsed.read(settings, parsers, spec, arrived.folder, after=later, earlier_hashes=earlier)
    recorded = examine(db, settings, to, spec, content)
    dataset_id = new_id("ds")
    with published(settings, dataset_id, content) as published_parts, db.write() as session:
        repository.take_turns(session)
        quota.reserve(session, settings, to.owner_key, arrived.new_bytes, arrived.new_bytes)
        grants.require(session, caller, to.id, "own")
        new = New(dataset_id, to.owner_key, spec, to.block(label))
        return enter(session, settings, to, new, content, published_parts, recorded)
