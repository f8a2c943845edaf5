"""Blocks: what a data set grows by, and which of them a job reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from core.contracts.base import Document, is_none
from core.contracts.dataset_spec import UploadId
from core.contracts.slots import DeclaredSlots

FIRST, ALL = "first", "all"  # the block that a data set was registered with; all that can pay
UNITS = "units"  # the file of the digests of a data set's units, and the folder of published ones
Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
MOST_BLOCKS = 1000  # of a data set; a job may name them all
Chosen = Annotated[list[Label], Field(min_length=1, max_length=MOST_BLOCKS)]


class BlockSpec(Document):
    """The declaration of a block; everything else is its data set's. All of it is public.

    `records` counts units, as at a registration: people who were in earlier blocks too. `slots`: the block's own, as at
    a registration; by default 64 more than 5 % above `records`, so many small blocks cost more rows. A data set with a
    file of edges has one in each block.
    """

    label: Label
    records: Annotated[int, Field(strict=True, ge=1, le=10**12)]
    slots: DeclaredSlots | None = Field(default=None, exclude_if=is_none)
    path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None
    upload: UploadId | None = None
    edges_path: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = Field(
        default=None, exclude_if=is_none
    )
    edges_upload: UploadId | None = Field(default=None, exclude_if=is_none)

    @field_validator("label")
    @classmethod
    def _is_free(cls, label: str) -> str:
        if label in (FIRST, ALL):
            raise ValueError(f"{label!r} names the block of the registration, or all blocks: choose another label")
        return label


BlockChoice = Literal["all"] | Chosen
