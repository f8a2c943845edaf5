"""How many trees a node changes: theorem of decision 56, by the product's own code over all small graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from core.contracts.neighbourhoods import Hops, Tree
from core.parts.damage import DataDamagedError
from core.parts.nodes import kept, number_of, stored_ids, tree_of, trees

KEEP = 4
Lists = tuple[tuple[int, ...], ...]  # of each node, the nodes that it names
TREES = [Tree(hops=hops, neighbours=k) for hops in (1, 2) for k in (1, 2, 3)]


def subsets(nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(nodes, size) for size in range(len(nodes) + 1))


def every_graph(nodes: int) -> list[Lists]:
    """All graphs of so many nodes, each with every list."""
    return list(product(*(list(subsets([w for w in range(nodes) if w != v])) for v in range(nodes))))


def drawn_graphs(nodes: int, count: int, seed: int) -> list[Lists]:
    rng = np.random.default_rng(seed)
    return [
        tuple(tuple(int(w) for w in np.flatnonzero(rng.random(nodes) < share) if w != v) for v in range(nodes))
        for share in rng.uniform(0.1, 0.9, count)
    ]


def stored(graphs: Sequence[Lists]) -> NDArray[np.float64]:
    """All graphs beside each other as one part, one column a node: none of them names another's."""
    numbers = []
    for at, graph in enumerate(graphs):
        for node, named in enumerate(graph):
            own = f"{at}/{node}"
            numbers.append([number_of(own), *kept(own, (f"{at}/{w}" for w in named), KEEP)])
    return np.concatenate([np.arange(1.0, 1.0 + len(numbers))[:, None], stored_ids(numbers, KEEP)], axis=1)


def less(part: NDArray[np.float64], nodes: int, absent: int) -> NDArray[np.float64]:
    """The part without one row of each graph; others name it as before."""
    left: NDArray[np.float64] = part[np.arange(len(part)) % nodes != absent]
    return left


Removed = Callable[[Lists, int], Lists]


def changed(graphs: Sequence[Lists], tree: Tree, removed: Removed | None = None) -> int:
    """The most trees, its own included, that one node more or less changes in any of the graphs.

    Args:
        removed: what becomes of the others' lists; None: they stay.
    """
    nodes, most, part = len(graphs[0]), 0, stored(graphs)
    before = trees(part, 1, tree).reshape(len(graphs), nodes, -1)
    for absent in range(nodes):
        left = part if removed is None else stored([removed(each, absent) for each in graphs])
        after = trees(less(left, nodes, absent), 1, tree)
        others = np.delete(before, absent, axis=1)
        moved = (others != after.reshape(others.shape)).any(axis=2).sum(axis=1)
        most = max(most, 1 + int(moved.max()))
    return most


def without(graph: Lists, node: int) -> Lists:
    """The graph without a node's edges, in others' lists too."""
    return tuple(tuple(w for w in named if w != node) for named in graph)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_no_graph_of_four_nodes_exceeds_the_count(tree: Tree) -> None:
    found = changed(every_graph(4), tree)
    assert found <= tree.readers
    assert found == min(tree.readers, 4)  # no slack: the count is reached as soon as there are nodes enough


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_drawn_graphs_reach_the_count(tree: Tree) -> None:
    found = changed(drawn_graphs(12, 300, seed=1), tree)
    assert found <= tree.readers
    assert tree.readers > 12 or found >= min(tree.readers, 7)


@pytest.mark.parametrize("hops", [1, 2])
def test_all_edges_of_a_node_may_go_where_no_list_is_longer(hops: Hops) -> None:
    """Then nobody's choice has a place that another takes: the same count holds for the node with all its edges."""
    assert changed(every_graph(4), Tree(hops=hops, neighbours=3), without) <= Tree(hops=hops, neighbours=3).readers


def test_a_longer_list_fills_the_place_of_a_node_that_left() -> None:
    """Why the unit is a row, and not a node with what others say of it: each who names it would name another instead,
    and how many do is not bounded."""
    spokes = 8
    readers = range(1 + spokes, 1 + 2 * spokes)
    hub: Lists = ((), *((0, reader) for reader in readers), *(() for _ in readers))
    tree = Tree(hops=1, neighbours=1)
    graphs = [hub] * 32  # each has ids, and so orders, of its own
    assert changed(graphs, tree) <= tree.readers
    assert changed(graphs, tree, without) > 2 * tree.readers


def test_one_neighbour_too_many_is_seen() -> None:
    """Plants the fault that the count is there for: nodes read by one more than is charged."""
    charged = Tree(hops=1, neighbours=2)
    assert changed(every_graph(4), Tree(hops=1, neighbours=3)) > charged.readers


def test_nothing_of_an_absent_node_is_read() -> None:
    """Each node's column is a power of two, so that a mean tells whose columns are in it."""
    graphs = drawn_graphs(9, 50, seed=3)
    tree = Tree(hops=2, neighbours=3)
    with_hub = stored(graphs)
    with_hub[:, 0] = np.tile([0.5, *(2.0 ** np.arange(8))], len(graphs))
    part = less(with_hub, 9, 0)
    rows = np.flatnonzero(with_hub[:, 0] != 0.5)
    hub_reached = trees(with_hub, 1, tree)[rows]
    alone = trees(part, 1, tree)
    kept_apart = (hub_reached == alone).all(axis=1)
    assert 0 < kept_apart.sum() < len(rows)
    silent = with_hub.copy()
    silent[with_hub[:, 0] == 0.5, 0] = 1e6  # whoever reads it has other numbers now
    assert (trees(silent, 1, tree)[rows][kept_apart] == alone[kept_apart]).all()


def test_a_tree_does_not_depend_on_where_its_nodes_stand() -> None:
    part = stored(drawn_graphs(10, 30, seed=5))
    order = np.random.default_rng(6).permutation(len(part))
    for tree in TREES:
        assert (trees(part[order], 1, tree) == trees(part, 1, tree)[order]).all()


def test_a_tree_holds_the_node_its_children_and_their_means() -> None:
    numbers = {name: number_of(name) for name in "abcd"}
    named = {"a": [], "b": ["a"], "c": ["a"], "d": ["b"]}  # a reads b and c, b reads d
    part = np.concatenate(
        [
            np.array([[1.0], [2.0], [4.0], [8.0]]),
            stored_ids([[numbers[each], *kept(each, named[each], 2)] for each in "abcd"], 2),
        ],
        axis=1,
    )
    assert trees(part, 1, Tree(hops=1, neighbours=2)).tolist() == [[1.0, 3.0], [2.0, 8.0], [4.0, 0.0], [8.0, 0.0]]
    two = trees(part, 1, Tree(hops=2, neighbours=2))
    assert {tuple(two[0, 2:4]), tuple(two[0, 4:6])} == {(2.0, 8.0), (4.0, 0.0)}
    assert two[0, :2].tolist() == [1.0, 3.0]
    assert two[:, 6:].tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    below = [[[2.0], [8.0]], [[4.0]]] if two[0, 2] == 2.0 else [[[4.0]], [[2.0], [8.0]]]
    assert (tree_of([1.0], below, Tree(hops=2, neighbours=2)) == two[0]).all()
    assert tree_of([1.0], below, Tree(hops=1, neighbours=2)).tolist() == [1.0, 3.0]


def test_two_nodes_of_one_id_are_refused() -> None:
    with pytest.raises(DataDamagedError, match="one id"):
        trees(np.repeat(stored([((), (0,))]), 2, axis=0), 1, Tree())


def test_lists_without_order_and_repetition() -> None:
    assert kept("a", ["b", "a", "b", "c"], 4) == kept("a", ["c", "b"], 4)
    assert kept("a", map(str, range(99)), 5) == kept("a", map(str, range(99)), 9)[:5]
    assert kept("a", map(str, range(99)), 5) != kept("b", map(str, range(99)), 5)


def test_a_mixture_that_comes_or_goes_does_not_price_a_term_that_changes() -> None:
    """Why Poisson sampling is refused: below a threshold of 1 the mixture's pair is 0, and the true one not."""
    q, sigma, epsilon = 0.1, 1.0, 0.3
    x = np.linspace(-12.0, 12.0, 200_001)

    def drawn(at: float) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (1.0 - q) * norm.pdf(x, 0.0, sigma) + q * norm.pdf(x, at, sigma)
        return found

    def excess(p: NDArray[np.float64], of: NDArray[np.float64]) -> float:
        return float(np.maximum(0.0, p - math.exp(epsilon) * of).sum() * (x[1] - x[0]))

    assert excess(norm.pdf(x, 0.0, sigma), drawn(2.0)) == 0.0
    assert excess(drawn(1.0), drawn(-1.0)) > 1e-3 and excess(drawn(-1.0), drawn(1.0)) > 1e-3
