"""What runs by day covers what runs by night; the tables of tests/by_night.py and tests/spread.py name tests."""

from __future__ import annotations

import doctest
import json
import re
from itertools import combinations, product
from pathlib import Path

import pytest

from tests import by_night
from tests.by_night import OF_CERTIFICATES, ON_POSTGRES_BY_DAY, SWEEPS, cover
from tests.spread import ALONE, DURATIONS, ON_POSTGRES, TOGETHER
from tests.stress.cost import SHORT_S

ROOT = Path(__file__).resolve().parents[2]


def test_every_sweep_and_place_exists() -> None:
    for sweep, every in SWEEPS.items():
        file, test = sweep.split("::")
        assert every > 1 and f"def {test}(" in (ROOT / file).read_text(), sweep
    for place in (*ON_POSTGRES_BY_DAY, *OF_CERTIFICATES, *ALONE, *ON_POSTGRES, *TOGETHER):
        file, _, test = place.partition("::")
        assert (ROOT / file).exists() and (not test or f"def {test}" in (ROOT / file).read_text()), place


# What makes something slow, and where its tests are.
SLOW = {
    "a fork server": (r"\brun_child\(|\bfork_server: ForkServer\b", ("jobs", "lifecycle", "worker")),
    "a browser": (r"\bmark\.browser\b", ("dashboard",)),
}


@pytest.mark.parametrize("name", SLOW)
def test_files_that_start_something_slow_share_it(name: str) -> None:
    pattern, folders = SLOW[name]
    files = [file for folder in folders for file in (ROOT / "tests" / folder).glob("test_*.py")]
    starting = {str(file.relative_to(ROOT)) for file in files if re.search(pattern, file.read_text())}
    assert starting and sorted(starting - {file for file, shared in TOGETHER.items() if shared == name}) == []


@pytest.mark.every_case
@pytest.mark.parametrize("sizes", [(2, 2), (7, 2), (5, 9), (3, 2, 3, 6), (3, 4, 10), (2, 2, 2, 2), (4, 3, 2, 5, 2)])
@pytest.mark.parametrize("missing", [0, 1, 5])
def test_every_value_and_pair_is_covered_and_few_cases_are_needed(sizes: tuple[int, ...], missing: int) -> None:
    whole = [tuple(map(str, row)) for row in product(*map(range, sizes))]
    rows = whole[: len(whole) - min(missing, 2 * len(sizes) - 4)]  # not all products are whole
    chosen = [rows[n] for n in cover(rows)]
    for places in combinations(range(len(sizes)), 1 if len(sizes) == 2 else 2):
        assert {tuple(row[n] for n in places) for row in rows} == {tuple(row[n] for n in places) for row in chosen}
    first, second = sorted(sizes)[-2:]
    least = second if len(sizes) == 2 else first * second
    assert least - missing <= len(chosen) <= 1.5 * least


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second", "abc")
@pytest.mark.parametrize("third", [False, True])
def test_cases(first: int, second: str, third: bool) -> None:
    """A product: the next test looks at what runs of it by day."""
    assert (first, second, third) in product(range(3), "abc", (False, True))


@pytest.mark.every_case
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", "abcd")
def test_facts(first: int, second: str) -> None:
    """A product of which all runs by day."""
    assert (first, second) in product(range(4), "abcd")


def test_what_this_run_leaves_to_the_night_is_covered_by_day(request: pytest.FixtureRequest) -> None:
    """Of all products that were collected; a run of everything collects all."""
    own = f"{Path(__file__).relative_to(ROOT)}::test_"
    covered = request.config.stash[by_night.COVERED]
    assert f"{own}facts" not in covered
    assert 9 <= len(covered[f"{own}cases"].by_day) <= 12
    for name, of_one_test in covered.items():
        nightly = [item.get_closest_marker("nightly") is not None for item in of_one_test.cases]
        goals = [by_night.goals(row) for row in of_one_test.rows]
        by_day = [goal for goal, night in zip(goals, nightly, strict=True) if not night]
        assert any(nightly) and set().union(*goals) == set().union(*by_day), name


def test_examples_of_its_functions() -> None:
    assert doctest.testmod(by_night).failed == 0


def test_every_file_whose_duration_is_kept_exists() -> None:
    for file, seconds in json.loads(DURATIONS.read_text()).items():
        assert (ROOT / file).exists() and seconds >= SHORT_S, file


def test_examples_are_drawn_by_the_profiles() -> None:
    """By day the same each time, by night others whose failures are kept: a test's own settings must not undo that."""
    undone = re.compile(r"@settings\([^)]*\b(deadline|database|derandomize)=")
    found = [str(each.relative_to(ROOT)) for each in (ROOT / "tests").rglob("*.py") if undone.search(each.read_text())]
    assert found == []
