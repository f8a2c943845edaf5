"""JSON that means one thing to everybody: what parsers disagree about is refused, with a pointer to the place.

Refused beyond RFC 8259's grammar: members named twice, NaN and Infinity, numbers that no 64-bit integer or float holds,
halves of surrogate pairs, NUL, more than 32 levels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidRequest

MAX_DEPTH = 32
INTEGERS = range(-(2**63), 2**63)
LONGEST_INTEGER = 20


@dataclass
class _Refused:
    """Stands in the document where a value can not be taken."""

    detail: str
    pointer: str = ""


def check(content: bytes) -> None:
    """Refuses JSON that is not a document that everybody reads alike. What is no JSON at all is left to others.

    Raises:
        InvalidRequest: with a pointer to the first such place.
    """
    try:
        document = json.loads(
            content.decode(),
            object_pairs_hook=_object,
            parse_constant=lambda name: _Refused(f"{name} is no number"),
            parse_int=_integer,
            parse_float=_float,
        )
    except UnicodeDecodeError:
        raise InvalidRequest.at("", "the body is not UTF-8") from None
    except RecursionError:
        raise InvalidRequest.at("", f"the body has more than {MAX_DEPTH} levels") from None
    except ValueError:
        return  # whoever reads it says where its syntax ends
    for refused in _faults(document):
        raise InvalidRequest.at(refused.pointer, refused.detail)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _value in pairs:
            if name in seen:
                members[name] = _Refused("this member is there twice")
            seen.add(name)
    return members


def _integer(text: str) -> int | _Refused:
    if len(text) <= LONGEST_INTEGER and int(text) in INTEGERS:
        return int(text)
    return _Refused("this integer is larger than 64 bits hold")


def _float(text: str) -> float | _Refused:
    number = float(text)
    return number if math.isfinite(number) else _Refused("this number is larger than a float holds")


def _faults(document: Any) -> Iterator[_Refused]:
    """What can not be taken, in no particular order. Not recursive: a document may be deeper than the stack."""
    places: list[tuple[str, int, Any]] = [("", 0, document)]
    while places:
        pointer, depth, value = places.pop()
        if isinstance(value, _Refused):
            yield _Refused(value.detail, pointer)
        elif isinstance(value, str) and _is_bad(value):
            yield _Refused("a text may hold neither NUL nor half of a surrogate pair", pointer)
        elif isinstance(value, dict | list):
            if depth == MAX_DEPTH:
                yield _Refused(f"more than {MAX_DEPTH} levels", pointer)
                continue
            members = value.items() if isinstance(value, dict) else enumerate(value)
            for name, member in members:
                if isinstance(name, str) and _is_bad(name):
                    yield _Refused("a member's name may hold neither NUL nor half of a surrogate pair", pointer)
                else:
                    escaped = str(name).replace("~", "~0").replace("/", "~1")
                    places.append((f"{pointer}/{escaped}", depth + 1, member))


def _is_bad(text: str) -> bool:
    return "\0" in text or (not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text))
