"""The declared ids of users and items: a list made from the data would leak them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from core.contracts.base import Document

IdText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MAX_IDS = 10_000_000


class NumberedIds(Document):
    """The whole numbers first, first + 1, …, first + count − 1."""

    kind: Literal["numbered"] = "numbered"
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_IDS)]
    first: Annotated[int, Field(strict=True, ge=0, le=2**53)] = 1

    @property
    def rows(self) -> int:
        return self.count


class ListedIds(Document):
    """A public list of ids."""

    kind: Literal["listed"] = "listed"
    ids: Annotated[list[IdText], Field(min_length=1, max_length=50_000)]

    @model_validator(mode="after")
    def _distinct(self) -> ListedIds:
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("`ids` must be distinct")
        return self

    @property
    def rows(self) -> int:
        return len(self.ids)


class HashedIds(Document):
    """Any id, mapped to the first 64 bits of its SHA-256 modulo `buckets`. No list is needed; some ids share a row."""

    kind: Literal["hashed"] = "hashed"
    buckets: Annotated[int, Field(strict=True, ge=1, le=MAX_IDS)]

    @property
    def rows(self) -> int:
        return self.buckets


Ids = Annotated[NumberedIds | ListedIds | HashedIds, Field(discriminator="kind")]
