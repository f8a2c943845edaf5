"""What the texts of a form's fields say: numbers and members of documents."""

from __future__ import annotations

import json
import re

from app.web import strict_json
from core.contracts.redeclaration import Redeclaration
from core.errors import InvalidRequest


def redeclaration(people: str, records: str, mixed: str = "") -> Redeclaration:
    """What to declare anew: the members of a JSON object, and a number of records; an empty text has none. `mixed`: not
    empty for that plan.

    Raises:
        InvalidRequest: this is no JSON object, or no whole number.
        ValidationError: the members are not those of a redeclaration.
    """
    try:
        strict_json.check(people.encode())
        members = json.loads(people) if people.strip() else {}
    except ValueError as wrong:
        raise InvalidRequest(f"this is not JSON: {wrong}") from None
    if not isinstance(members, dict):
        raise InvalidRequest('send a JSON object with members to declare anew, such as {"slots": {"train": 30000}}')
    counted = {"records": whole_number(records)} if records.strip() else {}
    planned = {"plan": "mixed"} if mixed else {}
    return Redeclaration.model_validate_json(json.dumps(members | counted | planned))


def whole_number(text: str) -> int:
    """A whole number, which may have separators: 24000, 24,000, 24 000.

    Raises:
        InvalidRequest: it is none.
    """
    digits = re.sub(r"[\s,_]", "", text)
    if re.fullmatch(r"[0-9]{1,15}", digits) is None:
        raise InvalidRequest(f"{text!r} is not a whole number: write one such as 24000 or 24,000")
    return int(digits)


def number(text: str) -> float:
    """A number such as 2.5.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a number: write one such as 2.5") from None
