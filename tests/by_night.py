"""What `make test` leaves to `make nightly-services`: the rest of a sweep, and most tests on PostgreSQL.

A sweep says so where it stands (`but`) or, if every n-th case stands for the others, in SWEEPS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.conftest import BACKINGS

# Of these, every n-th case runs by day. The n of a sweep over two things shares no factor with the inner one's size:
# each value of both then runs.
SWEEPS = {
    "tests/hf/test_norms.py::test_clipped_sums_are_those_of_autograd_record_by_record": 2,
    "tests/hf/test_families.py::test_clipped_sums_are_those_of_autograd_record_by_record": 2,
    "tests/lifecycle/test_auditor.py::test_a_worker_that_left_the_mechanism_is_found": 3,
    "tests/worker/test_bookkeeping.py::test_no_record_changes_the_sum_by_more_than_c": 3,
    "tests/worker/test_bookkeeping.py::test_the_sum_is_that_of_gradients_clipped_one_at_a_time": 3,
    "tests/worker/test_bound.py::test_one_record_changes_a_clipped_sum_by_at_most_c": 2,
    "tests/worker/test_bound.py::test_one_record_changes_a_score_s_sums_by_at_most_their_sensitivity": 5,
    "tests/worker/test_bound.py::test_one_unit_changes_a_clipped_sum_by_at_most_c": 3,
    "tests/worker/test_float32_sums.py::test_one_record_changes_a_network_s_sum_by_at_most_c": 2,
    "tests/worker/test_formed_sums.py::test_one_record_changes_the_sum_by_at_most_c": 2,
    "tests/worker/test_meta.py::test_clipped_sums": 3,
    "tests/worker/test_meta.py::test_updates": 3,
    "tests/worker/test_native_steps.py::test_clip_factors": 5,
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
    "tests/budgets/",
    "tests/datasets/test_quota_race.py",
    "tests/egress/test_two_persons.py",
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
    "tests/lifecycle/test_gang_race.py",
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


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks what SWEEPS and ON_POSTGRES_BY_DAY leave to the night."""
    cases: Counter[str] = Counter()
    for item in items:
        sweep = item.nodeid.partition("[")[0]
        every = SWEEPS.get(sweep, 1)
        if cases[sweep] % every or _only_on_postgres_by_night(item):
            item.add_marker(pytest.mark.nightly)
        cases[sweep] += 1


def _only_on_postgres_by_night(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    on_postgres = case is not None and "postgres" in (case.params.get("backing"), case.params.get("database_url"))
    here = item.nodeid.startswith(ON_POSTGRES_BY_DAY) and not item.nodeid.startswith(OF_CERTIFICATES)
    return on_postgres and not here


# For what does not differ by backing: the fixture `backing`, on PostgreSQL by night.
SQLITE_BY_DAY = but(BACKINGS, lambda backing: backing == "sqlite")
ON_SQLITE_BY_DAY = pytest.mark.parametrize("backing", SQLITE_BY_DAY)
