"""What all tables share: their base, times in UTC, names of constraints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar, cast

from pydantic import TypeAdapter
from sqlalchemy import JSON, BigInteger, DateTime, Float, Integer, MetaData, String, Table, TypeDecorator
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC times on every database (SQLite forgets the zone)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Stored = TypeVar("Stored")


class Documents(TypeDecorator[Stored]):
    """A JSON column of frozen documents (core.contracts.stored_documents): JSON in the database, typed everywhere else.

    Args:
        document_type: the type of the column's values: a `Document`, or a tuple of some.

    Raises:
        ValidationError: a row holds another document, or is given one.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, document_type: type[Stored]) -> None:
        super().__init__()
        self.of = document_type
        self._adapter = TypeAdapter(document_type)

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        return None if value is None else self._adapter.dump_python(self._adapter.validate_python(value), mode="json")

    def process_result_value(self, value: object, dialect: Dialect) -> Stored | None:
        return None if value is None else self._adapter.validate_python(value)


class Base(DeclarativeBase):
    """The declarative base of all tables."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        int: BigInteger().with_variant(Integer, "sqlite"),
        dict[str, Any]: JSON(none_as_null=True),
        str: String(200),
        float: Float(53),
    }


def table_of(model: type[Base]) -> Table:
    """A model's table, for statements without the ORM: the ORM takes three times as long for a row on hot paths."""
    return cast(Table, model.__table__)
