"""JSON with one meaning for every parser: refuses what parsers disagree about, with a pointer to the place.

Refused beyond RFC 8259's grammar: members named twice, NaN and Infinity, numbers that no 64-bit integer or float holds,
halves of surrogate pairs, NUL, more than 64 levels, more values than the route needs. Values and levels are counted in
the bytes before any object is built. JSON pointers are made only where there is a fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from core.errors import InvalidRequest, TooLarge

MAX_DEPTH = 64
MAX_NODES = 10_000
# Possessive, and it accepts a string without an end: linear time for any bytes.
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
EMPTY = re.compile(rb"\[[ \t\r\n]*\]|\{[ \t\r\n]*\}")
BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
NOT_BRACKETS = bytes(each for each in range(256) if each not in BRACKETS)
INTEGERS = range(-(2**63), 2**63)
LONGEST_INTEGER = 20
# How data files begin.
FILES = {
    b"PK\x03\x04": "an npz or zip file",
    b"\x93NUMPY": "a NumPy file",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
}


@dataclass
class _Refused:
    """Marks a refused value's place in the document."""

    detail: str
    pointer: str = ""


def check(content: bytes, max_nodes: int = MAX_NODES) -> None:
    """Refuses JSON that parsers could read differently. Syntax errors are left to the parser.

    Args:
        content: a body of bounded size.
        max_nodes: the most values it may hold, nested ones included.

    Raises:
        InvalidRequest: with a pointer to the first fault.
        TooLarge: it holds more values than `max_nodes`.
    """
    _refuse_files(content)
    bare = STRING.sub(b'""', content)
    if values(bare, max_nodes) > max_nodes:
        raise TooLarge(f"the body holds more than {max_nodes} values", limit_nodes=max_nodes)
    # Only escapes can spell forbidden characters. Only a marked document, or a deep one, is walked to find the place.
    marks = _Marks(levels(bare) > MAX_DEPTH or b"\\u" in content)
    try:
        document = json.loads(
            content.decode(),
            object_pairs_hook=marks.object,
            parse_constant=lambda name: marks.refuse(f"{name} is not a JSON number"),
            parse_int=marks.integer,
            parse_float=marks.float,
        )
    except UnicodeDecodeError:
        raise InvalidRequest.at("", "the body is not UTF-8") from None
    except RecursionError:
        raise InvalidRequest.at("", f"the body has more than {MAX_DEPTH} levels") from None
    except ValueError:
        return  # the parser reports where the syntax ends
    for refused in _faults(document) if marks.any else ():
        raise InvalidRequest.at(refused.pointer, refused.detail)


def _refuse_files(content: bytes) -> None:
    """Names a data file that was sent in place of a JSON document.

    Raises:
        InvalidRequest: the body begins as such a file does.
    """
    for magic, name in FILES.items():
        if content.startswith(magic):
            raise InvalidRequest.at("", f"this is {name}, not JSON: send its records as a JSON document")


def values(bare: bytes, enough: int) -> int:
    """Counts the values in a JSON text whose strings are empty; stops counting past `enough`."""
    nodes = 1 + bare.count(b",")
    if nodes > enough:
        return nodes
    return nodes + bare.count(b"[") + bare.count(b"{") - sum(1 for _ in EMPTY.finditer(bare))


def levels(bare: bytes) -> int:
    """The nesting depth of a JSON text whose strings are empty."""
    openings = bare.count(b"[") + bare.count(b"{")
    if openings <= MAX_DEPTH:
        return openings
    return max(accumulate(BRACKETS[each] for each in bare.translate(None, NOT_BRACKETS)))


class _Marks:
    """Marks refused values in the document, and remembers that there are some."""

    def __init__(self, suspected: bool) -> None:
        self.any = suspected

    def refuse(self, detail: str) -> _Refused:
        """Notes a fault, and returns its mark."""
        self.any = True
        return _Refused(detail)

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            seen: set[str] = set()
            for name, _value in pairs:
                if name in seen:
                    members[name] = self.refuse("this member appears twice")
                seen.add(name)
        return members

    def integer(self, text: str) -> int | _Refused:
        if len(text) <= LONGEST_INTEGER and int(text) in INTEGERS:
            return int(text)
        return self.refuse("this integer does not fit in 64 bits")

    def float(self, text: str) -> float | _Refused:
        number = float(text)
        return number if math.isfinite(number) else self.refuse("this number is too large for a float")


def _faults(document: Any) -> Iterator[_Refused]:
    """Yields the refused places, in no particular order. Not recursive: a document may be deeper than the stack."""
    places: list[tuple[str, int, Any]] = [("", 0, document)]
    while places:
        pointer, depth, value = places.pop()
        if isinstance(value, _Refused):
            yield _Refused(value.detail, pointer)
        elif isinstance(value, str) and _is_bad(value):
            yield _Refused("a text must not hold NUL or half of a surrogate pair", pointer)
        elif isinstance(value, dict | list):
            if depth == MAX_DEPTH:
                yield _Refused(f"more than {MAX_DEPTH} levels", pointer)
                continue
            members = value.items() if isinstance(value, dict) else enumerate(value)
            for name, member in members:
                if isinstance(name, str) and _is_bad(name):
                    yield _Refused("a member's name must not hold NUL or half of a surrogate pair", pointer)
                else:
                    escaped = str(name).replace("~", "~0").replace("/", "~1")
                    places.append((f"{pointer}/{escaped}", depth + 1, member))


def _is_bad(text: str) -> bool:
    return "\0" in text or (not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text))
