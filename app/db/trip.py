"""Several statements in one round trip, each with a result of its own.

PostgreSQL has a pipeline: statements are sent one after the other, run in this order, and are answered together. Each
sees what the ones before it did and what others have committed meanwhile, exactly as without the pipeline: a row that
an earlier one locked, a later one reads as it is now. What a statement needs of an earlier one's result, it must find
in SQL. After an error the rest is not run. SQLite has no round trips: there each statement runs as it is sent.

`Together` in place of a trip: one statement and one snapshot, for parts that need not see each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Protocol

from sqlalchemy import Insert, Select, Update
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from app.db.database import IDLE
from app.db.statement_batch import Together, Values

PARAMETER = re.compile(r"%\(([^)]+)\)s")
Statement = Select[Any] | Update | Insert | Together


class Reply(Protocol):
    """The rows of one statement; on PostgreSQL they are there once the trip has ended."""

    def rows(self) -> list[SimpleNamespace]:
        """All rows.

        Raises:
            TypeError, ValueError: a column cannot be decoded.
        """
        ...

    def one_or_none(self) -> SimpleNamespace | None:
        """The only row, if there is one."""
        ...


class Trip:
    """Takes statements in order. This one runs each of them at once: for SQLite."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, statement: Statement, values: Values) -> Reply:
        """Runs a statement.

        Args:
            values: of its parameters; a `Together` leaves others out.
        """
        if isinstance(statement, Together):
            result = statement.execute(self.connection, values)
        else:
            result = self.connection.execute(statement, values)
        try:
            return _Rows([SimpleNamespace(**row._mapping) for row in result] if result.returns_rows else [])
        except (TypeError, ValueError) as error:  # whoever asks for the rows is told, as with a pipeline
            return _Rows([], error)

    def commit(self) -> None:
        """Commits with the statements before; none may follow. The session's own commit then finds nothing to do.

        On SQLite it leaves the commit to the session.
        """


class _Rows:
    """Rows that are there, or the error of reading them."""

    def __init__(self, rows: list[SimpleNamespace], error: Exception | None = None) -> None:
        self._read, self._error = rows, error

    def rows(self) -> list[SimpleNamespace]:
        if self._error is not None:
            raise self._error
        return self._read

    def one_or_none(self) -> SimpleNamespace | None:
        rows = self.rows()
        if len(rows) > 1:
            raise ValueError(f"{len(rows)} rows in place of one")
        return rows[0] if rows else None


class _Pipeline(Trip):
    """A trip over psycopg's pipeline."""

    def send(self, statement: Statement, values: Values) -> Reply:
        sent = _compiled(statement, self.connection.dialect)
        cursor = self.connection.dialect.loaded_dbapi.RawCursor(self.connection.connection.driver_connection)
        cursor.execute(sent.text, sent.parameters(values))
        return _Cursor(cursor, sent)

    def commit(self) -> None:
        driver: Any = self.connection.connection.driver_connection
        driver.execute("COMMIT", prepare=False)


class _Cursor(_Rows):
    """The rows of a cursor, read once the trip has ended."""

    def __init__(self, cursor: Any, sent: _Compiled) -> None:
        super().__init__([])
        self._cursor, self._sent = cursor, sent

    def rows(self) -> list[SimpleNamespace]:
        if self._cursor is not None:
            cursor, self._cursor = self._cursor, None
            self._read = self._sent.rows(cursor)
        return self._read


class _Compiled:
    """A statement as the server takes it, with SQLAlchemy's types of its parameters and columns.

    Its parameters are numbered here, once: the driver would look for their names in a long text at each send.
    """

    def __init__(self, statement: Select[Any] | Update | Insert, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        if "POSTCOMPILE" in str(compiled):
            raise ValueError("a statement of a trip has a fixed text: write `or_` in place of `in_`")
        self._compiled, numbers = compiled, dict[str, int]()
        numbered = PARAMETER.sub(lambda name: f"${numbers.setdefault(name[1], len(numbers) + 1)}", str(compiled))
        self.text, self._parameters = numbered.replace("%%", "%").encode(), list(numbers)
        names = {name: bind.type.dialect_impl(dialect) for bind, name in compiled.bind_names.items()}
        kinds = {name: kind.bind_processor(dialect) for name, kind in names.items()}
        self._binds = {name: convert for name, convert in kinds.items() if convert is not None}
        self._names = [column.name for column in statement.exported_columns]
        self._types = [column.type.dialect_impl(dialect) for column in statement.exported_columns]
        self._dialect, self._converted = dialect, list[tuple[str, Any]]()
        self._is_known = not self._names  # the driver tells the columns' types with the first rows

    def parameters(self, values: Values) -> list[Any]:
        """The values of all parameters, in their order, as the driver takes them."""
        sent = self._compiled.construct_params(dict(values))
        for name, convert in self._binds.items():
            sent[name] = convert(sent[name])
        return [sent[name] for name in self._parameters]

    def rows(self, cursor: Any) -> list[SimpleNamespace]:
        """A cursor's rows with their columns' names and types."""
        if not self._is_known:
            pairs = zip(self._types, cursor.description, strict=True)
            converts = [kind.result_processor(self._dialect, column.type_code) for kind, column in pairs]
            self._converted = [(name, convert) for name, convert in zip(self._names, converts, strict=True) if convert]
            self._is_known = True
        return [self._row(each) for each in cursor.fetchall()]

    def _row(self, values: tuple[Any, ...]) -> SimpleNamespace:
        row = dict(zip(self._names, values, strict=True))
        for name, convert in self._converted:
            row[name] = convert(row[name])
        return SimpleNamespace(**row)


@lru_cache(64)
def _compiled(statement: Statement, dialect: Dialect) -> _Compiled:
    return _Compiled(statement.whole if isinstance(statement, Together) else statement, dialect)


@contextmanager
def round_trip(connection: Connection) -> Iterator[Trip]:
    """Statements that go to the database together: read their results after the block. The first ones of a transaction
    (`Database.write(in_trips=True)`) take its BEGIN with them.

    Raises:
        DBAPIError: as SQLAlchemy's own, of the first statement that failed.
    """
    if connection.dialect.name != "postgresql":
        yield Trip(connection)
        return
    driver: Any = connection.connection.driver_connection
    dialect, kinds = connection.dialect, connection.dialect.loaded_dbapi.Error
    try:
        with driver.pipeline():
            if driver.autocommit and driver.info.transaction_status == IDLE:
                driver.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
            yield _Pipeline(connection)
    except kinds as error:
        raise DBAPIError.instance(None, None, error, kinds, hide_parameters=True, dialect=dialect) from error
