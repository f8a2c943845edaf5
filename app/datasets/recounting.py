"""What the stored records say about a declaration."""

from __future__ import annotations

from contextlib import ExitStack

from app.datasets.parsing import Parsers
from app.datasets.sizes import ON_TOP, check_fits, declared_slots, split_sizes
from app.formats.asked import PartCounts, RecountRequest, SealedPart
from app.settings import Settings
from app.storage import parts
from app.storage.seals import Seals
from core.contracts.dataset_spec import DatasetSpec, PublicHoldout, SplitHoldout
from core.contracts.slots import rounded
from core.contracts.stored_documents import Counts, PartFiles, Shape, StoredFile
from core.errors import Unavailable
from core.parts.damage import DataDamagedError

DEVIATION = 0.1  # as at a registration


def counted(settings: Settings, parsers: Parsers, dataset_id: str, stored: PartFiles) -> PartCounts:
    """The private counts of each stored part of a data set.

    Raises:
        Unavailable: a part cannot be read.
    """
    part_store, seals = parts.of(settings), Seals(settings)
    unreadable = Unavailable("the stored records cannot be read at the moment")
    if stored.train is None:
        raise unreadable
    try:
        with ExitStack() as stack:

            def here(part: StoredFile) -> SealedPart:
                path = stack.enter_context(part_store.held(part.path, part.sha256))
                key = seals.key_of(path)
                return SealedPart(path=str(path), sha256=part.sha256, key=None if key is None else key.key.hex())

            holdout = None if stored.holdout is None else here(stored.holdout)
            counts = parsers.recount(RecountRequest(train=here(stored.train), holdout=holdout))
    except DataDamagedError:
        raise unreadable from None
    part_store.release(dataset_id)  # jobs run elsewhere, in most services: then this machine needs no copy
    return counts


def counts_of(spec: DatasetSpec, stored: PartCounts) -> Counts:
    """The private counts, as a registration answers them."""
    train, holdout = stored.train.units, stored.holdout.units if stored.holdout else 0
    records = train + holdout if isinstance(spec.holdout, SplitHoldout) else train
    return Counts(records=records, dropped=0, units=records, train=train, holdout=holdout)


def sizes_of(spec: DatasetSpec, shape: Shape, stored: PartCounts | None) -> Shape:
    """The public sizes of a declaration; the widths of records stay.

    Args:
        stored: what is checked; None: neither the declared number nor slots change.

    Raises:
        InvalidRequest: more records are stored than there are slots, or as `declared_slots`.
    """
    changed = shape.model_copy(update={"outputs": spec.task.outputs})
    slots = None if stored is None else declared_slots(spec, ON_TOP)
    if stored is None or slots is None or spec.privacy.records is None:
        return changed
    train, holdout = split_sizes(spec, spec.privacy.records, "/records")
    check_fits(spec, slots, stored, ON_TOP)
    if isinstance(spec.holdout, PublicHoldout):
        holdout = shape.records_holdout
    return changed.model_copy(update={"records_train": train, "records_holdout": holdout, "slots": slots})


def warnings_of(spec: DatasetSpec, counts: Counts) -> list[str]:
    """Warnings about the count, for the owner alone."""
    declared, stored = spec.privacy.records, counts.units
    if declared is None:
        return []
    if declared == stored != rounded(stored):
        return [
            f"{stored} is the exact number, and it is public now: a rounded one, such as {rounded(stored)}, shows less"
        ]
    if abs(stored - declared) > DEVIATION * declared:
        return [f"{stored} are stored, and {declared} declared: rates, step sizes and scores use the declared number"]
    return []
