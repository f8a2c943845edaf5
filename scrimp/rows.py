"""Lists of answers: typed rows that become a table in pandas or in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from scrimp.errors import MissingPackage

R = TypeVar("R", bound=BaseModel)
SHOWN = 50  # rows of a table in a notebook


class Rows(list[R], Generic[R]):
    """A list of typed rows."""

    def frame(self) -> Any:
        """The rows as a pandas DataFrame; members of members have a dot in their column's name.

        Raises:
            MissingPackage: pandas is not installed. The rows are a list without it.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingPackage("frame()", "pandas", "scrimp-client[notebook]") from None
        return pd.DataFrame(list(map(flat, self)))

    def _repr_html_(self) -> str:
        rows = list(map(flat, self[:SHOWN]))
        footer = [f"<p>and {len(self) - SHOWN} more</p>"] if len(self) > SHOWN else []
        return "".join([table(list(dict.fromkeys(name for row in rows for name in row)), rows), *footer])


class Pages(Iterator[R], Generic[R]):
    """The items of a list, fetched page by page as they are read."""

    def __init__(self, items: Iterator[R]) -> None:
        self._items = items

    def __next__(self) -> R:
        return next(self._items)

    def __repr__(self) -> str:
        return "<pages of items: iterate, .rows() for a list, .frame() for a DataFrame>"

    def rows(self, limit: int | None = None) -> Rows[R]:
        """The items that have not been read, or the first `limit` of them."""
        return Rows(islice(self._items, limit))

    def frame(self) -> Any:
        """The items that have not been read, as a pandas DataFrame; see `Rows.frame`."""
        return self.rows().frame()


def flat(row: BaseModel) -> dict[str, Any]:
    """A row's members; those of a member have its name and a dot before theirs."""
    return dict(_flat("", row.model_dump(mode="json")))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flat(f"{prefix}{name}.", item)
        else:
            yield prefix + name, item


def table(heads: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """An HTML table; every text is escaped."""
    top = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell(row.get(head))}</td>' for head in heads)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """An HTML table of names and values."""
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{cell(value)}</td></tr>" for name, value in pairs)
    return f"<table>{rows}</table>"


def cell(value: Any) -> str:
    """A value as escaped HTML; nothing for None."""
    return "" if value is None else html.escape(f"{value:.6g}" if isinstance(value, float) else str(value))
