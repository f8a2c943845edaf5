"""Tables as hospitals have them: numbers with ranges, categories, dates, missing cells. Everything is declared.

A record's features are a function of its own cells and of the declaration; nothing is computed from other records.

    number     2 (clip(x) − lo) / (hi − lo) − 1, in [−1, 1]; without a range x itself
               with `scale` "log" the same of log x; with `bins`, 1 for the bin that x is in and 0 for each other
    date       the same, of its day; the range is two days
    category   one place for each declared value, which is 1 or 0; one more for `other` where a rule needs it
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, model_validator

from core.contracts.base import DECLARATION, Document, is_none
from core.contracts.feature_settings import ColumnName, FeatureSettings

CellText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
CategoryValue = Annotated[int, Field(ge=-(2**53), le=2**53)] | CellText
RangeEnd = Annotated[float, Field(ge=-1e30, le=1e30)]
Bins = (
    Annotated[int, Field(strict=True, ge=2, le=1_000)]
    | Annotated[tuple[RangeEnd, ...], Field(min_length=1, max_length=999)]
)
WITHIN_RANGE = 0.06  # the variance of a number on its range as [−1, 1]
EPOCH = date(1970, 1, 1)


class _Column(Document):
    """A column's name, and the texts that mean a missing cell, as an empty one does."""

    name: ColumnName
    missing_cells: Annotated[tuple[CellText, ...], Field(max_length=20)] = ()


class NumberColumn(_Column):
    """A number. With `range` [lo, hi], values beyond it are clipped, and x becomes 2 (x − lo) / (hi − lo) − 1, of logs
    with `scale` "log". Cells are stored as read: a range can be declared anew.

    `scale`: "log" for sums of money, counts and other quantities over several decades, with a range above 0: its
    lowest end is the smallest value that is told from zero.

    `bins`: a number of bins that are equally wide on the scale, or the edges between them: (18, 65) makes three bins,
    and 18 is in the second. Each bin is a feature, 1 for a number in it.

    `missing`: `refuse` the file; take the `middle` of the range, or a number; the middle with a `flag`, a further
    feature that is 1 where the cell is missing; or, with `bins`, a bin of its `own`.
    """

    kind: Literal["number"] = "number"
    range: tuple[RangeEnd, RangeEnd] | None = None
    scale: Literal["linear", "log"] = Field(default="linear", exclude_if=lambda scale: scale == "linear")
    bins: Bins | None = Field(default=None, exclude_if=is_none)
    missing: Literal["refuse", "middle", "flag", "own"] | Annotated[float, Field(strict=True, ge=-1e30, le=1e30)] = (
        "refuse"
    )

    @model_validator(mode="after")
    def _ordered(self, info: ValidationInfo) -> NumberColumn:
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError("`range` must be [lowest, highest]")
        if self.range is None and self.missing in ("middle", "flag"):
            raise ValueError("a missing number becomes the middle of `range`: declare one")
        if self.scale == "log" and (self.range is None or self.range[0] <= 0.0):
            raise ValueError("a log scale needs a `range` above 0: smaller values count as its lowest end")
        if info.context == DECLARATION and self.scale == "log" and self.range is not None:
            low, high = map(math.log, self.range)
            if low >= high:  # as numbers on [−1, 1] divide by their difference
                raise ValueError("both ends of `range` have the same logarithm: make it wider, or the scale linear")
        return self

    @model_validator(mode="after")
    def _binned(self) -> NumberColumn:
        if (self.bins is None and self.missing == "own") or (self.bins is not None and self.missing == "flag"):
            raise ValueError("a missing number has its `own` bin with `bins`, and a `flag` without them")
        if isinstance(self.bins, int) and self.range is None:
            raise ValueError("a number of `bins` divides a `range`: declare one, or give the edges between bins")
        if isinstance(self.bins, tuple) and (self.range is not None or sorted(set(self.bins)) != list(self.bins)):
            raise ValueError("the edges between `bins` must rise, and need no `range`")
        return self

    @property
    def ends(self) -> tuple[float, float] | None:
        """The range as numbers."""
        return self.range

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges between bins; empty without bins."""
        if not isinstance(self.bins, int) or self.range is None:
            return self.bins if isinstance(self.bins, tuple) else ()
        low, high = self.range
        if self.scale == "log":
            return tuple(low * (high / low) ** (each / self.bins) for each in range(1, self.bins))
        return tuple(low + (high - low) * (each / self.bins) for each in range(1, self.bins))

    @property
    def substitute(self) -> float:
        """The number that a missing cell counts as, if it has no feature of its own."""
        if isinstance(self.missing, float):
            return self.missing
        if self.range is None:
            return 0.0
        low, high = self.range
        return math.sqrt(low) * math.sqrt(high) if self.scale == "log" else low / 2 + high / 2

    @property
    def example(self) -> float:
        """A cell, not taken from data: the middle of the range."""
        return 0.0 if self.range is None else self.range[0] / 2 + self.range[1] / 2

    @property
    def width(self) -> int:
        """How many features it makes."""
        bins = len(self.edges) + 1 if self.bins is not None else 1
        return bins + (self.missing in ("flag", "own"))


class DateColumn(_Column):
    """A day, scaled by its range like a number. `format` is "iso" (2024-05-01, a time after it is not read) or a
    pattern such as "%d.%m.%Y". A time's day is that of its zone; years 1 to 9999."""

    kind: Literal["date"] = "date"
    range: tuple[date, date]
    format: Annotated[str, StringConstraints(pattern=r"^(iso|[%dmYybB/. ,:HMS-]{4,40})$")] = "iso"
    missing: Literal["refuse", "middle", "flag"] = "refuse"

    @model_validator(mode="after")
    def _ordered(self) -> DateColumn:
        if self.range[0] >= self.range[1]:
            raise ValueError("`range` must be [first day, last day]")
        if self.format != "iso":
            for day in self.range:
                if self.day(day.strftime(self.format)) != (day - EPOCH).days:
                    raise ValueError("`format` must tell day, month and year, such as %d.%m.%Y")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The range as numbers of days."""
        first, last = self.range
        return float((first - EPOCH).days), float((last - EPOCH).days)

    @property
    def example(self) -> str:
        """A cell, not taken from data: the first day of the range."""
        first = self.range[0]
        return first.isoformat() if self.format == "iso" else first.strftime(self.format)

    @property
    def width(self) -> int:
        """How many features it makes."""
        return 2 if self.missing == "flag" else 1

    def day(self, cell: object) -> float:
        """Converts a cell to the number of days since 1970; raises ValueError if it is no day."""
        if isinstance(cell, datetime):
            day = cell.date()
        elif isinstance(cell, date):
            day = cell
        elif not isinstance(cell, str):
            raise ValueError
        elif self.format == "iso":
            day = datetime.fromisoformat(cell.strip()).date()
        else:
            day = datetime.strptime(cell.strip(), self.format).date()
        return float((day - EPOCH).days)


class CategoryColumn(_Column):
    """One of the declared values, compared as text: a feature each, and one for `other` where used. `unknown` decides
    about other values, `missing` about missing cells: `refuse` the file, or count them as `other`."""

    kind: Literal["category"] = "category"
    values: Annotated[list[CategoryValue], Field(min_length=1, max_length=10_000)]
    unknown: Literal["refuse", "other"] = "refuse"
    missing: Literal["refuse", "other"] = "refuse"

    @model_validator(mode="after")
    def _distinct(self) -> CategoryColumn:
        if len({str(each) for each in self.values}) != len(self.values):
            raise ValueError("`values` must be distinct, also when written as text")
        return self

    @property
    def width(self) -> int:
        """How many features it makes."""
        return len(self.values) + (self.other is not None)

    @property
    def other(self) -> str | None:
        """What the place of other, or missing, values is called: a text that is no declared value; None: there is none.

        >>> CategoryColumn(name="a", kind="category", values=["x", "other"], unknown="other").other
        'other_'
        """
        if "other" not in (self.unknown, self.missing):
            return None
        text, names = "other", {str(each) for each in self.values}
        while text in names:
            text += "_"
        return text

    @property
    def example(self) -> CategoryValue:
        """A cell, not taken from data: the first declared value."""
        return self.values[0]


PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))  # of ASCII
CELL_VALUES = 2**24  # integers that a stored float32 tells from one another


class TextColumn(Document):
    """A text whose values nobody has to know: at most `longest` of the declared `characters`. An empty or missing cell
    is no value; any other text refuses the file, or drops its row with `wrong_rows` "drop".

    No model reads it. Statistics count which values are frequent (`categories`), and filter by values (`where`).
    """

    name: ColumnName
    longest: Annotated[int, Field(strict=True, ge=1, le=40)]
    characters: Annotated[str, StringConstraints(min_length=2, max_length=1_000)] = PRINTABLE

    @model_validator(mode="after")
    def _printable(self) -> TextColumn:
        if len(set(self.characters)) != len(self.characters) or not self.characters.isprintable():
            raise ValueError("`characters` must be printable, and none of them twice")
        return self

    @property
    def characters_per_cell(self) -> int:
        """How many characters a stored number holds, as digits of base `len(characters) + 1`."""
        return int(math.log(CELL_VALUES) / math.log(len(self.characters) + 1) + 1e-12)

    @property
    def cells(self) -> int:
        """How many numbers are stored for it."""
        return -(-self.longest // self.characters_per_cell)

    @property
    def domain(self) -> int:
        """How many values it can have: texts of 1 to `longest` characters.

        >>> TextColumn(name="a", longest=2, characters="ab").domain
        6
        """
        base = len(self.characters)
        return int((base ** (self.longest + 1) - base) // (base - 1))

    def stored(self, text: str) -> tuple[float, ...]:
        """The numbers that are stored for a text; zeros for an empty one.

        Each holds as many characters as fit, the first one as its highest digit; 0 is behind a text's end. So texts
        are in the order of their numbers.

        >>> TextColumn(name="a", longest=7, characters="0123456789").stored("0042")
        (182710.0, 0.0)

        Raises:
            ValueError: it has other characters, or is too long.
        """
        if len(text) > self.longest:
            raise ValueError("the text is too long")
        many, base = self.characters_per_cell, len(self.characters) + 1
        digits = [self.characters.index(each) + 1 for each in text] + [0] * (many * self.cells - len(text))
        return tuple(
            float(sum(digit * base ** (many - 1 - place) for place, digit in enumerate(digits[at : at + many])))
            for at in range(0, len(digits), many)
        )

    def text_of(self, stored: Iterable[float]) -> str:
        """The text that is stored as these numbers."""
        many, base = self.characters_per_cell, len(self.characters) + 1
        digits = [int(each) // base ** (many - 1 - place) % base for each in stored for place in range(many)]
        return "".join(self.characters[digit - 1] for digit in digits if digit)

    def numbered(self, number: int) -> str:
        """The value with this number, from 0 on: shorter ones first.

        >>> column = TextColumn(name="a", longest=2, characters="ab")
        >>> [column.numbered(each) for each in range(column.domain)]
        ['a', 'b', 'aa', 'ab', 'ba', 'bb']
        """
        base, length = len(self.characters), 1
        while number >= base**length:
            number -= base**length
            length += 1
        return "".join(self.characters[number // base ** (length - 1 - place) % base] for place in range(length))


def is_one_hot(column: NumberColumn | DateColumn | CategoryColumn) -> bool:
    """Returns True if exactly one of the column's features is 1, and the others are 0."""
    return isinstance(column, CategoryColumn) or (isinstance(column, NumberColumn) and column.bins is not None)


TableColumn = Annotated[NumberColumn | DateColumn | CategoryColumn, Field(discriminator="kind")]


Pairs = Annotated[tuple[tuple[ColumnName, ColumnName], ...], Field(max_length=100)]


class TableFeatures(FeatureSettings):
    """Columns of several kinds, scaled by declared ranges. A record's features depend on its own cells alone. Where all
    columns have bins or categories, each record has length √columns, and linear models read it as a sparse row.

    `pairs` of columns with bins or categories: one more feature for each pair of their places, so that a linear model
    can learn what the two do together. `texts`: columns that no model reads.
    """

    kind: Literal["table"] = "table"
    columns: Annotated[list[TableColumn], Field(min_length=1, max_length=10_000)]
    pairs: Pairs = Field(default=(), exclude_if=lambda pairs: not pairs)
    texts: Annotated[tuple[TextColumn, ...], Field(max_length=100)] = Field(
        default=(), exclude_if=lambda texts: not texts
    )

    @model_validator(mode="after")
    def _distinct(self) -> TableFeatures:
        if len(set(self.names)) != len(self.names):
            raise ValueError("`columns` must have distinct names")
        blocks = {each.name for each in self.columns if is_one_hot(each)}
        for first, second in self.pairs:
            if first == second or not {first, second} <= blocks:
                raise ValueError(f"a pair needs two different columns with bins or categories: {first!r}, {second!r}")
        if len({frozenset(pair) for pair in self.pairs}) != len(self.pairs):
            raise ValueError("`pairs` must not repeat a pair")
        if self.width > 100_000:
            raise ValueError("a record may have at most 100000 features: declare fewer values")
        return self

    @property
    def width(self) -> int:
        """How many features a record has."""
        widths = {each.name: each.width for each in self.columns}
        return sum(widths.values()) + sum(widths[first] * widths[second] for first, second in self.pairs)

    @property
    def entries(self) -> int:
        """How many of a record's features are stored in a sparse row: one of each one-hot block, all others."""
        return sum(1 if is_one_hot(each) else each.width for each in self.columns) + len(self.pairs)

    @property
    def is_one_hot(self) -> bool:
        """True if each record's features are ones in so many places as there are columns."""
        return all(is_one_hot(each) for each in self.columns)

    @property
    def names(self) -> list[str]:
        return [each.name for each in (*self.columns, *self.texts)]

    @property
    def stored_width(self) -> int:
        """How many numbers are stored for a record: one of each column, then the cells of each text."""
        return len(self.columns) + sum(each.cells for each in self.texts)

    def length(self, features: int) -> float:
        """See FeatureSettings.length: a number anywhere in [−1, 1] has a mean square of 1/3; a category, or a number in
        a bin, has 1, and so has a pair."""
        return math.sqrt(sum(1.0 if is_one_hot(each) else 1.0 / 3.0 for each in self.columns) + len(self.pairs))

    @property
    def is_bounded(self) -> bool:
        """True if every column has bins, values or a range, so that `length` follows from the declaration."""
        return all(
            isinstance(each, CategoryColumn) or is_one_hot(each) or each.ends is not None for each in self.columns
        )

    def spread(self, features: int) -> float:
        """See FeatureSettings.spread: most numbers lie in a small part of their range, a deviation of about a quarter
        around their common mean."""
        return math.sqrt(sum(1.0 if is_one_hot(each) else WITHIN_RANGE for each in self.columns) + len(self.pairs))

    def additive(self, bins: int, pairs: Pairs) -> TableFeatures:
        """Returns the same columns with every number in bins, and with these pairs besides the declared ones.

        Raises:
            ValueError: a number has no range to divide, or a pair is not of two columns with bins or categories.
        """
        declared = {frozenset(pair) for pair in self.pairs}
        extra_pairs = (pair for pair in pairs if frozenset(pair) not in declared)
        columns = [_in_bins(each, bins).model_dump() for each in self.columns]
        members = {"columns": columns, "pairs": (*self.pairs, *extra_pairs), "texts": self.texts}
        return TableFeatures.model_validate(members)

    def numbers(self, stored: int) -> int:
        """See FeatureSettings.numbers: what is stored are cells."""
        return self.width


def _in_bins(column: TableColumn, bins: int) -> TableColumn:
    """A number in bins, with a bin for missing cells where they had a flag; other columns as they are."""
    if not isinstance(column, NumberColumn) or column.bins is not None:
        return column
    if column.range is None:
        raise ValueError(f"column {column.name!r} has no range to divide into bins")
    missing = "own" if column.missing == "flag" else column.missing
    return column.model_copy(update={"bins": bins, "missing": missing})


class CsvDialect(Document):
    """How a CSV file is written: what separates its cells, and what its numbers' decimals."""

    separator: Literal[",", ";", "\t", "|"] = ","
    decimal: Literal[".", ","] = "."

    @model_validator(mode="after")
    def _differ(self) -> CsvDialect:
        if self.separator == self.decimal:
            raise ValueError("`separator` and `decimal` must differ")
        return self
