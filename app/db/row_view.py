"""Answers that are read from rows. A field of an answer says where its value comes from; from that follow the columns
that a statement loads and the members that are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Generic, Self, TypeVar

from core.contracts.base import Deferred
from core.ids import rfc3339

T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """The column that a field shows, if that has another name.

    Attributes:
        text: lists and polls load it as stored text and send it as it is, without a Python object of it.
    """

    name: str
    text: bool = False


class Computed:
    """A field that is a function of a row and of the columns that it reads."""

    def __init__(self, value: Callable[[Any], Any], *columns: str) -> None:
        self.value, self.columns = value, columns


class Moment(Computed):
    """A field that shows a column's time as text."""

    def __init__(self, column: str) -> None:
        super().__init__(lambda row: rfc3339(getattr(row, column)), column)


@dataclass(frozen=True)
class Given:
    """A field that is no function of the row: `of` is told its value."""


@dataclass(frozen=True)
class Separate:
    """A field that a route of its own shows: its column is not loaded with the others."""


SAYS = Column | Computed | Given | Separate


class RowView(Deferred):
    """An answer of one row. A field without a declaration shows the column of its name.

    Attributes:
        row: the attribute of a source that is the row; "": the source itself.
        members: reads the members of a source, not checked, but for those that are sent as they are stored.
    """

    row: ClassVar[str] = ""
    members: ClassVar[Callable[[Any], dict[str, Any]]]
    _columns: ClassVar[tuple[Column, ...]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_arguments: Any) -> None:
        reads: dict[str, Callable[[Any], Any]] = {}
        columns: dict[str, Column] = {}
        for name, field in cls.model_fields.items():
            declared = next((each for each in field.metadata if isinstance(each, SAYS)), None)
            match declared or Column(name):
                case Column() as column:
                    columns[column.name] = column
                    if not column.text:
                        reads[name] = attrgetter(f"{cls.row}.{column.name}" if cls.row else column.name)
                case Computed() as computed:
                    columns |= {each: Column(each) for each in computed.columns if each not in columns}
                    reads[name] = computed.value
        pairs = tuple(reads.items())
        cls._columns = tuple(columns.values())
        # A poll reads some ten rows: a method that looked this up in the class would take half as long again.
        cls.members = lambda source: {name: reader(source) for name, reader in pairs}

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The columns that the answer is read from."""
        return tuple(each.name for each in cls._columns)

    @classmethod
    def texts(cls) -> tuple[str, ...]:
        """Those of them that are sent as they are stored."""
        return tuple(each.name for each in cls._columns if each.text)

    @classmethod
    def of(cls, source: Any, **extra: Any) -> Self:
        """Builds the answer of a row, and of what is `Given` with it."""
        return cls.model_validate(cls.members(source) | extra)


class Page(Deferred, Generic[T]):
    """A page of a list; `next` is the cursor of the next page, null on the last."""

    items: list[T]
    next: str | None


class Whole(Deferred, Generic[T]):
    """A list on one page."""

    items: list[T]
    next: None = None
