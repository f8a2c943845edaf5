"""What the ledger's and the audit log's hash chains share: the spelling of a document and its digest.

h_0 = the genesis hash of the chain
h_k = SHA-256(canonical JSON of entry k without `hash`, with prev_hash = h_{k−1})
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol


class EntryLike(Protocol):
    """An ORM entry, or a row with its columns."""

    def __getattribute__(self, name: str, /) -> Any: ...


def canonical_json(document: Any) -> bytes:
    """The one spelling of a document that hashes and signatures are made over.

    Raises:
        ValueError: it holds NaN or ∞, which JSON cannot say.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of an entry's content, in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()
