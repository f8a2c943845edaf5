"""What an index has of a JSON column: written out, as a parameter in its place would hide that a query asks for it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

PRIORITIES = {
    "postgresql": "coalesce(({} ->> 'priority')::integer, 0)",
    "sqlite": "coalesce(json_extract({}, '$.priority'), 0)",
}


class Priority(FunctionElement[int]):
    """The priority that a job's specification asks for, in SQL; 0 where it asks for none."""

    type = Integer()
    inherit_cache = True


@compiles(Priority, "postgresql")
@compiles(Priority, "sqlite")
def _priority(element: Priority, compiler: Any, **options: Any) -> str:
    return PRIORITIES[compiler.dialect.name].format(compiler.process(element.clauses, **options))
