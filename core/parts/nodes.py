"""Nodes of a graph as they are stored, and the trees that a model reads of them. numpy alone: worker and API use it.

A row of the file is a node: its id, its columns, its label, and a list of other nodes' ids, its own. A part stores the
columns and then ids as numbers: the node's, and those of the first `keep` nodes of its list, in an order of its own.
A node is read by those of them that are there (`Tree`): a job takes the first K of these K′ ≥ K.

Whoever a node names is a function of its own row alone. So whether another node is there changes nobody's choice, and
the trees that change with a node are those that it is in: N(K, r) at most (decision 56, tests/privacy/test_nodes.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.contracts.neighbourhoods import HALVES, Tree, stored_width
from core.parts.damage import DataDamagedError

HALF_BITS = 23  # of an id's number, in each of two float32 numbers, which hold them exactly
NOBODY = -1  # fewer than `keep` nodes are named

Ids = NDArray[np.int64]


def number_of(node: str) -> int:
    """The number that stands for an id: 46 bits of its hash.

    >>> 0 <= number_of("a") < 2**46
    True
    """
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:8], "big") >> (64 - HALVES * HALF_BITS)


def kept(node: str, names: Iterable[str], keep: int) -> list[int]:
    """The numbers of the first `keep` nodes of a node's list, without itself and repetitions, in an order of its own.

    The order is that of a hash of both ids: neither the list's order nor any other row decides it.
    """
    others_ids = {number_of(each) for each in names} - {number_of(node)}
    own_id = number_of(node).to_bytes(8, "big")
    return sorted(others_ids, key=lambda other: (_rank(own_id + other.to_bytes(8, "big")), other))[:keep]


def ranks(nodes: Ids, neighbours: Ids) -> NDArray[np.uint64]:
    """The places of others in nodes' orders, pair by pair: as `kept` orders them, ascending and then by number."""
    pairs = np.stack([nodes, neighbours], axis=1).astype(">i8").tobytes()
    hashes = b"".join(_rank(pairs[at : at + 16]) for at in range(0, len(pairs), 16))
    return np.frombuffer(hashes, dtype=">u8").astype(np.uint64)


def _rank(pair: bytes) -> bytes:
    return hashlib.sha256(pair).digest()[:8]


def stored_ids(numbers: Sequence[Sequence[int]], keep: int) -> NDArray[np.float64]:
    """Ids as a part stores them, (n, stored_width).

    Args:
        numbers: of each node, its own number and those that it names.
    """
    ids = np.full((len(numbers), 1 + keep), NOBODY, dtype=np.int64)
    for row, node_id in enumerate(numbers):
        ids[row, : len(node_id)] = node_id
    return stored_numbers(ids)


def stored_numbers(ids: Ids) -> NDArray[np.float64]:
    """The same of (n, 1 + keep) numbers; NOBODY where fewer are named."""
    high, low = ids >> HALF_BITS, np.where(ids < 0, NOBODY, ids & (2**HALF_BITS - 1))
    return np.concatenate([high, low], axis=1).astype(np.float64)


def read(stored: NDArray[Any], columns: int, keep: int, tree: Tree | None) -> NDArray[np.float32]:
    """What a model reads of the nodes of one part: their trees, or their columns alone.

    Args:
        stored: as `trees` takes it.

    Raises:
        DataDamagedError: it is not as wide as declared, or two nodes have one id.
    """
    if stored.ndim != 2 or stored.shape[1] != columns + stored_width(keep):
        raise DataDamagedError("a stored part of the data set does not have the declared columns")
    if tree is None:
        return np.ascontiguousarray(stored[:, :columns], dtype=np.float32)
    return trees(stored, columns, tree)


def trees(stored: NDArray[Any], columns: int, tree: Tree) -> NDArray[np.float32]:
    """The trees of all nodes of one part, (n, tree.width(columns)). Nodes of other parts are not there.

    One hop: a node's columns, and the mean of its children's. Two hops: both of these for the node, then for each of K
    children, zeros where there are fewer; then K weights, 1/children of each child and 0 of the others.

    Args:
        stored: (n, columns + stored_width(keep)).

    Raises:
        DataDamagedError: two nodes have one id.
    """
    columns_of = stored[:, :columns].astype(np.float32)
    readers = children(ids_of(stored[:, columns:]), tree.neighbours)
    means = np.zeros(columns_of.shape, dtype=np.float64)
    count = np.maximum((readers >= 0).sum(axis=1), 1)
    for child in readers.T:  # one after the other: a node's sum has the same bits wherever it stands
        means += np.where(child[:, None] >= 0, columns_of[child], np.float32(0.0))
    nodes = np.concatenate([columns_of, (means / count[:, None]).astype(np.float32)], axis=1)
    if tree.hops == 1:
        return nodes
    present = readers >= 0
    below = [np.where(child[:, None] >= 0, nodes[child], np.float32(0.0)) for child in readers.T]
    weights = (present / count[:, None]).astype(np.float32)
    return np.concatenate([nodes, *below, weights], axis=1)


def children(ids: Ids, neighbours: int) -> Ids:
    """The rows of each node's children, (n, K); NOBODY where there are fewer.

    u may read w if u is among the first K that w names. u reads the first K of these, in an order of its own.

    Args:
        ids: (n, 1 + keep), each node's number and those that it names.

    Raises:
        DataDamagedError: two nodes have one id.
    """
    numbers, lists = ids[:, 0], ids[:, 1 : 1 + neighbours]
    rows = np.full((len(ids), neighbours), NOBODY, dtype=np.int64)
    if not len(ids):
        return rows
    by_number = np.argsort(numbers, kind="stable")
    ascending = numbers[by_number]
    if (np.diff(ascending) == 0).any():
        raise DataDamagedError("two nodes of a stored part have one id")
    at = np.minimum(np.searchsorted(ascending, lists), len(ids) - 1)
    present = ascending[at] == lists
    child, readers = np.nonzero(present)[0], by_number[at[present]]
    ranks = _mixed(numbers[readers], numbers[child])
    order = np.lexsort((numbers[child], ranks, readers))
    child, readers = child[order], readers[order]
    starts = np.searchsorted(readers, np.arange(len(ids)))
    place = np.arange(len(readers)) - starts[readers]
    first = place < neighbours
    rows[readers[first], place[first]] = child[first]
    return rows


def tree_of(root: Sequence[float], below: Sequence[Sequence[Sequence[float]]], tree: Tree) -> NDArray[np.float32]:
    """The numbers of one tree that a caller gives; see `trees`.

    Args:
        root: the node's columns.
        below: of each child, its own columns and then those of its children.
    """
    columns = len(root)
    nodes: NDArray[np.float32] = np.zeros((1 + tree.neighbours, 2, columns), dtype=np.float32)
    nodes[0, 0] = root
    for place, (child, *grandchildren) in enumerate(below, start=1):
        nodes[place, 0] = child
        nodes[place, 1] = _mean(grandchildren, columns)
    nodes[0, 1] = _mean([each[0] for each in below], columns)
    weights: NDArray[np.float32] = np.zeros(tree.neighbours, dtype=np.float32)
    weights[: len(below)] = 1.0 / max(len(below), 1)
    flat: NDArray[np.float32] = np.concatenate([nodes.reshape(-1), weights])
    return flat[: 2 * columns] if tree.hops == 1 else flat


def _mean(rows: Sequence[Sequence[float]], columns: int) -> NDArray[np.float32]:
    total = np.zeros(columns)
    for row in rows:
        total += np.asarray(row, dtype=np.float32)
    mean: NDArray[np.float32] = (total / max(len(rows), 1)).astype(np.float32)
    return mean


def ids_of(stored: NDArray[Any]) -> Ids:
    """The ids of `stored_ids`, (n, 1 + keep)."""
    high, low = np.split(np.rint(stored).astype(np.int64), HALVES, axis=1)
    return np.where(high < 0, NOBODY, (high << HALF_BITS) | low)


def _mixed(first: Ids, second: Ids) -> NDArray[np.uint64]:
    """64 bits of each pair: splitmix64's mixing, twice."""
    with np.errstate(over="ignore"):
        mixed = first.astype(np.uint64)
        for other in (second.astype(np.uint64), np.uint64(0)):
            mixed = (mixed + np.uint64(0x9E3779B97F4A7C15)) ^ other
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    return mixed
