"""Parameters of a sweep: `make test` runs a representative part, `make nightly-services` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.conftest import BACKINGS


def but(values: Iterable[Any], here: Callable[[Any], bool]) -> list[Any]:
    """All values; those that are not `here` are for the night.

    >>> [getattr(each, "values", each) for each in but("ab", lambda each: each == "a")]
    ['a', ('b',)]
    """
    return [value if here(value) else _by_night(value) for value in values]


def _by_night(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.nightly)


# For what does not differ by backing: the fixture `backing`, on PostgreSQL by night.
SQLITE_BY_DAY = but(BACKINGS, lambda backing: backing == "sqlite")
ON_SQLITE_BY_DAY = pytest.mark.parametrize("backing", SQLITE_BY_DAY)
