"""The Merkle tree hash of RFC 6962, section 2.1: SHA-256, with leaves and inner nodes in separate domains.

leaf hash    SHA-256(0x00 ‖ data)
node hash    SHA-256(0x01 ‖ left ‖ right)
root         of n > 1 leaves: node(root of the first k, root of the rest), k the largest power of two below n
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol


class Buffer(Protocol):
    """Bytes, or a view of them."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


def leaf_hash(*pieces: Buffer) -> bytes:
    """The hash of a leaf, given in pieces.

    >>> leaf_hash(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    digest = hashlib.sha256(b"\x00")
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over leaf hashes, in their order. Memory: one hash a level.

    >>> root_of([]).hex()[:16]
    'e3b0c44298fc1c14'
    """
    stack: list[tuple[int, bytes]] = []  # complete subtrees from the left, each with its height
    for leaf in leaves:
        height, found = 0, leaf
        while stack and stack[-1][0] == height:
            found = _node(stack.pop()[1], found)
            height += 1
        stack.append((height, found))
    if not stack:
        return hashlib.sha256(b"").digest()
    found = stack.pop()[1]
    while stack:
        found = _node(stack.pop()[1], found)
    return found


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
