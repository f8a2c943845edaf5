"""The Merkle tree hash of RFC 6962, section 2.1: SHA-256, with leaves and inner nodes in separate domains.

    leaf     SHA-256(0x00 ‖ data)
    node     SHA-256(0x01 ‖ left ‖ right)
    root     of n > 1 leaves: node(root of the first k, root of the rest), k the largest power of two below n

Ledgers (app.ledger.transparency) and stored parts (core.parts.layout) hash with it. The client has its own
(scrimp.transparency), to check this one's work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol


class Buffer(Protocol):
    """Bytes, or a view of them."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


def leaf(*pieces: Buffer) -> bytes:
    """The hash of a leaf, given in pieces.

    >>> leaf(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    digest = hashlib.sha256(b"\0")
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def node(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return hashlib.sha256(b"\1" + left + right).digest()


class Frontier:
    """The root of a tree that grows by one leaf at a time, in O(log n) memory."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []  # of the complete subtrees, from the largest one on

    def add(self, leaf_hash: bytes) -> None:
        """Appends a leaf."""
        size, peak = self.size, leaf_hash
        while size & 1:
            peak = node(self._peaks.pop(), peak)
            size >>= 1
        self._peaks.append(peak)
        self.size += 1

    def root(self) -> bytes:
        """The tree's root; of no leaves the hash of nothing."""
        if not self._peaks:
            return hashlib.sha256(b"").digest()
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = node(peak, root)
        return root


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over leaf hashes, in their order.

    >>> root_of([]).hex()[:16]
    'e3b0c44298fc1c14'
    """
    frontier = Frontier()
    for leaf_hash in leaves:
        frontier.add(leaf_hash)
    return frontier.root()
