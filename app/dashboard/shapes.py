"""What a linear model of a table learned of each column, from its model card: charts, and pairs as tables."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from app.dashboard.chart import SERIES, Axis, Chart, Line, Point, around
from app.dashboard.job_document import document_of
from app.dashboard.numbers import significant
from app.db.database import Database
from app.db.models import Artifact
from app.storage.objects import Objects
from core.contracts.base import Document
from core.contracts.shape_function import ShapeFunction

CARD = "model.json"
MOST_BYTES = 4 * 2**20  # of a card
MOST_CHARTS = 40
MOST_CELLS = 1_000  # of a pair


class _Card(Document):
    """What a model card says of columns."""

    model_config = ConfigDict(extra="ignore")

    shape_functions: tuple[ShapeFunction, ...] = ()


@dataclass(frozen=True)
class PairTable:
    """A pair's values: a row for each place of the first column, a cell for each of the second."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Shapes:
    """Charts of columns and tables of pairs; `left_out`: how many more the card has."""

    charts: list[Chart]
    pairs: list[PairTable]
    left_out: int


def shapes_of(db: Database, store: Objects, card: Artifact) -> Shapes | None:
    """Reads a model card; None if it has no shape functions, or its file is not there or damaged."""
    content = document_of(db, store, card, _Card, MOST_BYTES)
    if content is None:
        return None
    functions = content.shape_functions
    if not functions:
        return None
    columns = [each for each in functions if len(each.columns) == 1]
    pairs = [each for each in functions if len(each.columns) == 2 and len(each.values[0]) <= MOST_CELLS]
    charts = [_chart(number, each) for number, each in enumerate(columns[:MOST_CHARTS])]
    tables = [table for each in pairs for table in _tables(each)][:MOST_CHARTS]
    return Shapes(charts, tables, len(functions) - len(columns[:MOST_CHARTS]) - len(pairs))


def _chart(number: int, function: ShapeFunction) -> Chart:
    (name,), (places,) = function.columns, function.places
    low, high = around([value for row in function.values for value in row])
    lines = [
        Line(
            output,
            [
                Point(at, value, place, significant(value, 3))
                for at, (place, value) in enumerate(zip(places, row, strict=True))
            ],
            colour=SERIES[at % len(SERIES)],
            shape="dots",
        )
        for at, (output, row) in enumerate(zip(function.outputs, function.values, strict=True))
    ]
    x = Axis(name, -0.5, len(places) - 0.5, "names", names=list(places))
    unit = function.outputs[0] if len(function.outputs) == 1 else "logit"
    return Chart(f"shape-{number}", f"what {name} adds to the {unit}", x, Axis(unit, low, high), lines)


def _tables(function: ShapeFunction) -> list[PairTable]:
    (first, second), (rows, columns) = function.columns, function.places
    return [
        PairTable(
            f"{first} with {second}: {output}",
            columns,
            [
                (place, [significant(value, 3) for value in values[at * len(columns) : (at + 1) * len(columns)]])
                for at, place in enumerate(rows)
            ],
        )
        for output, values in zip(function.outputs, function.values, strict=True)
    ]
