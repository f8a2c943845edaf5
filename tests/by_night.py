"""What `make test` leaves to `make nightly-services`: most of a product, the rest of a sweep, most on PostgreSQL.

A test with several parameters is a product. Of a large one, cases run by day until they cover each pair of values (of
two parameters: each value). Its other cases run by night, unless the test is marked `every_case`, as its cases are
facts of their own: refusals, hostile input, planted faults.

A sweep over one parameter says so where it stands (`but`) or, if every n-th case stands for the others, in SWEEPS.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from tests.conftest import BACKINGS

# Products with more cases are covered: of two parameters, and of more.
MOST_OF_TWO, MOST_OF_MORE = 12, 8
Row = tuple[str, ...]  # a case's values of the parameters that vary, by their ids

# Of these, every n-th case runs by day.
SWEEPS = {
    "tests/hf/test_norms.py::test_clipped_sums_are_those_of_autograd_record_by_record": 2,
    "tests/hf/test_families.py::test_clipped_sums_are_those_of_autograd_record_by_record": 2,
    "tests/lifecycle/test_auditor.py::test_a_worker_that_left_the_mechanism_is_found": 3,
    "tests/worker/test_bound.py::test_one_record_changes_a_clipped_sum_by_at_most_c": 2,
    "tests/worker/test_bound.py::test_one_record_changes_a_score_s_sums_by_at_most_their_sensitivity": 5,
    "tests/worker/test_bound.py::test_one_unit_changes_a_clipped_sum_by_at_most_c": 3,
    "tests/worker/test_checkpoints.py::test_a_killed_job_ends_with_the_same_model": 3,
    "tests/worker/test_meta.py::test_clipped_sums": 3,
    "tests/worker/test_next_item.py::test_an_attempt_from_stored_parts_to_the_model": 3,
    "tests/worker/test_noise_statistics.py::test_tails_beyond_six_deviations_have_their_shape": 3,
    "tests/worker/test_preconditioned.py::test_a_replay_is_the_same_bit_for_bit_and_free": 4,
    "tests/worker/test_ranks.py::test_every_number_of_ranks_gives_the_same_model_and_record": 3,
    "tests/worker/test_shards.py::test_every_number_of_ranks_gives_the_same_model_and_record": 3,
    "tests/worker/test_ranks.py::test_without_privacy_ranks_give_the_same_model_up_to_rounding": 4,
}

# A test on PostgreSQL takes 0.2 s of processor time more: a database, and its connections. By day it is worth that
# where databases differ or processes race: in these folders, files, and tests whose names begin so. The ledger's tests
# share a database; tests/e2e runs jobs on PostgreSQL.
ON_POSTGRES_BY_DAY = (
    "tests/access/test_keys.py::test_a_key_ends",
    "tests/access/test_keys.py::test_a_second_rotation",
    "tests/access/test_limits.py",
    "tests/audit/test_chain.py",
    "tests/backing/",
    "tests/budgets/test_holds.py",
    "tests/budgets/test_machine.py",
    "tests/budgets/test_sums.py",
    "tests/budgets/test_waiting.py",
    "tests/datasets/test_quota_race.py",
    "tests/egress/test_two_persons.py::test_the_same_person_s_two_keys_at_once",
    "tests/egress/test_two_persons.py::test_two_persons_at_once",
    "tests/egress/test_two_persons.py::test_two_raises_at_once",
    "tests/hpo/test_races.py",
    "tests/jobs/test_admission.py",
    "tests/jobs/test_api.py::test_a_job_is_admitted_with_its_hold",
    "tests/jobs/test_api.py::test_lists_are_paged",
    "tests/jobs/test_api.py::test_one_idempotency_key_at_once",
    "tests/jobs/test_api.py::test_the_same_idempotency_key",
    "tests/jobs/test_api.py::test_what_does_not_fit",
    "tests/jobs/test_cost.py",
    "tests/ledger/",
    "tests/lifecycle/test_queue_model.py",
    "tests/machine/test_races.py",
    "tests/lifecycle/test_claim_race.py",
    "tests/lifecycle/test_clocks.py",
    "tests/lifecycle/test_marks.py::test_what_left",
    "tests/lifecycle/test_zombies.py",
    "tests/migrations/",
    "tests/retention/",
)

# Of the ledger's tests, which share a database: what is made of a certificate, whatever database it came from.
OF_CERTIFICATES = ("tests/ledger/test_attestations.py", "tests/ledger/test_explain.py")


def but(values: Iterable[Any], here: Callable[[Any], bool]) -> list[Any]:
    """All values; those that are not `here` are for the night.

    >>> [getattr(each, "values", each) for each in but("ab", lambda each: each == "a")]
    ['a', ('b',)]
    """
    return [value if here(value) else _by_night(value) for value in values]


def _by_night(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.nightly)


@dataclass(frozen=True)
class Product:
    """A test with several parameters, of whose cases some run by day."""

    cases: list[pytest.Item]
    rows: list[Row]
    by_day: list[int]


COVERED = pytest.StashKey[dict[str, Product]]()  # of the run's configuration


def mark(items: Iterable[pytest.Item]) -> dict[str, Product]:
    """Marks what is left to the night: by SWEEPS and ON_POSTGRES_BY_DAY, then what a product's cover does not need.

    Each database has its own cover, as faults of one do not show on the other.
    """
    counts: Counter[str] = Counter()
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name, on_postgres = item.nodeid.partition("[")[0], _on_postgres(item)
        if counts[name] % SWEEPS.get(name, 1) or (on_postgres and _only_on_postgres_by_night(item)):
            item.add_marker(pytest.mark.nightly)
        if not {"nightly", "every_case"} & {marker.name for marker in item.iter_markers()}:
            cases[f"{name} on PostgreSQL" if on_postgres else name].append(item)
        counts[name] += 1
    products = {name: product for name in cases if (product := _product(cases[name])) is not None}
    for product in products.values():
        for n in {*range(len(product.cases))}.difference(product.by_day):
            product.cases[n].add_marker(pytest.mark.nightly)
    return products


def _product(cases: list[pytest.Item]) -> Product | None:
    """One that is large enough to be covered."""
    rows = rows_of([ids(item) for item in cases])
    return Product(cases, rows, cover(rows)) if rows and len(rows) > most(rows) else None


def ids(item: pytest.Item) -> Row:
    """A case's id of each parameter, or of each set of parameters that are given together."""
    case = getattr(item, "callspec", None)
    return () if case is None else tuple(map(str, case._idlist))


def rows_of(cases: Sequence[Row]) -> list[Row]:
    """The cases of a product by the parameters that vary; nothing unless there are two of these.

    >>> rows_of([("sqlite", "1", "a"), ("sqlite", "2", "a"), ("sqlite", "1", "b"), ("sqlite", "2", "b")])
    [('1', 'a'), ('2', 'a'), ('1', 'b'), ('2', 'b')]
    >>> rows_of([("sqlite", "1"), ("sqlite", "2")])
    []
    """
    if len({len(case) for case in cases}) != 1:
        return []
    columns = [column for column in zip(*cases, strict=True) if len(set(column)) > 1]
    return list(zip(*columns, strict=True)) if len(columns) > 1 else []


def most(rows: Sequence[Row]) -> int:
    """So many cases run by day without a choice."""
    return MOST_OF_TWO if len(rows[0]) == 2 else MOST_OF_MORE


def goals(row: Row) -> set[tuple[tuple[int, ...], Row]]:
    """What a case covers: its pairs of values, or each of its values if it has only two."""
    size = min(2, len(row) - 1)
    return {(places, tuple(row[n] for n in places)) for places in combinations(range(len(row)), size)}


def cover(rows: Sequence[Row]) -> list[int]:
    """Chooses cases that together cover what all cover: the most at a time, and rare values first.

    >>> cover([("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")])
    [0, 3]
    """
    covered = [goals(row) for row in rows]
    missing = set().union(*covered)
    uses: Counter[tuple[int, str]] = Counter()
    chosen: list[int] = []

    def gain(n: int) -> tuple[int, int, int]:
        return len(covered[n] & missing), -sum(uses[value] for value in enumerate(rows[n])), -n

    while missing:
        best = max(range(len(rows)), key=gain)
        missing -= covered[best]
        uses.update(enumerate(rows[best]))
        chosen.append(best)
    return sorted(chosen)


def _on_postgres(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    return case is not None and "postgres" in (case.params.get("backing"), case.params.get("database_url"))


def _only_on_postgres_by_night(item: pytest.Item) -> bool:
    return not item.nodeid.startswith(ON_POSTGRES_BY_DAY) or item.nodeid.startswith(OF_CERTIFICATES)


# For what does not differ by backing: the fixture `backing`, on PostgreSQL by night.
SQLITE_BY_DAY = but(BACKINGS, lambda backing: backing == "sqlite")
ON_SQLITE_BY_DAY = pytest.mark.parametrize("backing", SQLITE_BY_DAY)
