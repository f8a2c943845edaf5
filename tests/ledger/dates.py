"""Proofs that a witness saw signatures, of logs that stand here: the files of --dated."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger.transparency import notes
from app.ledger.transparency.ledger_tree import Tree
from core.merkle import leaf
from scrimp.witness import Witness


def date_of(
    witness: Witness, key: Ed25519PrivateKey, envelopes: Sequence[Any], place: int, log: str = "log", at: int = 0
) -> Any:
    """The proof that a witness saw a signature.

    Args:
        envelopes: all that the log has, each with one signature.
        place: of the proven one, from 1.
        at: what the witness's clock says; 0: the time.
    """
    said = [(base64.b64decode(each["signatures"][0]["sig"]), base64.b64decode(each["payload"])) for each in envelopes]
    leaves = [leaf(hashlib.sha256(signature + payload).digest()) for signature, payload in said]
    tree = Tree(lambda low, high: leaves[low:high], {})
    note = notes.sign(notes.Checkpoint(log, len(leaves), tree.root(len(leaves))), key)
    path = [base64.b64encode(each).decode() for each in tree.inclusion(place - 1, len(leaves))]
    with pytest.MonkeyPatch.context() as patched:
        if at:
            patched.setattr("scrimp.witness.time.time", lambda: at)
        return {"checkpoint": note + witness.add(f"old 0\n\n{note}"), "entry": place, "path": path}
