"""An attempt of a statistics job: its release, noise and replay; planted faults are found."""

from __future__ import annotations

import csv
import json
import math
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from scipy import stats

from core.contracts.dataset_spec import Tensor
from core.contracts.job_spec import JobSpec
from core.errors import PrivacyError
from core.parts.layout import Layout
from core.parts.part_files import open_part, save_part
from core.parts.sealed import WRAP_BYTES, DataKey
from core.parts.stored_records import StoredPart
from core.privacy.mechanism import MechanismConfig
from core.statistics.statistics_columns import Cells
from core.statistics.statistics_passes import MOST_ROWS_PER_PASS as ROWS
from core.statistics.statistics_passes import Passes, ReleaseMemory, width_of
from tests.statistics.data import QUERIES, asked, cells, spec, start_of, supervisor_of
from tests.worker.support import key, run_thread
from worker.attempt import answering
from worker.data.joined import Joined, Loaded, join
from worker.data.loaded_parts import MappedPart
from worker.messages import Failed, Finished
from worker.statistics.answer_files import as_csv, as_json, document
from worker.statistics.slot_columns import check_users
from worker.statistics.sums_release import private_sums, rehearse, release

TINY = 1e-9  # at which a KS test tells that noise is wrong; right noise stays above FINE
FINE = 1e-4


def answers_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return found


def test_an_attempt_releases_answers_and_a_replay_repeats_them(tmp_path: Path) -> None:
    supervisor = supervisor_of(start_of(tmp_path, spec(), cells(3_000)))
    last = run_thread(supervisor).last
    assert isinstance(last, Finished) and [each.name for each in last.artifacts] == ["answers.json", "answers.csv"]
    assert last.steps_effective == 1 and supervisor.started == 1
    first = (tmp_path / "answers.json").read_bytes()
    rows = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert len(rows) == sum(len(each["answers"]) for each in json.loads(first)["queries"])
    again = run_thread(supervisor).last
    assert isinstance(again, Finished) and (tmp_path / "answers.json").read_bytes() == first
    assert supervisor.started == 1 and supervisor.resalts == 0


def test_a_replay_on_other_data_releases_nothing(tmp_path: Path) -> None:
    """The noise has met the first sums: with others it would tell their difference."""
    supervisor = supervisor_of(start_of(tmp_path, spec(), cells(3_000)))
    run_thread(supervisor)
    (tmp_path / "answers.json").unlink()
    (other := tmp_path / "other").mkdir()
    supervisor.start["parts"] = start_of(other, spec(), cells(3_000, seed=1))["parts"]
    last = run_thread(supervisor).last
    assert isinstance(last, Failed) and last.code == "privacy-invariant"
    assert not (tmp_path / "answers.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"queries": [*QUERIES, {"kind": "count"}]},  # a query that was not charged
        {"queries": [{"kind": "count", "weight": 9.0}, *QUERIES[1:]]},  # less noise than was charged
        {"queries": QUERIES[1:]},
    ],
)
def test_what_was_not_charged_does_not_run(tmp_path: Path, change: dict[str, Any]) -> None:
    start = start_of(tmp_path, spec(), cells(200))
    supervisor = supervisor_of(start | {"spec": start["spec"] | change})
    last = run_thread(supervisor).last
    assert isinstance(last, Failed) and last.code == "privacy-invariant"
    assert supervisor.started == 0 and not (tmp_path / "answers.json").exists()


def test_private_data_need_a_charge(tmp_path: Path) -> None:
    start = start_of(tmp_path, spec(privacy=None), cells(200)) | {"data_public": False}
    last = run_thread(supervisor_of(start)).last
    assert isinstance(last, Failed) and last.code == "privacy-invariant"


def test_public_data_get_exact_answers(tmp_path: Path) -> None:
    records = cells(5_000)
    run_thread(supervisor_of(start_of(tmp_path, spec(privacy=None), records)))
    found = {each["query"]["kind"]: each["answers"] for each in answers_in(tmp_path)["queries"]}
    age, bmi = records.x[:, 0].clip(0, 100).astype(float), records.x[:, 1].clip(10, 60).astype(float)
    assert found["count"][0]["value"] == 5_000 and found["count"][0]["standard_error"] == 0.0
    assert found["mean"][0]["value"] == pytest.approx(age.mean(), abs=1e-3)
    assert found["mean"][1]["value"] == pytest.approx(np.nanmean(bmi), abs=1e-3)
    assert found["sum"][0]["value"] == pytest.approx(age.sum(), rel=1e-5)
    assert found["variance"][0]["value"] == pytest.approx(age.var(), rel=1e-4)
    both = ~np.isnan(bmi)
    matrix = np.cov(age[both], bmi[both], bias=True)
    told = [each["value"] for each in found["covariance"]]
    assert told == pytest.approx([matrix[0, 0], matrix[1, 1], matrix[0, 1]], rel=1e-3, abs=0.05)
    for each, q in zip(found["quantile"], (0.1, 0.5, 0.9), strict=True):
        assert each["value"] == pytest.approx(np.quantile(age, q), abs=0.2)
    table = {tuple(each["cell"]): each["value"] for each in found["contingency"]}
    sex, y = records.x[:, 2], records.y
    assert table[("f", "no")] == ((sex == 0) & (y == 0)).sum() and table[("m",)] == (sex == 1).sum()


def test_missing_cells_have_a_cell_of_their_own_and_no_part_in_means(tmp_path: Path) -> None:
    records = cells(1_000)
    queries = [{"kind": "histogram", "column": "bmi", "bins": 2}, {"kind": "mean", "columns": ["bmi"]}]
    run_thread(supervisor_of(start_of(tmp_path, spec(queries, privacy=None), records)))
    histogram, _ = answers_in(tmp_path)["queries"]
    assert histogram["answers"][-1]["cell"] == ["missing"]
    assert histogram["answers"][-1]["value"] == np.isnan(records.x[:, 1]).sum()


def noise_of(scale: float = 1.0, *, twice: bool = False, releases: int = 60) -> dict[str, NDArray[np.float64]]:
    """The noise of many releases by query's kind, over its charged std. `scale`, `twice`: planted faults."""
    job, records = spec(), cells(400)
    plans = asked(job)
    exact = plans.sums(records)
    ran = (
        plans.sums(Cells(np.vstack([records.x, records.x[:1]]), np.append(records.y, records.y[0]))) if twice else exact
    )
    stored = MechanismConfig.model_validate(_mechanism())
    less = stored.training.model_copy(update={"noise_multiplier": stored.training.noise_multiplier * scale})
    runs = stored.model_copy(update={"training": less})
    found: dict[str, list[NDArray[np.float64]]] = {}
    for number in range(releases):
        released = release(plans, ran, runs, bytes.fromhex(key("noise", number)))
        parts = zip(job.queries or (), plans.plans, released.noisy, exact, stored.noise_stds(), strict=True)
        for query, plan, noisy, true, std in parts:
            found.setdefault(query.kind, []).append((noisy.numpy() - true) / (plan.unit * std))
    return {kind: np.concatenate(noise) for kind, noise in found.items()}


def _mechanism(job: JobSpec | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        stored: dict[str, Any] = start_of(Path(folder), job or spec(), cells(400))["mechanism"]
    return stored


def test_the_noise_is_the_charged_gaussian() -> None:
    for kind, noise in noise_of().items():
        assert stats.kstest(noise, "norm").pvalue > FINE, kind


def test_noise_of_four_fifths_is_found() -> None:
    everything = np.concatenate(list(noise_of(0.8).values()))
    assert stats.kstest(everything, "norm").pvalue < TINY


def test_a_record_that_is_counted_twice_is_found() -> None:
    """Its sums lie off by the record: of the count by 1, of noise s/√600 on the mean of 600 releases."""
    noise = noise_of(twice=True, releases=600)["count"]
    shift = 1.0 / MechanismConfig.model_validate(_mechanism()).noise_stds()[0]
    fair = noise_of(releases=600)["count"]
    assert abs(fair.mean()) < shift / 2.0 < noise.mean()


def test_queries_do_not_share_noise() -> None:
    job = spec([{"kind": "count"}, {"kind": "count"}])
    plans, records = asked(job), cells(10)
    with_two = MechanismConfig.model_validate(_mechanism())
    statistics = with_two.statistics
    assert statistics is not None
    two = with_two.model_copy(
        update={"statistics": statistics.model_copy(update={"queries": statistics.queries[:1] * 2})}
    )
    first, second = release(plans, plans.sums(records), two, bytes.fromhex(key("two"))).noisy
    assert float(first) != float(second)
    with pytest.raises(PrivacyError, match="differ"):
        release(plans, plans.sums(records)[:1], two, bytes.fromhex(key("two")))
    with pytest.raises(PrivacyError, match="key"):
        release(plans, plans.sums(records), two, None)


class Reading:
    """A part that notes which records are read."""

    def __init__(self, n: int, *, texts: bool = False) -> None:
        self.part = Loaded(StoredPart(cells(n).x, cells(n).y.astype(np.int64)))
        self.layout = self.part.layout if not texts else Layout("texts", (), "int64", users=False)
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.part)

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        assert self.layout.kind == "dense", "the size of a text is private"
        self.reads.append(len(numbers))
        return self.part.rows(numbers)

    def announce(self, numbers: NDArray[np.int64]) -> None: ...

    def column(self, name: str) -> NDArray[Any]:
        return self.part.column(name)


def test_passes_read_and_compute_on_the_slots_alone() -> None:
    """Of 10, 20 and many records the passes are as many, and read and compute on as many rows; more than slots are
    refused."""
    plans, seen = asked(spec()), list[int]()

    class Counting:
        plans = asked(spec()).plans

        def nothing(self, slots: int) -> Any:
            return plans.nothing(slots)

        def added(self, totals: Any, some: Cells, start: int) -> Any:
            seen.append(len(some))
            return plans.added(totals, some, start)

    reads = list[list[int]]()
    for n in (1, 10, ROWS - 1, ROWS + 1):
        part, before = Reading(n), len(seen)
        sums = private_sums(Counting(), part, 3 * ROWS, 4)  # type: ignore[arg-type]
        assert seen[before:] == [ROWS, ROWS, ROWS]
        assert all(map(np.array_equal, sums, plans.sums(cells(n)))), "rows without a record count nowhere"
        reads.append(part.reads)
    assert reads == [[ROWS, ROWS, ROWS]] * 4
    assert not any(each.any() for each in private_sums(plans, Reading(0), ROWS, 4))
    with pytest.raises(PrivacyError, match="slots"):
        private_sums(plans, StoredPart(cells(20).x, cells(20).y.astype(np.int64)), 19, 4)


def test_texts_are_not_read_to_count_records() -> None:
    job = spec([{"kind": "count"}, {"kind": "histogram", "column": "y"}])
    part = Reading(50, texts=True)
    count, labels = private_sums(asked(job), part, 60, 0)
    assert count.tolist() == [50] and labels.sum() == 50 and part.reads == []


@pytest.mark.parametrize("sparse", [False, True])
def test_of_a_tensor_labels_alone_are_read(sparse: bool) -> None:
    """Its features have no names. What is read follows from the declaration, so that admission and the rehearsal count
    it: a stored sparse part took labels that a dense one did not."""
    job = spec([{"kind": "histogram", "column": "y"}])
    dense = cells(50)
    x = scipy.sparse.csr_array(dense.x) if sparse else dense.x
    part = Loaded(StoredPart(x, dense.y.astype(np.int64)))
    (labels,) = private_sums(asked(job), part, 60, width_of(Tensor(array="x")))
    assert labels.sum() == 50


def test_an_attempt_may_stop_before_each_pass() -> None:
    stops = iter([None, None, 1])

    def between() -> None:
        if next(stops):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        private_sums(asked(spec()), Reading(10), 3 * ROWS, 4, between)


@pytest.mark.parametrize("at", ["rehearse", "private_sums"])
def test_an_attempt_without_the_memory_is_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """It ends before the step is recorded as started: app.lifecycle.settle then voids the hold."""

    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(answering, at, fails)
    supervisor = supervisor_of(start_of(tmp_path, spec(), cells(200)))
    last = run_thread(supervisor).last
    assert isinstance(last, Failed) and last.code == "out-of-memory" and supervisor.started == 0
    assert not (tmp_path / "answers.json").exists()


@pytest.mark.parametrize("at", ["release", "state_digest", "_contents", "_written"])
def test_what_ends_an_attempt_after_the_noise_is_charged_and_repeats_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Killed at any point after the step is recorded, its successor releases what it would have released."""
    start = start_of(tmp_path, spec(), cells(200))
    whole = supervisor_of(start)
    assert isinstance(run_thread(whole).last, Finished)
    wanted = (tmp_path / "answers.json").read_bytes()
    (tmp_path / "answers.json").unlink()
    supervisor, right, begun = supervisor_of(start), getattr(answering, at), list[int]()

    def fails_once(*given: Any) -> Any:
        if supervisor.started:
            begun.append(1)
            raise MemoryError
        return right(*given)

    monkeypatch.setattr(answering, at, fails_once)
    last = run_thread(supervisor).last
    assert isinstance(last, Failed) and supervisor.started == 1 and begun == [1]
    assert not (tmp_path / "answers.json").exists()
    monkeypatch.setattr(answering, at, right)
    assert isinstance(run_thread(supervisor).last, Finished)
    assert (tmp_path / "answers.json").read_bytes() == wanted and supervisor.started == 1


def taken(made: Callable[[], Any]) -> int:
    """The peak of what it allocates."""
    tracemalloc.start()
    made()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


class Columns(Reading):
    """A part of users' texts, whose columns are copied as a file's are."""

    def __init__(self, n: int) -> None:
        super().__init__(1, texts=True)
        self.layout, self.n = Layout("texts", (), "int64", users=True), n

    def __len__(self) -> int:
        return self.n

    def column(self, name: str) -> NDArray[Any]:
        return np.arange(self.n) if name == "user" else np.ones(self.n, dtype=np.int64)


@pytest.mark.parametrize("several", [False, True])
def test_what_is_taken_before_the_charge_does_not_tell_the_number_of_records(several: bool) -> None:
    """An attempt that lacks memory costs nothing before its step: it must lack it whatever n is, and in the
    rehearsal."""
    job, slots = spec([{"kind": "count"}, {"kind": "histogram", "column": "y"}]), 400_000
    plans, example = asked(job), MechanismConfig.model_validate(_mechanism(job))
    of_users = example.model_copy(update={"unit": "user"})
    sums, users = list[int](), list[int]()
    for n in (10_000, 100_000, 400_000):
        part: Any = Joined([Columns(n // 2), Columns(n // 2)]) if several else Columns(n)
        private_sums(plans, part, slots, 0)
        sums.append(taken(lambda: private_sums(plans, part, slots, 0)))  # noqa: B023
        users.append(taken(lambda: check_users(part, of_users, slots)))  # noqa: B023
    tried, tried_of_users = (
        taken(lambda: rehearse(plans, Passes.over(slots, 0), each, slots))  # noqa: B023
        for each in (example, of_users)
    )
    for peaks in (sums, users):
        assert max(peaks) - min(peaks) <= 0.02 * max(peaks), peaks
    assert max(sums) <= tried and max(sums + users) <= tried_of_users, (sums, users, tried, tried_of_users)


def test_a_rehearsal_takes_the_memory_of_the_release() -> None:
    """Within a tenth; and both at most what admission computed. Traced: numpy's arrays are counted."""
    many = [{"kind": "contingency", "columns": ["sex", "age"], "bins": 900}, *QUERIES]
    job = spec(many)
    plans, slots = asked(job), 70_000
    with tempfile.TemporaryDirectory() as folder:
        start = start_of(Path(folder), job, cells(100))
        mechanism = MechanismConfig.model_validate(start["mechanism"])
    passes, records = Passes.over(slots, 4), Reading(60_000)

    real = taken(lambda: release(plans, private_sums(plans, records, slots, 4), mechanism, bytes(range(32))))
    tried = taken(lambda: rehearse(plans, passes, mechanism, slots))
    needs = ReleaseMemory.of(plans, passes)
    assert max(real, tried) <= needs.whole - needs.answers
    assert real <= 1.3 * tried, (real, tried)
    released = rehearse(plans, passes, mechanism, slots)
    answers = taken(lambda: (as_json(document(job, plans, released)), as_csv(document(job, plans, released))))
    assert 0.5 * needs.answers <= answers <= needs.answers, answers / plans.answers


def test_intervals_cover() -> None:
    """Each answer's 95 % interval holds the exact one in 89 to 99 % of 200 releases."""
    job, records = spec(), cells(20_000)
    plans, stored = asked(job), MechanismConfig.model_validate(_mechanism())
    exact = plans.sums(records)
    truths = [
        [each.value for each in plan.answers(true / plan.unit, 0.0)]
        for plan, true in zip(plans.plans, exact, strict=True)
    ]
    inside = [np.zeros(len(each)) for each in truths]
    for number in range(200):
        released = release(plans, exact, stored, bytes.fromhex(key("cover", number)))
        for k, (plan, noisy, std) in enumerate(zip(plans.plans, released.noisy, released.stds, strict=True)):
            for place, each in enumerate(plan.answers(noisy.numpy() / plan.unit, std)):
                assert each.interval is not None and each.value is not None
                inside[k][place] += each.interval[0] <= (truths[k][place] or 0.0) <= each.interval[1]
    for query, share in zip(job.queries or (), inside, strict=True):
        low = 0.85 if query.kind == "quantile" else 0.89
        assert low <= (share / 200).min() and (share / 200).mean() <= 0.995, (query.kind, share / 200)


def test_too_few_records_for_a_ratio_are_withheld(tmp_path: Path) -> None:
    run_thread(supervisor_of(start_of(tmp_path, spec([{"kind": "mean", "columns": ["age"]}]), cells(3))))
    (only,) = answers_in(tmp_path)["queries"][0]["answers"]
    assert only["value"] is only["interval"] is only["raw"] is None


def test_an_equal_rho_buys_no_more_error_than_opendps_gaussian() -> None:
    """A histogram at ρ: OpenDP's discrete Gaussian with scale Δ/√(2ρ), Δ = 1, on each cell; ours has σ = 1/√(2ρ)."""
    for rho in (0.03, 0.5):
        sigma = 1.0 / math.sqrt(2.0 * rho)
        stored = MechanismConfig.model_validate(_mechanism())
        one = stored.statistics.queries[1]  # type: ignore[union-attr]
        alone = replace_share(one, 1.0)
        assert alone.noise_std(sigma, 1) <= sigma * (1.0 + 1e-11)


def replace_share(query: Any, share: float) -> Any:
    return query.model_copy(update={"share": share})


@pytest.mark.parametrize("case", ["blocks", "sealed", "users", "public"])
def test_answers_are_those_of_the_records_however_they_are_stored(tmp_path: Path, case: str) -> None:
    """Two blocks, a sealed file, users of k records: the same sums. Users have k times the noise, public data none."""
    records, job = cells(600), spec(privacy=None) if case == "public" else spec()
    mechanism: MechanismConfig | None = None
    if case != "public":
        mechanism = MechanismConfig.model_validate(start_of(tmp_path, job, records)["mechanism"])
    if case == "users" and mechanism is not None:
        training = mechanism.training.model_copy(update={"records_per_unit": 3})
        mechanism = mechanism.model_copy(update={"unit": "user", "training": training})
    users = np.arange(600) // 3 if case == "users" else None
    halves = [slice(0, 250), slice(250, 600)] if case == "blocks" else [slice(0, 600)]
    key = DataKey(bytes(range(32)), b"w" * WRAP_BYTES) if case == "sealed" else None
    parts = []
    for number, at in enumerate(halves):
        path = tmp_path / f"{case}-{number}.arrow"
        stored = StoredPart(records.x[at], records.y[at].astype(np.int64), users)
        sha256 = save_part(path, stored, key)
        file = open_part(path, sha256, None if key is None else key.key)
        assert file is not None
        parts.append(MappedPart(file, lambda stored: stored))
    whole, plans = join(parts), asked(job)
    assert not isinstance(whole, StoredPart) and whole.layout.users == (users is not None)
    check_users(whole, mechanism, 1_000)
    exact = plans.sums(records)
    sums = private_sums(plans, whole, 1_000, 4)
    assert all(map(np.array_equal, sums, exact))
    released = release(plans, sums, mechanism, None if mechanism is None else bytes.fromhex(key_of_job()))
    if mechanism is None:
        assert released.stds == (0.0,) * len(exact)
        assert [each.tolist() for each in released.noisy] == [each.tolist() for each in exact]
    else:
        alone = MechanismConfig.model_validate(_mechanism()).noise_stds()
        assert released.stds == pytest.approx([(3.0 if users is not None else 1.0) * each for each in alone])


def key_of_job() -> str:
    return key("storage")


def test_a_user_with_more_records_than_were_charged_ends_the_attempt(tmp_path: Path) -> None:
    mechanism = MechanismConfig.model_validate(_mechanism())
    training = mechanism.training.model_copy(update={"records_per_unit": 2})
    of_users = mechanism.model_copy(update={"unit": "user", "training": training})
    part = StoredPart(cells(6).x, cells(6).y.astype(np.int64), np.arange(6) // 3)
    with pytest.raises(PrivacyError, match="more records"):
        check_users(Loaded(part), of_users, 10)
    three = training.model_copy(update={"records_per_unit": 3})
    for slots in (6, 10):  # of just as many there is no empty place
        check_users(Loaded(part), of_users.model_copy(update={"training": three}), slots)
