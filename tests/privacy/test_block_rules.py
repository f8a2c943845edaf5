"""Why a block that shares a user with another one must not be refused in sight of others (decision 25)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

Uploads = tuple[frozenset[str], ...]
Blocks = dict[int, frozenset[str]]
USERS = ("a", "b", "c", "x")


def refuse(uploads: Uploads) -> Blocks:
    """The rule of the specification: a block that holds a user of another block does not come to be."""
    blocks: Blocks = {}
    for label, users in enumerate(uploads):
        if not any(users & others for others in blocks.values()):
            blocks[label] = users
    return blocks


def drop(uploads: Uploads) -> Blocks:
    """A later block loses the users that an earlier one has."""
    blocks: Blocks = {}
    seen: frozenset[str] = frozenset()
    for label, users in enumerate(uploads):
        blocks[label] = users - seen
        seen |= users
    return blocks


def neighbours() -> list[tuple[Uploads, Uploads]]:
    """Every two uploads of some of four users, with and without one of them."""
    some = [frozenset(each) for size in range(len(USERS) + 1) for each in combinations(USERS, size)]
    return [((one, two), (one - {user}, two - {user})) for one in some for two in some for user in one | two]


def labels_differ(rule: Callable[[Uploads], Blocks]) -> int:
    """How many neighbours an analyst tells apart by the labels alone, without a query: a loss of infinite ε."""
    return sum(rule(left).keys() != rule(right).keys() for left, right in neighbours())


def test_a_visible_refusal_tells_of_one_user() -> None:
    with_x, without = (frozenset("ax"), frozenset("bx")), (frozenset("a"), frozenset("b"))
    assert (list(refuse(with_x)), list(refuse(without))) == ([0], [0, 1])
    assert labels_differ(refuse) > 0


def test_dropping_shared_users_moves_one_user_of_one_block() -> None:
    assert labels_differ(drop) == 0
    for left, right in neighbours():
        changed = [(drop(left)[label] ^ drop(right)[label]) for label in drop(left)]
        assert sum(map(len, changed)) <= 1


@pytest.mark.parametrize("rule", [refuse, drop])
def test_blocks_share_no_user_under_either_rule(rule: Callable[[Uploads], Blocks]) -> None:
    for left, _right in neighbours():
        blocks = list(rule(left).values())
        assert all(not one & other for one, other in combinations(blocks, 2))


def test_dropping_shared_records_moves_two_blocks() -> None:
    """A record that is removed is another one than its equal in a later upload, which then stays: two blocks differ by
    one record each, and a job on both sees that record at double weight. So the service drops no record."""
    both, without = drop((frozenset("ax"), frozenset("bx"))), drop((frozenset("a"), frozenset("bx")))
    assert [both[label] ^ without[label] for label in both] == [{"x"}, {"x"}]
