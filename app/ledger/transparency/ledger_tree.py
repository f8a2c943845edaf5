"""The Merkle tree over a data set's entries, hashed as RFC 6962 does; and the proofs that a checkpoint needs.

    leaf k   over the hash of entry k+1, 32 bytes (core.merkle)

An entry's hash covers its content and the hash before it, so a leaf covers all entries up to its own.

Cost: roots of whole tiles (256 leaves) are kept. A root or a proof reads at most two tiles of leaves and n/256 roots.

Source: RFC 6962, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from core.merkle import node, root_of

TILE = 256
Leaves = Callable[[int, int], Sequence[bytes]]


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
        low, high, is_complete = 0, size, True
        while old != high:
            middle = low + _split(high - low)
            if old <= middle:
                path.append(self._range(middle, high))
                high = middle
            else:
                path.append(self._range(low, middle))
                low, is_complete = middle, False
        return ([] if is_complete else [self._range(low, high)]) + path[::-1]

    def _range(self, low: int, high: int) -> bytes:
        """The root of D[low:high]. In every proof `low` is a multiple of the power of two that the range fills."""
        if high - low > TILE:
            middle = low + _split(high - low)
            return node(self._range(low, middle), self._range(middle, high))
        number, within = divmod(low, TILE)
        if high - low < TILE:
            return root_of(self._tile(number, within, within + high - low))
        if number in self._tiles:
            return self._tiles[number]
        if number not in self.made:
            self.made[number] = root_of(self._tile(number, 0, TILE))
        return self.made[number]

    def _tile(self, number: int, low: int, high: int) -> Sequence[bytes]:
        """These leaves of a tile.

        Raises:
            ValueError: not all of them are there.
        """
        if number not in self._read:
            self._read[number] = self._leaves(number * TILE, (number + 1) * TILE)
        tile = self._read[number][low:high]
        if len(tile) != high - low:
            raise ValueError(f"leaf {number * TILE + low + len(tile)} is missing")
        return tile


def _split(n: int) -> int:
    """The largest power of two below n."""
    return 1 << ((n - 1).bit_length() - 1)
