"""Recomputes the chains of the ledger and of the audit log from the entries alone, on the reader's side.

    h_0 = SHA-256("scrimp/ledger/v1:" ‖ data set's id), or SHA-256("scrimp/audit/v1")
    h_k = SHA-256(canonical JSON of entry k without `hash`),  whose `prev_hash` is h_{k−1}

Deliberately independent of the service's own check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from scrimp.models import AuditEntry, LedgerEntry


@dataclass(frozen=True)
class Recomputed:
    """The result: how many entries are valid, the head after them, and the first that does not fit."""

    entries: int
    head: str
    first_bad_entry: int | None = None


def recompute_chain(dataset_id: str, entries: Iterable[LedgerEntry]) -> Recomputed:
    """Recomputes a chain from its genesis.

    Args:
        dataset_id: the chain is bound to it.
        entries: all of them, oldest first.
    """
    return _follow(b"scrimp/ledger/v1:" + dataset_id.encode(), entries, {"dataset_id": dataset_id})


def recompute_audit(entries: Iterable[AuditEntry]) -> Recomputed:
    """Recomputes the audit log's chain from its genesis.

    Args:
        entries: all sealed ones, oldest first.
    """
    return _follow(b"scrimp/audit/v1", entries, {})


def _follow(genesis: bytes, entries: Iterable[LedgerEntry | AuditEntry], fixed: dict[str, str]) -> Recomputed:
    head = hashlib.sha256(genesis).hexdigest()
    held_amount = 0
    for seq, entry in enumerate(entries, start=1):
        document = entry.model_dump(mode="json", exclude_unset=True)  # as it was sent
        claimed = document.pop("hash")
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        follows = document | {"seq": seq, "prev_hash": head} | fixed == document
        if not follows or hashlib.sha256(text.encode()).hexdigest() != claimed:
            return Recomputed(held_amount, head, seq)
        held_amount, head = seq, claimed
    return Recomputed(held_amount, head)
