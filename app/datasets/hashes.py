"""Keyed hashes of content under a rotated data key: each new key is applied on top of the ones before.

    h₁ = hash of the content under the first key;   hₙ = HMAC-SHA256(keyₙ, hₙ₋₁)

So a stored hash can be renewed without its content, which may have been deleted: registered content stays known.
Somebody with only an older key cannot compute the stored hashes. All keys are needed to compare new content: none is
dropped.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from app.datasets.repository import take_turns
from app.db.models import DatasetContent
from app.secrets import secret_id
from core.errors import Unavailable


def nested(first: str, chain: Sequence[bytes]) -> str:
    """A hash under all keys.

    Args:
        first: the hash under the first key, in hex.
        chain: the keys, the one in use first.
    """
    digest = first
    for key in reversed(chain[:-1]):
        digest = hmac.new(key, bytes.fromhex(digest), hashlib.sha256).hexdigest()
    return digest


def every(first: str, chain: Sequence[bytes]) -> list[str]:
    """All names that a content ever had: its hash under the first key, under the first two, and so on. Records outside
    the database keep the name of their time."""
    return [nested(first, chain[place:]) for place in reversed(range(len(chain)))]


def check_renewed(session: Session, chain: Sequence[bytes]) -> None:
    """Makes a registration wait if its key is not the one of the stored hashes: it could not find registered content.

    Raises:
        Unavailable: a rotation is under way, or this process read the key before it.
    """
    if session.scalar(select(exists().where(_not_under(chain)))):
        raise Unavailable("the key for content hashes is being rotated: try again in a moment")


def renew(session: Session, chain: Sequence[bytes]) -> int:
    """Puts every stored hash under the key in use. Returns how many were renewed. Repeating it changes nothing.

    Raises:
        ValueError: a hash is under a key that is not in `chain`: the file was put back to an older one.
    """
    take_turns(session)
    places = {secret_id(key): place for place, key in enumerate(chain)}
    renewed = 0
    for row in session.scalars(select(DatasetContent).where(_not_under(chain))).all():
        place = len(chain) - 1 if row.key_id is None else places.get(row.key_id)
        if place is None:
            raise ValueError(
                "a content hash is under a data key that the key file no longer holds: restore the newer key file"
            )
        row.hmac, row.key_id = nested(row.hmac, chain[: place + 1]), secret_id(chain[0])
        renewed += 1
    return renewed


def _not_under(chain: Sequence[bytes]) -> ColumnElement[bool]:
    """The condition that a hash is not under the key in use. Hashes from before any rotation are under
    the first key."""
    another = DatasetContent.key_id != secret_id(chain[0])
    return another if len(chain) == 1 else or_(DatasetContent.key_id.is_(None), another)
