"""The Merkle tree over a data set's entries, hashed as RFC 6962 does; and the proofs that a checkpoint needs.

    leaf k   = SHA-256(0x00 ‖ hash of entry k+1, 32 bytes)
    node     = SHA-256(0x01 ‖ left ‖ right)
    MTH(D)   = leaf, or node(MTH(D[0:k]), MTH(D[k:n])) with k the largest power of two below n

An entry's hash covers its content and the hash before it, so a leaf covers all entries up to its own.

Cost: roots of whole tiles (256 leaves) are kept. A root or a proof reads at most two tiles of leaves and n/256 roots.

Source: RFC 6962, section 2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

TILE = 256
Leaves = Callable[[int, int], Sequence[bytes]]


def leaf(data: bytes) -> bytes:
    """The hash of a leaf."""
    return hashlib.sha256(b"\0" + data).digest()


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
        found = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            found = node(peak, found)
        return found


class Tree:
    """Roots and proofs of a tree whose leaves lie elsewhere.

    Args:
        leaves: the leaf hashes from the first number to before the second, as far as there are any; asked for one tile
            at a time.
        tiles: known roots of whole tiles, by their number.

    Attributes:
        made: roots of whole tiles that were computed here, by their number: the caller may keep them.
    """

    def __init__(self, leaves: Leaves, tiles: Mapping[int, bytes]) -> None:
        self._leaves, self._tiles = leaves, tiles
        self._read: dict[int, Sequence[bytes]] = {}
        self.made: dict[int, bytes] = {}

    def root(self, size: int) -> bytes:
        """The root of the first `size` leaves."""
        return self._range(0, size)

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """PATH(index, D[0:size]): proves that a leaf is in the tree of this size.

        Raises:
            ValueError: there is no such leaf.
        """
        if not 0 <= index < size:
            raise ValueError(f"a tree of {size} leaves has no leaf {index}")
        path: list[bytes] = []
        low, high = 0, size
        while high - low > 1:
            middle = low + _split(high - low)
            if index < middle:
                path.append(self._range(middle, high))
                high = middle
            else:
                path.append(self._range(low, middle))
                low = middle
        return path[::-1]

    def consistency(self, old: int, size: int) -> list[bytes]:
        """PROOF(old, D[0:size]): proves that the first `old` leaves are those of the tree of that size.

        Raises:
            ValueError: no tree of the old size precedes this one.
        """
        if not 0 < old <= size:
            raise ValueError(f"a tree of {size} leaves does not follow one of {old}")
        path: list[bytes] = []
        low, high, whole = 0, size, True
        while old != high:
            middle = low + _split(high - low)
            if old <= middle:
                path.append(self._range(middle, high))
                high = middle
            else:
                path.append(self._range(low, middle))
                low, whole = middle, False
        return ([] if whole else [self._range(low, high)]) + path[::-1]

    def _range(self, low: int, high: int) -> bytes:
        """The root of D[low:high]. In every proof `low` is a multiple of the power of two that the range fills."""
        if high - low > TILE:
            middle = low + _split(high - low)
            return node(self._range(low, middle), self._range(middle, high))
        number, within = divmod(low, TILE)
        if high - low < TILE:
            return _root(self._tile(number, within, within + high - low))
        if number in self._tiles:
            return self._tiles[number]
        if number not in self.made:
            self.made[number] = _root(self._tile(number, 0, TILE))
        return self.made[number]

    def _tile(self, number: int, low: int, high: int) -> Sequence[bytes]:
        """These leaves of a tile.

        Raises:
            ValueError: not all of them are there.
        """
        if number not in self._read:
            self._read[number] = self._leaves(number * TILE, (number + 1) * TILE)
        found = self._read[number][low:high]
        if len(found) != high - low:
            raise ValueError(f"leaf {number * TILE + low + len(found)} is missing")
        return found


def _root(leaves: Sequence[bytes]) -> bytes:
    grown = Frontier()
    for each in leaves:
        grown.add(each)
    return grown.root()


def _split(n: int) -> int:
    """The largest power of two below n."""
    return 1 << ((n - 1).bit_length() - 1)
