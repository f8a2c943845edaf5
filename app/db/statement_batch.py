"""Several writes and a last statement in one round trip.

A round trip costs more than the work of most statements: the driver, the server and their switches. PostgreSQL runs
inserts as parts of another statement (`WITH … AS (INSERT …)`), which is prepared and planned once. SQLite has no such
statement and no round trip: there the parts run one after the other, in order.

All parts see the database as it was before the statement. A part must therefore not read what another part writes;
foreign keys are checked at the statement's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import CursorResult, Insert, Select, Table, Update, bindparam, insert
from sqlalchemy.engine import Connection

Values = Mapping[str, object]


def row_of(table: Table, *columns: str) -> Insert:
    """An insert of one row: each column's value is bound as TABLE_COLUMN, see `values_of`.

    Raises:
        ValueError: a column is missing whose default only Python knows: a part of a statement has no such defaults.
    """
    missing = [each.name for each in table.c if each.default is not None and each.name not in columns]
    if missing:
        raise ValueError(f"{table.name}: give a value for {', '.join(missing)}")
    return insert(table).values({name: bindparam(f"{table.name}_{name}") for name in columns})


def values_of(table: Table, row: Values) -> dict[str, object]:
    """A row's values under the names that `row_of` binds."""
    return {f"{table.name}_{name}": value for name, value in row.items()}


class Together:
    """Inserts, then a last statement whose rows are returned.

    Args:
        last: a SELECT or an UPDATE … RETURNING.
        parts: the inserts, in the order in which SQLite runs them.
    """

    def __init__(self, last: Select[Any] | Update, *parts: Insert) -> None:
        self._steps = [(each, frozenset(each.compile().params)) for each in (*parts, last)]
        self.whole = last.add_cte(*(part.cte(f"part_{number}") for number, part in enumerate(parts)))

    def execute(self, connection: Connection, values: Values) -> CursorResult[Any]:
        """Runs all parts in the connection's transaction; returns the last statement's result."""
        if connection.dialect.name == "postgresql":
            return connection.execute(self.whole, values)
        for statement, names in self._steps:
            result = connection.execute(statement, {name: value for name, value in values.items() if name in names})
        return result
