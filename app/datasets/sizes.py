"""The public sizes of a data set's parts: units by the declared count, and slots; and whether its records fit them.

A part's slots N are as declared, or 5 % more than its declared units, 64, and the spread of a split. More than N are
refused, and nothing is ever dropped to fit: one more record would take another's place. A refusal is told to the owner
alone. Like an N that is raised after it, it lies outside of the guarantee, whose neighbours both fit.
"""

from __future__ import annotations

from app.formats.asked import PartCount, PartCounts
from core.contracts.dataset_spec import DatasetSpec, LastItemHoldout, SplitHoldout
from core.contracts.slots import MOST_SLOTS, DeclaredSlots, PartSlots, Slots
from core.contracts.stored_documents import Shape
from core.errors import InvalidRequest
from core.privacy.slot_numbers import default_slots, unstated_slots, with_margin

REGISTRATION, ON_TOP = "/privacy", ""  # where a DatasetSpec has `records` and `slots`; a BlockSpec and a Redeclaration
USES = {"train": "train on", "holdout": "hold out"}


def check_declared(spec: DatasetSpec, limit: int, at: str = REGISTRATION) -> None:
    """Refuses a declaration of more records or slots than the operator allows, before its file is looked at.

    Args:
        at: as `declared_slots` takes it.

    Raises:
        InvalidRequest: at the first such number.
    """
    stated = {} if spec.privacy.slots is None else spec.privacy.slots.model_dump(exclude_none=True)
    numbers = {"records": spec.privacy.records or 0} | {f"slots/{member}": count for member, count in stated.items()}
    for member, count in numbers.items():
        if count > limit:
            detail = (
                f"{count:,} are declared, and one file may have at most {limit:,}: register it in blocks, or ask the "
                "operator to raise SCRIMP_MAX_RECORDS"
            )
            raise InvalidRequest.at(f"{at}/{member}", detail)


def split_sizes(spec: DatasetSpec, records: int, pointer: str = "/holdout/fraction") -> tuple[int, int]:
    """The public sizes of training part and hold-out, from the declared count: the split's actual sizes are private.

    Raises:
        InvalidRequest: one side is left without a record; at `pointer`.
    """
    if isinstance(spec.holdout, LastItemHoldout):
        return records, records  # the same users
    if not isinstance(spec.holdout, SplitHoldout):
        return records, 0
    train = round(records * (1 - spec.holdout.fraction))
    if not 0 < train < records:
        detail = f"a split of {records} records leaves {train} for training and {records - train} held out"
        raise InvalidRequest.at(pointer, detail)
    return train, records - train


def whole_of(spec: DatasetSpec, train: int) -> int:
    """Returns the declared count of a data set whose split leaves so many to train on.

    A split rounds (1 − f) · records, which grows by less than one a record: each number to train on has a count.
    """
    if not isinstance(spec.holdout, SplitHoldout):
        return train
    share = 1.0 - spec.holdout.fraction
    near = round(train / share)
    return min((near, near + 1, near - 1), key=lambda total: abs(round(total * share) - train))


def declared_slots(spec: DatasetSpec, at: str = REGISTRATION) -> Slots | None:
    """Returns the slots of a private data set's parts, as declared or by default; None for public data.

    Args:
        at: the pointer to the document with `records` and `slots`.

    Raises:
        InvalidRequest: slots of a hold-out that has none of its own; fewer slots than declared units; rows that so many
            units cannot have.
    """
    records, stated = spec.privacy.records, spec.privacy.slots or DeclaredSlots()
    if spec.privacy.sensitivity == "public" or records is None:
        return None
    _check_holdout(spec, stated, at)
    total = records if isinstance(spec.holdout, SplitHoldout) else None
    train, holdout = split_sizes(spec, records, "/holdout/fraction" if at == REGISTRATION else f"{at}/records")
    part_to_train = _part(spec, "train", train, total, at)
    if isinstance(spec.holdout, LastItemHoldout):
        return Slots(train=part_to_train, holdout=part_to_train)
    return Slots(train=part_to_train, holdout=None if total is None else _part(spec, "holdout", holdout, total, at))


def default_slots_of(spec: DatasetSpec) -> Slots | None:
    """Returns the slots that a data set has where its owner declares none; None for public data."""
    return declared_slots(spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"slots": None})}))


def suggested_slots(spec: DatasetSpec, stored: PartCounts, squares: PartCount) -> Slots | None:
    """Returns slots for each part by the file: 5 % more, 64, and six standard deviations of the split, rounded up to
    three digits; None for public data. Private: for the owner alone.

    A part's size has variance f (1 − f) Σ (class size)²: equal records, and a user's, are on one side.

    Args:
        stored: what the file's parts hold.
        squares: Σ (class size)² of units, and of records.
    """
    if spec.privacy.sensitivity == "public":
        return None
    units, rows, k = stored.train.units, stored.train.rows, _records_per_unit(spec)
    if isinstance(spec.holdout, SplitHoldout) and stored.holdout is not None:
        units, rows = units + stored.holdout.units, rows + stored.holdout.rows

    def part(share: float) -> PartSlots:
        variance = share * (1.0 - share)
        slots = _rounded_up(with_margin(round(units * share), variance * squares.units))
        records = _rounded_up(with_margin(round(rows * share), variance * squares.rows))
        return PartSlots(units=slots, rows=min(k * slots, max(slots, records)))

    if isinstance(spec.holdout, SplitHoldout):
        return Slots(train=part(1.0 - spec.holdout.fraction), holdout=part(spec.holdout.fraction))
    return Slots(train=part(1.0), holdout=part(1.0) if isinstance(spec.holdout, LastItemHoldout) else None)


def check_fits(spec: DatasetSpec, slots: Slots, stored: PartCounts, at: str = REGISTRATION) -> None:
    """Refuses records that have no place. Only the owner sees the answer.

    Raises:
        InvalidRequest: a part has more units, or more records, than slots; at the declared number.
    """
    _check_part(spec, "train", slots.train, stored.train, at)
    if slots.holdout is not None and stored.holdout is not None:
        _check_part(spec, "holdout", slots.holdout, stored.holdout, at)


def slots_warnings(spec: DatasetSpec, shape: Shape) -> list[str]:
    """Warns of a private data set that was registered before there were slots."""
    if spec.privacy.sensitivity == "public" or shape.slots is not None:
        return []
    rows = unstated_slots(shape.records_train)
    return [
        f"registered before there were slots: jobs on it compute {rows} rows in a full batch, twice those declared and "
        "64; state slots (`scrimp datasets slots`), from what you expect to be true of the data"
    ]


def _check_holdout(spec: DatasetSpec, stated: DeclaredSlots, at: str) -> None:
    if isinstance(spec.holdout, SplitHoldout):
        return
    because = (
        "the hold-out has the training part's users, and their slots"
        if isinstance(spec.holdout, LastItemHoldout)
        else "there is no private hold-out"
    )
    for member in ("holdout", "holdout_rows"):
        if getattr(stated, member) is not None:
            raise InvalidRequest.at(f"{at}/slots/{member}", f"{because}: leave `{member}` out")


def _part(spec: DatasetSpec, name: str, declared: int, total: int | None, at: str) -> PartSlots:
    """The slots of one part.

    Args:
        declared: the units of this part by the declared count.
        total: those of the data set, if a hash splits it.
    """
    stated, k = spec.privacy.slots or DeclaredSlots(), _records_per_unit(spec)
    units, rows = getattr(stated, name), getattr(stated, f"{name}_rows")
    if units is None:
        units = default_slots(declared, all_units=total)
    elif units < declared:
        detail = f"{units} slots are fewer than the {declared} declared to {USES[name]}: declare {declared} or more"
        raise InvalidRequest.at(f"{at}/slots/{name}", detail)
    if k * units > MOST_SLOTS:
        detail = f"{units} slots for users of up to {k} records are more than {MOST_SLOTS}: declare fewer"
        raise InvalidRequest.at(_pointer(stated, name, at), detail)
    if rows is None:
        return PartSlots(units=units, rows=k * units)
    pointer = f"{at}/slots/{name}_rows"
    if k == 1 and rows != units:
        raise InvalidRequest.at(pointer, f"a unit is one record here, so rows are the {units} units: leave it out")
    if not units <= rows <= k * units:
        detail = f"{units} units of 1 to {k} records have {units} to {k * units} rows: declare a number between"
        raise InvalidRequest.at(pointer, detail)
    return PartSlots(units=units, rows=rows)


def _check_part(spec: DatasetSpec, name: str, slots: PartSlots, count: PartCount, at: str) -> None:
    stated = spec.privacy.slots or DeclaredSlots()
    checks = (
        (name, count.units, slots.units, "users" if spec.privacy.unit == "user" else "records"),
        (f"{name}_rows", count.rows, slots.rows, "records of users"),
    )
    for member, number, limit, noun in checks:
        if number > limit:
            raise InvalidRequest.at(
                _pointer(stated, member, at),
                f"there are {number} {noun} to {USES[name]}, and {limit} slots: declare `slots.{member}` of "
                f"{_rounded_up(with_margin(number, 0.0))}, or more `records`. Choose it from what you expect to be "
                "true of the data, before you count them. Only you are told",
            )


def _pointer(stated: DeclaredSlots, member: str, at: str) -> str:
    """To the declared number that a default comes from, if the member itself is not declared."""
    return f"{at}/records" if getattr(stated, member) is None else f"{at}/slots/{member}"


def _records_per_unit(spec: DatasetSpec) -> int:
    return spec.privacy.max_records_per_user or 1


def _rounded_up(count: int) -> int:
    """To three digits, and at least to tens: an exact number would show the count that it was made from.

    >>> _rounded_up(1114), _rounded_up(21_444), _rounded_up(127)
    (1120, 21500, 130)
    """
    unit: int = 10 ** max(1, len(str(count)) - 3)
    return -(-count // unit) * unit
