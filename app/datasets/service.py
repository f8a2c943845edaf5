"""Data sets: declared, checked, stored once. Their content never changes.

`register` is the admission: declaration (public numbers, cap, order) → parsing in a limited process (`read`) → one
transaction that writes the data set, the keyed hashes of its content and its account, and puts its files in place
(`store`). Large files take the same steps in the background (app.datasets.reader). A crash leaves at worst a folder
without references, which `sweep` removes; in a bucket, objects without references (docs/production.md).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from app.datasets import duplicates, quota, repository
from app.datasets.declaring import Declared
from app.datasets.parsed import read
from app.datasets.parsing import Parsers
from app.datasets.resolving import OrderChooser, check_files, check_name, resolved, shape_of
from app.datasets.sizes import suggested_slots
from app.datasets.sources import Arrived
from app.datasets.storing import New, delta_warnings, published, store
from app.db.database import Database
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.settings import Settings
from app.storage.folder import stale
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.slots import Slots
from core.contracts.stored_documents import Counts, Shape
from core.errors import Conflict
from core.ids import new_id
from core.privacy import filter_reading


def register(
    db: Database,
    settings: Settings,
    pricing: OrderChooser,
    parsers: Parsers,
    caller: Caller,
    arrived: Arrived,
) -> Declared:
    """Checks and stores a data set, and opens its account.

    Args:
        arrived: with the declaration; everything in it is public. Its folder holds `file` and, where declared,
            `holdout_file` and `edges_file`.

    Raises:
        InvalidRequest: the declaration or a file cannot be used; pointers, columns and counts.
        Conflict: `duplicate-name`, or `duplicate-content`: this owner registered it before, and one of the two is
            private. A second registration of private content would be a second budget for it. Other owners' content
            is not compared: decision 15. `ledger-behind`: this owner registered it, and the database has lost it.
            `quota-exceeded`.
        LimitError: parsing took more memory or time than is allowed, or other files are being parsed (503).
    """
    spec = arrived.spec
    with db.read() as session:
        check_name(session, spec.name)
    check_files(spec, arrived.sources.keys())
    spec = resolved(spec, pricing)
    earlier = duplicates.compares_earlier_hashes(db, settings, caller.id)
    content = read(settings, parsers, spec, arrived.folder, earlier_hashes=earlier)
    new = New(new_id("ds"), caller.id, spec)
    duplicates.check_forgotten(db, settings, caller.id, content.known_as)
    try:
        with published(settings, new.dataset_id, content) as published_parts, db.write() as session:
            repository.take_turns(session)
            quota.reserve(session, settings, caller.id, arrived.new_bytes, arrived.new_bytes)
            return store(session, settings, new, content, published_parts)
    except IntegrityError:
        with db.read() as session:
            check_name(session, spec.name)
        raise


@dataclass(frozen=True)
class Checked:
    """What a registration would say, for the owner alone; nothing is stored.

    Attributes:
        spec: the declaration with its defaults filled in.
        shape: the public sizes that jobs would be planned with.
        suggested_slots: by the file; None for public data.
    """

    spec: DatasetSpec
    shape: Shape
    counts: Counts
    suggested_slots: Slots | None
    warnings: list[str]


def check(
    db: Database,
    settings: Settings,
    pricing: OrderChooser,
    parsers: Parsers,
    caller: Caller,
    arrived: Arrived,
) -> Checked:
    """Parses and checks a data set like `register`, and stores nothing. A name or a content that is taken is a warning.

    Raises:
        InvalidRequest, LimitError: as in `register`.
    """
    check_files(arrived.spec, arrived.sources.keys())
    spec = resolved(arrived.spec, pricing)
    earlier = duplicates.compares_earlier_hashes(db, settings, caller.id)
    parsed = read(settings, parsers, spec, arrived.folder, earlier_hashes=earlier).parsed
    warnings = [*parsed.warnings, *delta_warnings(spec), *_order_by_default(arrived.spec, spec)]
    with db.read() as session:
        try:
            check_name(session, spec.name)
        except Conflict as error:
            warnings.append(f"a registration would be refused: {error.message}")
        try:
            duplicates.check(session, Heads.of(settings), caller.id, spec, parsed.contents)
        except Conflict as error:
            warnings.append(f"a registration would be refused: {error.message}")
    suggested = suggested_slots(spec, parsed.stored, parsed.squares)
    return Checked(spec, shape_of(spec, parsed), parsed.counts, suggested, warnings)


def sweep(settings: Settings) -> int:
    """Removes the staging folders of crashed registrations, a day later. Returns how many it removed.

    Nothing under `datasets/` is ever removed for being absent from this database: it may be the wrong database.
    """
    arrive, store = settings.arrivals_root, settings.storage_root
    left = list(stale(arrive, "staging"))
    if store != arrive:  # where the last release left them
        left += [folder for kind in ("staging", "uploads") for folder in stale(store, kind)]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def _order_by_default(declared: DatasetSpec, spec: DatasetSpec) -> list[str]:
    """What jobs will read as, where the owner named neither an order nor a typical job."""
    privacy, cap, order = declared.privacy, spec.privacy.cap, spec.privacy.order
    if (
        privacy.order is not None
        or privacy.typical_job is not None
        or order is None
        or cap is None
        or cap.delta is None
    ):
        return []
    return [filter_reading.of_registration(order, cap.epsilon, cap.delta)]
