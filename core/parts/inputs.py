"""Inputs of a prediction: JSON records, checked against the data set's declaration. Its data are not needed.

columns                    an object with a number for each column
table                      an object with a cell for each column; null for a missing one
                           (of both: other members are ignored, and a number may be the text of a file)
tensor                     a list of numbers, one record of the array, flattened
hashed_text, text          a text
nodes                      as columns, with the node's children as such objects, if the model reads them
interactions, rating       an object with the user's and the item's id
interactions, next_item    a list of items' ids, from the first to the latest
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import Any, assert_never

import numpy as np

from core.contracts.dataset_spec import Columns, Features, HashedText, Interactions, NodeColumns, Task, Tensor, Text
from core.contracts.declared_ids import Ids
from core.contracts.neighbourhoods import Tree
from core.contracts.table import TableFeatures
from core.errors import InvalidRequest
from core.parts.columns import UnusableCell, json_number, text_number
from core.parts.id_rows import IdCoder
from core.parts.nodes import tree_of
from core.parts.table_cells import CellCoder, expanded

MAX_TEXT_CHARACTERS = 100_000
MAX_ITEMS = 10_000
NAMED, MAX_NAME = 5, 60  # how many columns an error names, and how much of a name
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # valid in JSON, not in UTF-8


def checked(records: list[Any], task: Task, features: Features, width: int) -> list[Any]:
    """The records in the worker's form: a list of numbers, a text, or rows of the declared lists.

    Args:
        records: the records of the request.
        task, features: the data set's.
        width: its number of features.

    Raises:
        InvalidRequest: with a pointer to the record.
    """
    match features:
        case Interactions():
            return _interactions(records, task, features)
        case HashedText() | Text():
            return [_text(record, at) for at, record in enumerate(records)]
        case NodeColumns() if features.tree is not None:
            return [_tree(record, features, features.tree, at) for at, record in enumerate(records)]
        case Columns():
            return [_numbers(record, features.columns, width, at) for at, record in enumerate(records)]
        case TableFeatures():
            return _rows(records, features)
        case Tensor():
            return [_numbers(record, None, width, at) for at, record in enumerate(records)]
        case _:
            assert_never(features)


def _interactions(records: list[Any], task: Task, features: Interactions) -> list[list[int]]:
    items = IdCoder(features.items)
    if task.record_is_user:
        return [_sequence(items, record, at) for at, record in enumerate(records)]
    users = IdCoder(features.users or features.items)
    return [_pair(users, items, record, at) for at, record in enumerate(records)]


def item_name(ids: Ids, row: int) -> str | None:
    """The id of a row; None if ids are hashed, because several may share it."""
    if ids.kind == "listed":
        return ids.ids[row]
    return str(ids.first + row) if ids.kind == "numbered" else None


def _numbers(record: Any, names: list[str] | None, width: int, at: int) -> list[float]:
    if names is not None:
        if not isinstance(record, dict):
            raise _wrong(at, f"an object with a number for each of its {len(names)} columns")
        _require_columns(record, names, at)
        record = [_number_in(record[name]) for name in names]
    if not isinstance(record, list):
        raise _wrong(at, f"a list of {width} numbers")
    if len(record) != width:
        raise _wrong(at, f"{width} numbers; this one has {len(record)}")
    for place, number in enumerate(record):
        if not _is_number(number):
            cell = str(place) if names is None else names[place].replace("~", "~0").replace("/", "~1")
            column = "this" if names is None else f"column {names[place]!r}"
            detail = f"{column} must be a number, finite in single precision, and is {_shown(number)}"
            raise InvalidRequest.at(f"/records/{at}/{cell}", detail)
    return [float(number) for number in record]


def _tree(record: Any, features: NodeColumns, tree: Tree, at: int) -> list[float]:
    """A node with the nodes that it reads, in the member that the data set's lists have."""

    def below(node: Any) -> list[Any]:
        children = node.get(features.neighbours, []) if isinstance(node, dict) else []
        if not isinstance(children, list) or len(children) > tree.neighbours:
            detail = f"{features.neighbours!r} must be a list of at most {tree.neighbours} nodes with their columns"
            raise InvalidRequest.at(f"/records/{at}", detail)
        return children

    def own(node: Any) -> list[float]:
        return _numbers(node, features.columns, len(features.columns), at)

    further = tree.hops > 1
    children = [[own(each), *(map(own, below(each)) if further else ())] for each in below(record)]
    return [float(number) for number in tree_of(own(record), children, tree)]


def _rows(records: list[Any], features: TableFeatures) -> list[list[float]]:
    """Objects with a cell for each column, scaled as the records that the model was trained on."""
    coders = [CellCoder(column, cell_number) for column in features.columns]
    cells = np.empty((len(records), len(coders)), dtype=np.float32)
    for at, record in enumerate(records):
        if not isinstance(record, dict):
            raise _wrong(at, "an object with a cell for each declared column; a missing one is null")
        if not record.keys() <= set(features.names):  # a name that is misspelt must not read as a missing cell
            _require_columns(record, [each.name for each in features.columns], at)
        for place, coder in enumerate(coders):
            name = coder.column.name
            try:
                cells[at, place] = coder.code(record.get(name))
            except UnusableCell as error:
                problem = error.what if error.what == "missing" else f"{_shown(record.get(name))} is {error.what}"
                raise InvalidRequest.at(f"/records/{at}/{name}", f"column {name!r}: {problem}") from None
    return [[float(number) for number in row] for row in expanded(cells, features)]


def cell_number(value: Any) -> float:
    """Converts a JSON cell, or the text of a CSV file, to a float; raises TypeError or ValueError if it is none."""
    return text_number(value) if isinstance(value, str) else json_number(value)


def _number_in(value: Any) -> Any:
    """The number that a text is; anything else as it is."""
    try:
        return text_number(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _shown(cell: Any) -> str:
    """A cell of the caller's own request, for the answer to this caller."""
    text = repr(cell)
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


def _require_columns(record: dict[str, Any], names: list[str], at: int) -> None:
    """Names the columns that are missing, and members that may be meant.

    Raises:
        InvalidRequest: there are some.
    """
    missing = [name for name in names if name not in record]
    if not missing:
        return
    known_names = set(names)
    foreign = [name for name in record if name not in known_names and len(name) <= MAX_NAME]
    lower = {name.lower(): name for name in foreign}
    similar = [(name, get_close_matches(name.lower(), list(lower), n=1)) for name in missing[:NAMED]]
    hints = [f"`{lower[meant[0]]}` must be called {_short(name)}" for name, meant in similar if meant]
    message = "; ".join([f"it lacks {_listed(missing)}", *(f"perhaps {hint}" for hint in hints)])
    raise InvalidRequest.at(
        f"/records/{at}", f"a record must have this data set's {len(names)} columns (others are ignored): {message}"
    )


def _listed(names: list[str]) -> str:
    remainder = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(_short, names[:NAMED])) + remainder


def _short(name: str) -> str:
    return f"`{name if len(name) <= MAX_NAME else name[:MAX_NAME] + '…'}`"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 3.4e38


def _text(record: Any, at: int) -> str:
    if not isinstance(record, str) or len(record) > MAX_TEXT_CHARACTERS or LONE_SURROGATE.search(record):
        raise _wrong(at, f"a Unicode text of at most {MAX_TEXT_CHARACTERS} characters")
    return record


def _sequence(items: IdCoder, record: Any, at: int) -> list[int]:
    if not isinstance(record, list) or not 0 < len(record) <= MAX_ITEMS:
        raise _wrong(at, f"a list of 1 to {MAX_ITEMS} ids of items, from the first to the latest")
    return [_row(items, "item", cell, at) for cell in record]


def _pair(users: IdCoder, items: IdCoder, record: Any, at: int) -> list[int]:
    if not isinstance(record, dict) or set(record) != {"user", "item"}:
        raise _wrong(at, "an object with the ids of `user` and `item`")
    return [_row(users, "user", record["user"], at), _row(items, "item", record["item"], at)]


def _row(ids: IdCoder, kind: str, cell: Any, at: int) -> int:
    try:
        return ids.code(cell)[0]
    except UnusableCell:
        detail = f"the data set does not declare an id of an {kind} in this record"
        raise InvalidRequest.at(f"/records/{at}", detail) from None


def _wrong(at: int, wanted: str) -> InvalidRequest:
    return InvalidRequest.at(f"/records/{at}", f"a record of this data set must be {wanted}")


def finite(value: float) -> float | None:
    """JSON's form of a number: null if it is not finite."""
    return value if math.isfinite(value) else None
