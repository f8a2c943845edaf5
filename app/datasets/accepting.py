"""Accepts large files, to be read in the background (app.datasets.reader)."""

from __future__ import annotations

from app.audit import record as audit
from app.datasets import growth, quota, repository
from app.datasets.growth import Growing
from app.datasets.readings import begin
from app.datasets.resolving import OrderChooser, check_files, check_name, resolved
from app.datasets.sources import Arrived
from app.db.database import Database
from app.db.models import DatasetReading
from app.grants import service as grants
from app.keys.service import Caller
from app.settings import Settings


def accept(db: Database, settings: Settings, pricing: OrderChooser, caller: Caller, arrived: Arrived) -> DatasetReading:
    """Checks a declaration and keeps its files, to be read in the background.

    Raises:
        InvalidRequest: the declaration cannot be used, or a file is missing.
        Conflict: `duplicate-name`, `quota-exceeded`.
    """
    with db.read() as session:
        check_name(session, arrived.spec.name)
    check_files(arrived.spec, arrived.sources.keys())
    spec = resolved(arrived.spec, pricing)
    with db.write() as session:
        repository.take_turns(session)
        quota.reserve(session, settings, caller.id, arrived.new_bytes, arrived.new_bytes)
        check_name(session, spec.name)
        row = begin(session, settings, caller.id, spec, arrived)
        audit.record(session, "dataset.reading", row.id)
        return row


def accept_block(
    db: Database, settings: Settings, caller: Caller, to: Growing, label: str, arrived: Arrived
) -> DatasetReading:
    """Keeps a large block's file, to be read in the background in its owner's name.

    Raises:
        InvalidRequest: the file is missing.
        Conflict: `duplicate-label`, `quota-exceeded`; `wrong-state`: there are too many blocks.
    """
    check_files(arrived.spec, arrived.sources.keys())
    with db.write() as session:
        repository.take_turns(session)
        quota.reserve(session, settings, to.owner_key, arrived.new_bytes, arrived.new_bytes)
        grants.require(session, caller, to.id, "own")
        growth.check_room(session, to.id, label)
        spec = arrived.spec.without_files()
        row = begin(session, settings, to.owner_key, spec, arrived, to.block(label))
        audit.record(session, "block.reading", row.id)  # whatever is in the file
        return row
