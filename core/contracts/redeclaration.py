"""What an owner may declare anew about a data set that jobs have used: public numbers that no earlier charge rests on.

    records    the public count: rates, divisors and sizes of later jobs
    slots      at most this many units and records of each part: rows of later jobs
    classes    further classes, after the declared ones: stored labels are places in that list
    scale      a wider scale of ratings
    ranges     of a table's columns: cells are stored as read, and scaled when a job uses them
    governance  who answers for the data, and what later jobs must say of their use

Never the unit, its bound, the relation, the filter, its order, the cap's δ or the split: charges and the account rest
on these. Each job keeps the version that it was priced with.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from core.contracts.base import DECLARATION, Document
from core.contracts.dataset_spec import (
    ClassificationTask,
    ClassLabel,
    DatasetPrivacy,
    DatasetSpec,
    Features,
    RatingTask,
    ScaleEnd,
)
from core.contracts.feature_settings import ColumnName
from core.contracts.filter_names import Plan, may_move
from core.contracts.governance import Governance
from core.contracts.slots import DeclaredSlots
from core.contracts.table import CategoryColumn, RangeEnd, TableFeatures
from core.errors import InvalidRequest


class Redeclaration(Document):
    """The members to declare anew; those left out stay. `dry_run` changes nothing and tells its owner what it would
    say, with a rounded number of `records`. Anything else of a declaration stays for ever.

    Attributes:
        records: what is stored must fit the slots: those that were declared stay, defaults follow.
        slots: as many as are stored, or more. It replaces all of them: a number that it leaves out has its default.
        classes: the declared ones, in their order, and further ones; `shares` are dropped.
        scale: of ratings, as wide as before, or wider.
        ranges: of a table's numbers and dates, by column: any.
        governance: any; it replaces all of it.
        plan: from "models mostly" to "mixed".
    """

    records: Annotated[int, Field(strict=True, ge=1, le=10**12)] | None = None
    slots: DeclaredSlots | None = None
    classes: Annotated[list[ClassLabel], Field(min_length=2, max_length=10_000)] | None = None
    scale: tuple[ScaleEnd, ScaleEnd] | None = None
    ranges: (
        Annotated[dict[ColumnName, tuple[RangeEnd, RangeEnd] | tuple[date, date]], Field(max_length=10_000)] | None
    ) = None
    governance: Governance | None = None
    plan: Literal["mixed"] | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _asks(self) -> Redeclaration:
        members = (self.records, self.slots, self.classes, self.scale, self.ranges, self.governance, self.plan)
        if not self.dry_run and all(each is None for each in members):
            raise ValueError(
                "name what to declare anew: `records`, `slots`, `classes`, `scale`, `ranges`, `governance` or `plan`; "
                "all else stays for ever"
            )
        return self

    @property
    def counts(self) -> bool:
        """True if it concerns how many units there are, or may be."""
        return self.records is not None or self.slots is not None


def amended(spec: DatasetSpec, change: Redeclaration) -> DatasetSpec:
    """Returns the declaration with the asked changes; everything else is kept.

    Raises:
        InvalidRequest: a stored record, or a charge, would no longer fit.
    """
    task, privacy = spec.task, spec.privacy
    if change.records is not None:
        if privacy.sensitivity == "public":
            raise InvalidRequest.at("/records", "public data have their actual number of records: leave `records` out")
        privacy = privacy.model_copy(update={"records": change.records})
    if change.slots is not None:
        if privacy.sensitivity == "public":
            raise InvalidRequest.at("/slots", "public data have no slots: their number of records is public")
        stated = change.slots if change.slots != DeclaredSlots() else None
        privacy = privacy.model_copy(update={"slots": stated})
    privacy = _with_plan(privacy, change.plan)
    if change.classes is not None:
        if not isinstance(task, ClassificationTask):
            raise InvalidRequest.at("/classes", f"the task is {task.kind}: it has no classes")
        if change.classes[: len(task.classes)] != task.classes:
            detail = "begin with the declared classes in their order: stored labels are places in that list"
            raise InvalidRequest.at("/classes", detail)
        task = task.model_copy(update={"classes": change.classes, "shares": None})  # which were of the classes before
    if change.scale is not None:
        if not isinstance(task, RatingTask):
            raise InvalidRequest.at("/scale", f"the task is {task.kind}: it has no scale")
        if change.scale[0] > task.scale[0] or change.scale[1] < task.scale[1]:
            raise InvalidRequest.at("/scale", f"a scale can only become wider: it was {list(task.scale)}")
        task = task.model_copy(update={"scale": change.scale})
    features = _with_ranges(spec.features, change.ranges) if change.ranges is not None else spec.features
    changed = spec.model_copy(update={"task": task, "privacy": privacy, "features": features})
    if change.governance is not None:
        changed = changed.model_copy(update={"governance": change.governance})
    try:
        return DatasetSpec.model_validate(changed.model_dump(), context=DECLARATION)
    except ValidationError as error:
        raise InvalidRequest.at("", _reason(error.errors()[0])) from None


def _with_plan(privacy: DatasetPrivacy, plan: Plan | None) -> DatasetPrivacy:
    """With leave to move from one filter to the other."""
    if plan is None:
        return privacy
    if not may_move(privacy.plan):
        raise InvalidRequest.at("/plan", "only `models mostly` may become `mixed`: the filter stays for ever")
    return privacy.model_copy(update={"plan": plan})


def _with_ranges(features: Features, ranges: Mapping[str, tuple[object, object]]) -> Features:
    """The columns of a table with other ranges. Their cells are stored as read, and scaled when a job uses them."""
    if not isinstance(features, TableFeatures):
        raise InvalidRequest.at("/ranges", f"features of kind {features.kind} have no ranges")
    scaled = {each.name for each in features.columns if not isinstance(each, CategoryColumn)}
    for name in ranges:
        if name not in scaled:
            raise InvalidRequest.at("/ranges", f"there is no column of numbers or dates {name!r}")
    columns = []
    for column in features.columns:
        try:
            changed = type(column).model_validate(
                column.model_dump() | ({"range": ranges[column.name]} if column.name in ranges else {})
            )
        except ValidationError as error:
            raise InvalidRequest.at("/ranges", f"column {column.name!r}: {_reason(error.errors()[0])}") from None
        columns.append(changed)
    return features.model_copy(update={"columns": columns})


def _reason(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ")
