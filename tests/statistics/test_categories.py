"""Categories that nobody declared: the release is post-processing of a Gaussian over all values, and planted faults are
found."""

from __future__ import annotations

import csv
import itertools
import json
import math
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from core.contracts.dataset_spec import ClassificationTask
from core.contracts.job_spec import JobSpec
from core.contracts.queries import Categories
from core.contracts.table import TableFeatures, TextColumn
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from core.statistics.plans import FALSE_VALUES, MOST_VALUES, Asked, CategoriesPlan, Unfit
from core.statistics.statistics_columns import Cells, Texts, declared_columns
from core.statistics.statistics_passes import Passes, ReleaseMemory
from tests.statistics.data import TASK, mechanism_of, spec, start_of, supervisor_of
from tests.worker.support import key, run_thread
from worker.messages import Finished
from worker.noise.exceedances import Tail, exceedances
from worker.noise.generator import KeyedStream
from worker.noise.rounding import grid
from worker.statistics import frequent_values as module
from worker.statistics.frequent_values import frequent_values
from worker.statistics.sums_release import rehearse

FINE, TINY = 1e-4, 1e-9  # p-values: right noise stays above the first, a fault falls below the second
STD = 1.7
MANY = "".join(map(chr, range(0x4E00, 0x4E00 + 1_000)))
TORCH_BYTES = 24  # of a slot: noise, noisy counts and the bits of one, which tracemalloc does not see
SMALL = TextColumn(name="code", longest=2, characters="ab")  # six values


@dataclass(frozen=True)
class At(CategoriesPlan):
    """With a threshold of its own, at which many values pass that no record has."""

    at: float = 2.0

    def threshold(self, std: float) -> float:
        return self.at


def plan(column: TextColumn = SMALL, at: float | None = None) -> CategoriesPlan:
    texts = Texts(column, 0)
    return CategoriesPlan(texts) if at is None else At(texts, at)


def codes(column: TextColumn, texts: list[str], slots: int = 0) -> NDArray[np.int64]:
    rows = [column.stored(each) for each in texts]
    rows += [(0.0,) * column.cells] * (max(slots, len(rows)) - len(rows))
    return np.array(rows, dtype=np.int64).reshape(len(rows), column.cells)


def told(of: CategoriesPlan, records: NDArray[np.int64], number: int, std: float = STD) -> dict[str, float]:
    found = frequent_values(of, records, std, bytes.fromhex(key("categories", number)), 0)
    return {of.texts.declared.text_of(row[:-1]): row[-1] for row in found.tolist()}


def simulated(true: Mapping[str, int], threshold: float, random: np.random.Generator) -> dict[str, float]:
    """Noise on each of the six values, and those above the threshold: the mechanism itself."""
    g = grid(STD)
    values = [SMALL.numbered(each) for each in range(SMALL.domain)]
    noisy = {each: g * round((true.get(each, 0) + STD * random.standard_normal()) / g) for each in values}
    return {each: count for each, count in noisy.items() if count >= math.ceil(threshold / g) * g}


TRUE = {"a": 3, "ba": 1}
RECORDS = codes(SMALL, ["a", "ba", "a", "a"], slots=9)
RUNS = 1_200


def p_value(at: float = 2.0, *, ran: NDArray[np.int64] = RECORDS, scale: float = 1.0, runs: int = RUNS) -> float:
    """That so many releases and as many simulations tell the same sets of values, and the same counts of each."""
    random = np.random.default_rng(7)
    ours = [told(plan(at=at), ran, number, scale * STD) for number in range(runs)]
    theirs = [simulated(TRUE, at, random) for _ in range(runs)]
    sets = [Counter(tuple(sorted(each)) for each in side) for side in (ours, theirs)]
    common = [each for each in sets[0] | sets[1] if sets[0][each] + sets[1][each] >= 20]
    table = np.array([[side[each] for each in common] + [runs - sum(side[each] for each in common)] for side in sets])
    found = [stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue]
    for value in ("a", "ba", "b", "bb"):
        counts = [[each[value] for each in side if value in each] for side in (ours, theirs)]
        found.append(stats.ks_2samp(*counts).pvalue if all(counts) else float(any(counts)) - 1.0)
    return float(min(found))


def test_what_is_told_has_the_distribution_of_noise_on_every_value() -> None:
    """Six values, two of which records have, and a threshold that noise alone often reaches."""
    assert p_value() > FINE


@pytest.mark.parametrize("fault", ["less noise", "a record twice", "a lower threshold", "no false values"])
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "less noise":
        assert p_value(scale=0.8) < TINY
    elif fault == "a record twice":
        assert p_value(ran=codes(SMALL, ["a", "ba", "a", "a", "a"], slots=9), runs=800) < TINY
    elif fault == "a lower threshold":  # for values that records have, and not for the others
        monkeypatch.setattr(module, "Tail", lambda std, bound: Tail(std, bound + 1.0))
        assert p_value(runs=600) < TINY
    else:
        monkeypatch.setattr(module, "exceedances", lambda *_: {})
        assert p_value(runs=300) < TINY


def test_neighbours_are_as_near_as_the_gaussian_mechanism_says() -> None:
    """One record is the only one with its value: how often the value is told stays within (ε, δ) of noise alone."""
    with_it, without = (
        sum("bb" in told(plan(at=2.0), records, number) for number in range(RUNS)) / RUNS
        for records in (codes(SMALL, ["a", "bb"], slots=4), codes(SMALL, ["a"], slots=4))
    )
    exact = [float(stats.norm.sf((2.0 - shift) / STD)) for shift in (1.0, 0.0)]
    for share, true in zip((with_it, without), exact, strict=True):
        assert abs(share - true) < 5.0 * math.sqrt(true * (1.0 - true) / RUNS)


@given(st.integers(2, 40), st.floats(0.3, 3.0), st.integers(0, 10**6))
def test_the_number_of_exceedances_and_their_places_are_of_the_domain(count: int, t: float, number: int) -> None:
    found = exceedances(count, Tail(1.0, t), KeyedStream(bytes.fromhex(key("places", number))), 0, 5)
    assert all(0 <= place < count for place in found)
    assert all(each.rounded_sum(0) >= t - grid(1.0) for each in found.values())


def test_as_many_exceed_as_a_binomial_number_says() -> None:
    numbers = [
        len(exceedances(30, Tail(1.0, 1.5), KeyedStream(bytes.fromhex(key("many", number))), 0, 5))
        for number in range(3_000)
    ]
    chance = float(stats.norm.sf(1.5))
    most = 6
    seen = np.bincount(np.minimum(numbers, most), minlength=most + 1)
    expected = [*(stats.binom.pmf(k, 30, chance) for k in range(most)), stats.binom.sf(most - 1, 30, chance)]
    assert stats.chisquare(seen, np.array(expected) * len(numbers)).pvalue > FINE


def test_a_far_tail_has_the_gaussians_shape() -> None:
    """Nine stds out, where float64 has no digits of 1 − Φ left."""
    tail, step = Tail(1.0, 9.0), grid(1.0)
    beyond = [
        exceedances(1, Tail(1.0, -9.0), KeyedStream(bytes.fromhex(key("far", number))), 0, 5) for number in range(300)
    ]
    assert all(len(each) == 1 for each in beyond)
    drawn = [
        type(each[0])(tail, each[0].digits).rounded_sum(0) + step * np.random.default_rng(number).uniform(-0.5, 0.5)
        for number, each in enumerate(beyond)
    ]
    ratio = [float(mpmath.erfc(max(z, 9.0) / mpmath.sqrt(2)) / mpmath.erfc(9 / mpmath.sqrt(2))) for z in drawn]
    assert stats.kstest(ratio, "uniform").pvalue > FINE


@pytest.mark.parametrize(
    ("longest", "characters"), [(1, "ab"), (7, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789."), (24, None), (40, None)]
)
def test_at_the_threshold_one_release_in_a_thousand_tells_a_false_value(longest: int, characters: str | None) -> None:
    members = {} if characters is None else {"characters": characters}
    column = TextColumn(name="code", longest=longest, **members)
    mpmath.mp.prec = 400
    t = plan(column).threshold(1.0)
    mean = column.domain * mpmath.erfc(mpmath.mpf(t) / mpmath.sqrt(2)) / 2
    assert FALSE_VALUES / 60 < mean <= FALSE_VALUES


@given(st.data())
def test_texts_are_stored_in_order_and_come_back(data: st.DataObject) -> None:
    characters = "".join(sorted(data.draw(st.sets(st.sampled_from("abcdefgäß 0123"), min_size=2))))
    column = TextColumn(name="code", longest=data.draw(st.integers(1, 12)), characters=characters)
    words = data.draw(st.lists(st.text(characters, min_size=1, max_size=column.longest), min_size=2, max_size=2))
    stored = [column.stored(each) for each in words]
    assert [column.text_of(each) for each in stored] == words
    assert (stored[0] < stored[1]) == (words[0] < words[1])
    assert all(0 <= number < 2**24 and number == np.float32(number) for each in stored for number in each)
    number = data.draw(st.integers(0, column.domain - 1))
    assert 1 <= len(column.numbered(number)) <= column.longest


def test_every_value_of_a_domain_has_one_number() -> None:
    column = TextColumn(name="code", longest=3, characters="abc")
    values = [column.numbered(each) for each in range(column.domain)]
    assert sorted(values) == sorted(
        "".join(each) for length in (1, 2, 3) for each in itertools.product("abc", repeat=length)
    )


@given(st.lists(st.sampled_from(["", "a", "b", "ab", "ba", "bb"]), max_size=12), st.sampled_from(["a", "bb", ""]))
def test_a_record_moves_one_count_by_one(words: list[str], further: str) -> None:
    """4 Δ² = 4, as the contract declares: what the noise is made for."""
    counts = []
    for records in (words, [*words, further]):
        rows, exact, has_value = module.counted(codes(SMALL, records, slots=14))
        texts = map(SMALL.text_of, rows[has_value].tolist())
        counts.append(Counter(dict(zip(texts, exact[has_value].astype(int).tolist(), strict=True))))
        assert exact[~has_value].sum() == 0 and sum(counts[-1].values()) == sum(each != "" for each in records)
    assert counts[1] - counts[0] == Counter([further] if further else []) and not counts[0] - counts[1]
    assert Categories(column="code").quarters == 4


def test_order_of_records_and_empty_slots_change_no_bit() -> None:
    words = [f"{number % 7}" for number in range(300)]
    column = TextColumn(name="code", longest=4, characters="0123456789")
    records = codes(column, words, slots=400)
    shuffled = records[np.random.default_rng(1).permutation(len(records))]
    assert told(plan(column), records, 1) == told(plan(column), shuffled, 1) != {}


def test_the_most_frequent_values_are_told_and_no_more_than_so_many() -> None:
    column = TextColumn(name="code", longest=5, characters="0123456789")
    words = [f"{number:05}" for number in range(MOST_VALUES + 500)] + ["99999"] * 5
    records = codes(column, words)
    found = frequent_values(plan(column), records, 0.0, None, 0)
    assert found.shape == (MOST_VALUES, column.cells + 1)
    assert column.text_of(found[0, :-1].tolist()) == "99999" and found[0, -1] == 5.0
    assert (np.diff(found[:, -1].numpy()) <= 0.0).all()


@pytest.mark.parametrize("std", [STD, 0.01])
@pytest.mark.parametrize(("longest", "characters"), [(5, "01"), (9, "0123456789"), (40, MANY)])
def test_memory_is_of_slots_and_admission_knows_it(longest: int, characters: str, std: float) -> None:
    """With no record, with few values and with a value of its own for each record, all of which a small noise tells."""
    column = TextColumn(name="code", longest=longest, characters=characters)
    of, slots, peaks = plan(column), 200_000, []
    for records, values in ((0, 1), (slots // 2, 977), (slots, slots)):
        words = np.zeros((slots, column.cells), dtype=np.int64)
        words[:records, 0] = 1 + np.arange(records) % values
        frequent_values(of, words, std, bytes(range(32)), 0)
        tracemalloc.start()
        frequent_values(of, words, std, bytes(range(32)), 0)
        peaks.append(tracemalloc.get_traced_memory()[1] + words.nbytes + TORCH_BYTES * slots)
        tracemalloc.stop()
    answers = 6 * 8 * MOST_VALUES * (column.cells + 1)  # which have a bound of their own, whatever the slots
    assert max(peaks) - min(peaks) <= answers, peaks
    assert min(peaks) <= of.slot_bytes * slots, (peaks, of.slot_bytes * slots)


@pytest.mark.parametrize("longest", [1, 40])
def test_a_pass_takes_what_admission_plans_for_its_rows(longest: int) -> None:
    of, rows = plan(TextColumn(name="code", longest=longest, characters=MANY)), 50_000
    x, mask = np.zeros((rows, of.texts.declared.cells), dtype=np.float32), np.ones(rows, dtype=np.bool_)
    tracemalloc.start()
    of.sums(Cells(x, np.zeros(rows)), mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= of.row_bytes * rows, (peak / rows, of.row_bytes)


@pytest.mark.parametrize(("std", "named"), [(0.0, True), (-1.0, True), (1.0, False)])
def test_without_noise_nothing_private_is_told(std: float, named: bool) -> None:
    with pytest.raises(PrivacyError):
        frequent_values(plan(), RECORDS, std, bytes(range(32)) if named else None, 0)


CODES: dict[str, Any] = {"name": "code", "longest": 5, "characters": "ABCDE0123456789."}
FEATURES = {"kind": "table", "columns": [{"kind": "number", "name": "age", "range": [0, 100]}], "texts": [CODES]}


def start_with_codes(
    folder: Path, words: list[str], *, column: dict[str, Any] = CODES, **changes: Any
) -> dict[str, Any]:
    """An attempt on a table of ages and codes: two thirds of the records are below 50."""
    texts = TextColumn.model_validate(column)
    ages = np.arange(len(words)) % 3 * 30.0
    records = Cells(np.column_stack([ages, codes(texts, words)]).astype(np.float32), np.zeros(len(words)), None)
    queries = [{"kind": "categories", "column": "code"}, {"kind": "count"}]
    start = start_of(folder, spec([{"kind": "count"}]), records)
    job = spec(queries, **changes)
    start |= {
        "features": FEATURES | {"texts": [column]},
        "spec": job.model_dump(mode="json"),
        "data_public": job.privacy is None,
    }
    start["mechanism"] = None if job.privacy is None else mechanism_of(start, job)
    return start


WORDS = ["E11.9"] * 300 + ["A00"] * 120 + ["B4"] * 3 + [""] * 60


def test_an_attempt_tells_frequent_texts_and_a_replay_repeats_them(tmp_path: Path) -> None:
    supervisor = supervisor_of(start_with_codes(tmp_path, WORDS))
    last = run_thread(supervisor).last
    assert isinstance(last, Finished), last
    first = (tmp_path / "answers.json").read_bytes()
    categories, count = json.loads(first)["queries"]
    std = categories["noise_std"]
    assert [each["cell"] for each in categories["answers"]] == [["E11.9"], ["A00"]]
    for each, exact in zip(categories["answers"], (300, 120), strict=True):
        assert abs(each["raw"] - exact) < 6 * std and each["standard_error"] == std and each["of"] == "code"
    assert std == pytest.approx(2.0 * math.sqrt(2.0)) and len(count["answers"]) == 1
    again = run_thread(supervisor).last
    assert isinstance(again, Finished) and (tmp_path / "answers.json").read_bytes() == first


def test_public_data_tell_all_values_and_filters_hold(tmp_path: Path) -> None:
    where = [{"column": "age", "between": [0, 40]}, {"column": "code", "in": ["E11.9", "B4"]}]
    run_thread(supervisor_of(start_with_codes(tmp_path, WORDS, privacy=None, where=where)))
    categories, count = json.loads((tmp_path / "answers.json").read_text())["queries"]
    assert {each["cell"][0]: each["value"] for each in categories["answers"]} == {"E11.9": 200, "B4": 2}
    assert count["answers"][0]["value"] == 202


@pytest.mark.parametrize(
    ("query", "where", "says"),
    [
        ({"kind": "categories", "column": "age"}, [], "use a histogram"),
        ({"kind": "histogram", "column": "code"}, [], "by `categories`"),
        ({"kind": "mean", "columns": ["code"]}, [], "by `categories`"),
        ({"kind": "count"}, [{"column": "code", "between": [0, 1]}], "give `in`"),
        ({"kind": "count"}, [{"column": "code", "in": ["a"]}], "other characters"),
        ({"kind": "count"}, [{"column": "code", "in": ["A00000"]}], "so long"),
    ],
)
def test_what_does_not_fit_a_text_is_refused(query: dict[str, Any], where: list[dict[str, Any]], says: str) -> None:
    named = declared_columns(TableFeatures.model_validate(FEATURES), ClassificationTask.model_validate(TASK))
    with pytest.raises(Unfit, match=says):
        Asked.of(spec([query]).queries or (), spec(where=where).where, named)


def test_a_rehearsal_takes_the_memory_of_the_release() -> None:
    """As many values as can be told, whatever the records; admission computes at least that."""
    named = declared_columns(TableFeatures.model_validate(FEATURES), ClassificationTask.model_validate(TASK))
    job = spec([{"kind": "categories", "column": "code"}])
    question, slots = Asked.of(job.queries or (), (), named), 30_000
    mechanism = plan_of_job(job)
    passes = Passes.over(slots, 3)
    rehearse(question, passes, mechanism, slots)
    tracemalloc.start()
    released = rehearse(question, passes, mechanism, slots)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    needs = ReleaseMemory.of(question, passes)
    assert len(released.noisy[0]) == MOST_VALUES and taken <= needs.whole - needs.answers


def plan_of_job(job: JobSpec) -> MechanismConfig:
    """The mechanism at the named σ."""
    with tempfile.TemporaryDirectory() as folder:
        return MechanismConfig.model_validate(
            start_of(Path(folder), job, Cells(np.zeros((10, 1), dtype=np.float32), np.zeros(10)))["mechanism"]
        )


def test_no_told_text_is_a_formula_in_the_csv_file(tmp_path: Path) -> None:
    """A text comes from a data file: any characters that its declaration has. answers.json has it as it is."""
    words = [".A", "1", "=A", "=A"]
    column = CODES | {"characters": "=.A1"}
    start = start_with_codes(tmp_path, words, privacy=None, column=column)
    run_thread(supervisor_of(start))
    rows = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert {row["cell"] for row in rows if row["kind"] == "categories"} == {".A", "1", "'=A"}
    told_values = json.loads((tmp_path / "answers.json").read_text())["queries"][0]["answers"]
    assert told_values[0]["cell"] == ["=A"]
