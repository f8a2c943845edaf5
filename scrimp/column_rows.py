"""How one column of a file is declared: kind, range, values, missing cells; and where each comes from.

columns.js of the dashboard does the same in the browser; a test compares the two on one file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from scrimp.column_names import PublicColumn, public_column

MOST_CLASSES, MOST_VALUES = 50, 20
MOSTLY = 0.95  # of the cells: a column of many values of which so many are numbers, or dates, is declared so
DECADES = 3  # from the smallest to the largest number: more are declared on a logarithmic scale
MOST_WRONG = 10
TEXT_WORDS = 4  # more words on average than this: a text
DATE = re.compile(r"(\d{4})-\d{2}-\d{2}|(\d{1,2})\.(\d{1,2})\.(\d{4})")
# One way to read each digit: a long cell takes linear time.
NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")
WHOLE = re.compile(r"-?\d{1,15}")
FROM_DATA = "from your data: check that this is public knowledge"


@dataclass(frozen=True)
class Row:
    """One column of the file.

    Attributes:
        use: what becomes of it: "feature", "predicted", or why it is left out.
        column: its declaration in `features.columns`; of the label its classes or range.
        origin: "data", or "name" where public knowledge of the column's name says it; "" where nothing is declared.
        unit: of the range.
        doubt: what speaks against the proposal.
    """

    name: str
    use: str
    column: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    unit: str = ""
    doubt: str = ""


def row_of(name: str, cells: list[Any]) -> Row:
    """Proposes a feature of a column's cells; empty ones are missing."""
    present = [cell for cell in cells if cell not in (None, "")]
    if not present:
        return Row(name, "left out: it is empty")
    lacks, public = len(present) < len(cells), public_column(name)
    texts = {str(cell) for cell in present}
    values = next((list(each) for each in public.values if texts <= set(each)), None) if public else None
    if values is not None:
        return Row(name, "feature", _category(name, values, lacks), "name")
    enough = len(present) if len(texts) <= MOST_VALUES else MOSTLY * len(present)
    numbers = [each for cell in present if (each := number(cell)) is not None]
    if len(numbers) >= enough:
        return _number(name, numbers, lacks, public)
    dates = [day for cell in present if (day := DATE.fullmatch(str(cell)[:10])) is not None]
    if len(dates) >= enough:
        return _date(name, dates, lacks, public)
    if len(texts) <= MOST_VALUES:
        return Row(name, "feature", _category(name, sorted(texts), lacks), "data")
    return Row(name, "left out: many values that are neither numbers nor dates")


@dataclass(frozen=True)
class WrongCell:
    """A cell for which the service refuses the file: the number of its record, from 1, its column and its value."""

    record: int
    column: str
    value: str


def wrong_cells(columns: dict[str, list[Any]], declared: list[dict[str, Any]], task: dict[str, Any]) -> list[WrongCell]:
    """The first cells, at most MOST_WRONG, that a declaration does not allow; in the order of the records."""
    rules = {each["name"]: each for each in declared}
    rules[task["label"]] = task
    wrong: list[WrongCell] = []
    for record, cells in enumerate(zip(*(columns[name] for name in rules), strict=True), start=1):
        for (name, rule), cell in zip(rules.items(), cells, strict=True):
            if not _is_allowed(rule, cell):
                wrong.append(WrongCell(record, name, "" if cell is None else str(cell)))
        if len(wrong) >= MOST_WRONG:
            break
    return wrong[:MOST_WRONG]


def _is_allowed(rule: dict[str, Any], cell: Any) -> bool:
    if "label" in rule:
        return str(cell) in map(str, rule["classes"]) if "classes" in rule else number(cell) is not None
    if cell in (None, ""):
        return "missing" in rule
    if rule["kind"] == "number":
        return number(cell) is not None
    return rule["kind"] == "category" or DATE.fullmatch(str(cell)[:10]) is not None


def classes_or_range(label: str, cells: list[Any]) -> dict[str, Any] | None:
    """The task that predicts a column: one of its few values, or a number within a range; None if it is neither."""
    texts = sorted({str(cell) for cell in cells if cell not in (None, "")})
    numbers = [each for each in map(number, texts) if each is not None]
    is_numeric = len(numbers) == len(texts)
    if 2 <= len(texts) <= MOST_CLASSES and (len(texts) <= MOST_VALUES or not is_numeric):
        classes = sorted(map(int, texts)) if all(map(WHOLE.fullmatch, texts)) else texts
        return {"kind": "classification", "label": label, "classes": classes}
    if not is_numeric or not numbers:
        return None
    public = public_column(label)
    ends = public.range if public and public.range else round_range(min(numbers), max(numbers))
    return {"kind": "regression", "label": label, "range": list(ends)}


def is_text(cells: list[Any]) -> bool:
    """Returns True if cells are texts of several words."""
    texts = [cell for cell in cells if isinstance(cell, str) and cell]
    return bool(texts) and sum(len(cell.split()) for cell in texts) > TEXT_WORDS * len(texts)


def number(cell: Any) -> float | None:
    """A cell as a finite number, with a decimal comma too; None if it is none."""
    if isinstance(cell, str) and NUMBER.fullmatch(cell):
        cell = float(cell.replace(",", "."))
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not math.isfinite(cell):
        return None
    return float(cell)


def round_range(low: float, high: float) -> tuple[float, float]:
    """A range of round ends: the exact smallest and largest values each belong to a record.

    >>> round_range(18.0, 67.5), round_range(-3.0, 0.5)
    ((0.0, 100.0), (-5.0, 5.0))
    """
    end = _round_up(max(abs(low), abs(high)))
    return (0.0 if low >= 0 else -end), (end if high > 0 or low >= 0 else 0.0)


def _round_up(value: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is no less; 1 for 0."""
    if value == 0:
        return 1.0
    decade = math.floor(math.log10(value))
    steps = (float(f"{digits}e{decade}") for digits in (1, 2, 5, 10))
    return next((each for each in steps if each >= value), float(f"1e{decade + 1}"))


def _number(name: str, numbers: list[float], lacks: bool, public: PublicColumn | None) -> Row:
    low, high = min(numbers), max(numbers)
    column: dict[str, Any] = {"name": name, "kind": "number"}
    doubt = ""
    if public and public.range:
        ends, scale, origin = public.range, public.scale, "name"
        doubt = "some values lie outside: is it this unit?" if low < ends[0] or high > ends[1] else ""
    else:
        is_log = low > 0 and high >= 10.0**DECADES * low
        decades = (
            (float(f"1e{math.floor(math.log10(low))}"), float(f"1e{math.ceil(math.log10(high))}")) if is_log else None
        )
        ends, scale, origin = decades or round_range(low, high), "log" if is_log else "linear", "data"
    column["range"] = list(ends)
    column |= {"scale": "log"} if scale == "log" else {}
    column |= {"missing": "flag"} if lacks else {}
    return Row(name, "feature", column, origin, public.unit if origin == "name" and public else "", doubt)


def _date(name: str, dates: list[re.Match[str]], lacks: bool, public: PublicColumn | None) -> Row:
    years = [int(each[1] or each[4]) for each in dates]
    days = list(public.days) if public and public.days else [f"{min(years)}-01-01", f"{max(years)}-12-31"]
    column: dict[str, Any] = {"name": name, "kind": "date", "range": days}
    column |= {} if all(each[1] for each in dates) else {"format": "%d.%m.%Y"}
    column |= {"missing": "flag"} if lacks else {}
    return Row(name, "feature", column, "name" if public and public.days else "data")


def _category(name: str, values: list[str], lacks: bool) -> dict[str, Any]:
    column = {"name": name, "kind": "category", "values": values, "unknown": "other"}
    return column | ({"missing": "other"} if lacks else {})
