"""People who return: price against truth over all neighbours of a small world, whose files come one after the other.

A person's records in a file are a number, and a world is its people's numbers. Files arrive, jobs read blocks, and
blocks are retired. The truth is the loss of the person whose removal changes the releases most. The price is what the
block that spent most was charged: a cap on each block then bounds everybody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import logsumexp

from core.privacy import gdp
from core.privacy.events import Truncation, leaves, noisy_sums
from core.privacy.rdp import rdp_at
from tests.privacy.toy import Law, Release, alternating, sum_of

K = 2  # records of a person, each clipped to 1/K
SIGMA, DELTA = 1.0, 1e-6
FILES = 3
Person = tuple[int, ...]  # records in each file
World = Mapping[str, Person]
Kept = dict[int, int]  # a person's records by file
Read = list[dict[str, float]]  # by job: what each person adds to its sum, in units of C


@dataclass(frozen=True)
class Arrival:
    """A file, which opens the block of its number."""

    file: int


@dataclass(frozen=True)
class Job:
    """Reads these blocks, and pays on each of them."""

    blocks: frozenset[int]


@dataclass(frozen=True)
class Retirement:
    """Nothing is admitted on the block any more; its spending stays."""

    block: int


Story = Sequence[Arrival | Job | Retirement]
Rule = Callable[[Kept, int, set[int]], int]  # what was kept, the records that come, the closed blocks: how many stay
Adds = Callable[[int], float]  # what a person with so many records adds to a sum, in units of C


def within_k(kept: Kept, records: int, closed: set[int]) -> int:
    """The rule: K records of all files together, of retired and deleted ones too."""
    return min(records, K - sum(kept.values()))


def k_of_each_file(kept: Kept, records: int, closed: set[int]) -> int:
    """Wrong: K records of each file."""
    return min(records, K)


def of_open_blocks(kept: Kept, records: int, closed: set[int]) -> int:
    """Wrong: records of retired blocks are forgotten."""
    return min(records, K - sum(count for file, count in kept.items() if file not in closed))


def clipped_each(records: int) -> float:
    """The rule: each record is clipped to C/K."""
    return records / K


def clipped_together(records: int) -> float:
    """Wrong: a person's records of one job are clipped together, so that few weigh as much as many."""
    return float(records > 0)


def read(world: World, story: Story, rule: Rule, adds: Adds) -> Read:
    """What each person adds to each job."""
    people: dict[str, Kept] = {name: {} for name in world}
    closed, jobs = set[int](), []
    for event in story:
        match event:
            case Arrival(file):
                for name, records in world.items():
                    people[name][file] = rule(people[name], records[file], closed)
            case Job(blocks):
                counts = {name: sum(kept.get(each, 0) for each in blocks) for name, kept in people.items()}
                jobs.append({name: adds(count) for name, count in counts.items()})
            case Retirement(block):
                closed.add(block)
    return jobs


def charges(story: Story) -> list[float]:
    """Each block's Σ μ²: a function of what was declared and requested."""
    jobs = [event for event in story if isinstance(event, Job)]
    return [sum(SIGMA**-2 for job in jobs if file in job.blocks) for file in range(FILES)]


def loss(one: Read, other: Read) -> float:
    """Σ μ² of two worlds, with gradients that all point one way."""
    return sum(
        (sum(abs(left.get(name, 0.0) - right.get(name, 0.0)) for name in left | right) / SIGMA) ** 2
        for left, right in zip(one, other, strict=True)
    )


def stories() -> Iterator[Story]:
    """A job after each file, on any open blocks; the first block may be retired before a later file."""
    for retired_before in (None, 1, 2):
        choices = []
        for file in range(FILES):
            closed = {0} if retired_before and file >= retired_before else set()
            is_open = [each for each in range(file + 1) if each not in closed]
            choices.append(
                [frozenset(s) for n in range(1, len(is_open) + 1) for s in itertools.combinations(is_open, n)]
            )
        for chosen in itertools.product(*choices):
            story: list[Arrival | Job | Retirement] = []
            for file, blocks in enumerate(chosen):
                story += [Retirement(0)] if file == retired_before else []
                story += [Arrival(file), Job(blocks)]
            yield story


STORIES = list(stories())
PEOPLE = [each for each in itertools.product(range(K + 2), repeat=FILES) if any(each)]
OTHERS: World = {"a": (1, 2, 0), "b": (0, 1, 1)}


def neighbours(rule: Rule, adds: Adds) -> Iterator[tuple[int, float]]:
    """Every story's number with every person's loss: the person is removed, in whatever files the records are."""
    for number, story in enumerate(STORIES):
        without = read(OTHERS, story, rule, adds)
        for person in PEOPLE:
            yield number, loss(read({**OTHERS, "x": person}, story, rule, adds), without)


def test_the_block_that_spent_most_pays_for_everybody() -> None:
    """Also for those in several blocks, which different jobs read; and for somebody it is no more than the truth."""
    worst = [0.0] * len(STORIES)
    for number, truth in neighbours(within_k, clipped_each):
        worst[number] = max(worst[number], truth)
    assert worst == pytest.approx([max(charges(story)) for story in STORIES])


SHORTCUTS = {
    "k records of each file": (k_of_each_file, clipped_each),
    "retired records are forgotten": (of_open_blocks, clipped_each),
    "a person's records are clipped together": (within_k, clipped_together),
}


def epsilon(loss: float) -> float:
    return gdp.epsilon_from_mu(math.sqrt(loss), DELTA)


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_costs_more_than_any_block_paid(name: str) -> None:
    over = max(
        epsilon(truth) - epsilon(max(charges(STORIES[number]))) for number, truth in neighbours(*SHORTCUTS[name])
    )
    assert over > 1.0


def test_k_records_that_depend_on_others_cost_more_than_the_price() -> None:
    """A room for two records, whose smallest digests stay: x takes another's place. So a file is refused whole."""

    def thinned(records: Sequence[tuple[int, float]]) -> float:
        return sum(value for _, value in sorted(records)[:2])

    others, x = [(2, 1.0), (3, -1.0)], (1, 1.0)
    change = thinned([*others, x]) - thinned(others)
    assert epsilon((change / SIGMA) ** 2) > 1.5 * epsilon(SIGMA**-2)


ROWS = 3


def two_jobs(stored: Sequence[float], came: Sequence[float], *, filled_up: bool) -> Law:
    """The sums of two jobs on records with a stored order, and on others that came later. All places are as likely.

    Args:
        filled_up: wrong: the stored records keep their rows, and each job draws rows for the others among the rest.
            Else each job draws the rows of all.
    """
    orders, sums = list(itertools.permutations(range(ROWS), len(stored) + len(came))), Law()

    def of_job(order: Sequence[int]) -> float:
        return sum_of(list(zip([*stored, *came], order, strict=True)), ROWS, alternating)[0]

    for one in orders:
        second = [each for each in orders if not filled_up or each[: len(stored)] == one[: len(stored)]]
        for other in second:
            both = (of_job(one), of_job(other))
            sums[both] = sums.get(both, 0.0) + 1.0 / len(orders) / len(second)
    return sums


def test_filling_up_a_stored_order_costs_more_than_the_price() -> None:
    """Later records would avoid x's row, job after job; x itself adds nothing here. So a stored order serves all of its
    records in all jobs, or none."""

    def truth(*, filled_up: bool) -> float:
        without, joined = (two_jobs(each, (1.0,), filled_up=filled_up) for each in ((0.0,), (0.0, 0.0)))
        return Release([(1.0, without, joined)], 0.3).epsilon(DELTA)

    assert truth(filled_up=False) == pytest.approx(0.0, abs=1e-3)
    assert truth(filled_up=True) > 1.0


def test_a_charge_that_does_not_shrink_with_records_costs_more_than_the_price() -> None:
    """Another system counts the people of each file: one in both months moves both counts, and each block paid one."""
    each_paid = 1.0
    assert epsilon(2 * each_paid) > 1.3 * epsilon(each_paid)
    assert epsilon(2 * each_paid) <= epsilon(K * each_paid), "K times the charge on each covers it"


def truth_at(share: float, rate: float, sigma: float, order: float, overflow: float) -> float:
    """A step's Rényi divergence for so much of a person, by integration; a largest batch mixes in twice the move."""
    axis = np.linspace(-15.0, 60.0, 150_001)

    def log_moment(move: float) -> float:
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + axis * move - move**2 / 2.0)
        cell = math.log(axis[1] - axis[0]) - math.log(2.0 * math.pi) / 2.0
        return float(logsumexp(order * ratio - axis**2 / 2.0)) + cell

    plain = log_moment(share / sigma)
    if overflow == 0.0:
        return plain / (order - 1.0)
    twice = log_moment(2.0 * share / sigma)
    return float(np.logaddexp(plain + math.log1p(-overflow), twice + math.log(overflow))) / (order - 1.0)


@pytest.mark.parametrize("most", [None, 6])
@pytest.mark.parametrize("order", [1.5, 2.0, 4.7, 16.0])
@pytest.mark.parametrize(("rate", "sigma"), [(0.001, 0.8), (0.05, 1.0), (0.3, 1.0), (0.3, 3.0)])
def test_a_share_of_a_person_costs_at_most_its_square_of_a_sampled_step(
    rate: float, sigma: float, order: float, most: int | None
) -> None:
    """(α − 1) D_α is convex in the squared distance, and 0 at 0: so D(W) ≤ W² D(1) ≤ W D(1)."""
    event = noisy_sums(rate, sigma, 1, None if most is None else Truncation(records=20, largest_batch=most))
    (leaf,) = leaves(event)
    whole = truth_at(1.0, rate, sigma, order, leaf.overflow)
    assert whole <= rdp_at(event, order) * (1 + 1e-6)
    for share in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9):
        assert truth_at(share, rate, sigma, order, leaf.overflow) <= share**2 * whole * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 0.6), (0.5, 1.0)])
def test_a_person_with_one_coin_costs_at_most_the_price_of_a_job(rate: float, sigma: float) -> None:
    """A job on two blocks has one coin for x's records in both, so a share of x is less than x. A coin for each block
    would be another law: its tail is lighter, but no theorem here prices it at every ε."""

    def deltas(share: float) -> list[float]:
        joined: Law = {(0.0,): 1.0 - rate, (share,): rate}
        release = Release([(1.0, {(0.0,): 1.0}, joined)], sigma)
        return [release.delta(each) for each in (0.0, 0.5, 1.0, 2.0, 4.0)]

    whole = deltas(1.0)
    for share in (0.25, 0.5, 0.75):
        assert all(one <= other * (1 + 1e-6) for one, other in zip(deltas(share), whole, strict=True))
