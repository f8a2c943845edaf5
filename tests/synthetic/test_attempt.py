"""An attempt of a synthetic job: its release, rows and replay; planted faults are found."""

from __future__ import annotations

import csv
import json
import tempfile
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from scipy import stats

from core.contracts.job_spec import JobSpec
from core.privacy.mechanism import MechanismConfig
from core.statistics.plans import Asked
from core.statistics.statistics_columns import Cells
from tests.statistics.data import cells, columns, start_of, supervisor_of
from tests.worker.support import key, run_thread
from worker.messages import Failed, Finished
from worker.statistics.sums_release import release

NAMES = ("age", "bmi", "sex", "day", "y")
FILES = ["rows.csv", "rows.parquet", "utility.json"]
TINY, FINE = 1e-9, 1e-4  # at which a KS test tells that noise is wrong; right noise stays above FINE


def spec(**changes: Any) -> JobSpec:
    """A job as admission closes it."""
    base = {"kind": "synthetic", "dataset": "ds_1", "columns": NAMES, "target": "y", "rows": 500, "method": "mixture"}
    privacy = {"noise_multiplier": 2.0, "target_delta": 1e-5}
    return JobSpec.model_validate(base | {"bins": 8, "privacy": privacy} | changes)


def asked(job: JobSpec) -> Asked:
    return Asked.of(job.tables, (), columns())


def test_an_attempt_draws_rows_and_a_replay_repeats_them(tmp_path: Path) -> None:
    supervisor = supervisor_of(start_of(tmp_path, spec(), cells(3_000)))
    last = run_thread(supervisor).last
    assert isinstance(last, Finished) and [each.name for each in last.artifacts] == FILES
    assert last.steps_effective == 1 and supervisor.started == 1
    first = [(tmp_path / name).read_bytes() for name in FILES]
    again = run_thread(supervisor).last
    assert isinstance(again, Finished) and [(tmp_path / name).read_bytes() for name in FILES] == first
    assert supervisor.started == 1 and supervisor.resalts == 0


def test_both_files_have_the_same_rows_with_the_declared_types(tmp_path: Path) -> None:
    run_thread(supervisor_of(start_of(tmp_path, spec(), cells(3_000))))
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert len(rows) == table.num_rows == 500 and tuple(rows[0]) == tuple(table.column_names) == NAMES
    assert [str(each) for each in table.schema.types] == ["double", "double", "string", "string", "string"]
    for row, typed in zip(rows, table.to_pylist(), strict=True):
        assert float(row["age"]) == typed["age"] and (row["bmi"] == "") == (typed["bmi"] is None)
        assert (row["sex"], row["day"], row["y"]) == (typed["sex"], typed["day"], typed["y"])
    utility = json.loads((tmp_path / "utility.json").read_text())
    assert [each["column"] for each in utility["one_way"]] == list(NAMES) and len(utility["two_way"]) == 10


def test_public_data_give_rows_without_noise(tmp_path: Path) -> None:
    run_thread(supervisor_of(start_of(tmp_path, spec(privacy=None, rows=3_000), cells(3_000))))
    utility = json.loads((tmp_path / "utility.json").read_text())
    assert utility["records"] == 3_000 and all(each["noise"] == 0.0 for each in utility["two_way"])
    assert max(each["error"] for each in utility["one_way"]) < 0.03


def test_a_replay_on_other_data_draws_nothing(tmp_path: Path) -> None:
    supervisor = supervisor_of(start_of(tmp_path, spec(), cells(3_000)))
    run_thread(supervisor)
    (tmp_path / "rows.csv").unlink()
    (other := tmp_path / "other").mkdir()
    supervisor.start["parts"] = start_of(other, spec(), cells(3_000, seed=1))["parts"]
    last = run_thread(supervisor).last
    assert isinstance(last, Failed) and last.code == "privacy-invariant" and not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ("age", "sex", "bmi", "day", "y")},  # other tables than were charged, in order and weight
        {"columns": NAMES[:4], "target": None},
        {"target": "age"},  # the target's tables weigh more
        {"target": None},
    ],
)
def test_a_table_that_was_not_charged_is_not_added_up(tmp_path: Path, change: dict[str, Any]) -> None:
    start = start_of(tmp_path, spec(), cells(200))
    last = run_thread(supervisor_of(start | {"spec": start["spec"] | change})).last
    assert isinstance(last, Failed) and last.code == "privacy-invariant" and not (tmp_path / "rows.csv").exists()


def test_an_uncharged_table_is_refused_by_the_release(tmp_path: Path) -> None:
    """Where the plan was changed after the comparison: one table more than the mechanism has."""
    plans = asked(spec())
    more = Asked((*plans.plans, plans.plans[0]), ())
    with pytest.raises(Exception, match="differ"):
        release(more, more.sums(cells(10)), stored(), bytes.fromhex(key("more")))


def test_private_data_need_a_charge(tmp_path: Path) -> None:
    start = start_of(tmp_path, spec(privacy=None), cells(200)) | {"data_public": False}
    last = run_thread(supervisor_of(start)).last
    assert isinstance(last, Failed) and last.code == "privacy-invariant"


def stored() -> MechanismConfig:
    with tempfile.TemporaryDirectory() as folder:
        return MechanismConfig.model_validate(start_of(Path(folder), spec(), cells(400))["mechanism"])


def test_one_record_moves_all_tables_by_at_most_what_was_charged() -> None:
    """Over the reals: Σ (Δ_q / s_q)² ≤ 1/σ², where a record adds exactly 1 to one cell of each table."""
    plans, mechanism = asked(spec()), stored()
    one = cells(1)
    moved = Fraction(0)
    for plan, sums, std in zip(plans.plans, plans.sums(one), mechanism.noise_stds(), strict=True):
        assert sums.tolist().count(1) == 1 and int(np.abs(sums).sum()) == 1 and plan.unit == 1
        moved += Fraction(int((sums**2).sum())) / Fraction(std) ** 2
    assert moved <= 1 / Fraction(mechanism.training.noise_multiplier) ** 2
    assert len(plans.plans) == len(list(combinations(NAMES, 2)))


def noise_of(scale: float = 1.0, *, twice: bool = False, releases: int = 60) -> NDArray[np.float64]:
    """The noise of many releases over its charged std. `scale`, `twice`: planted faults."""
    plans, records, charged = asked(spec()), cells(400), stored()
    exact = plans.sums(records)
    doubled = Cells(np.vstack([records.x, records.x[:1]]), np.append(records.y, records.y[0]))
    ran = plans.sums(doubled) if twice else exact
    less = charged.training.model_copy(update={"noise_multiplier": charged.training.noise_multiplier * scale})
    runs = charged.model_copy(update={"training": less})
    found = []
    for number in range(releases):
        noisy = release(plans, ran, runs, bytes.fromhex(key("rows", number))).noisy
        off = [(a.numpy() - b) / std for a, b, std in zip(noisy, exact, charged.noise_stds(), strict=True)]
        # What a record adds, projected: of each table the cell that it is in.
        found.append(np.concatenate(off))
    return np.stack(found)


def test_the_noise_is_the_charged_gaussian_and_four_fifths_of_it_are_found() -> None:
    assert stats.kstest(noise_of().ravel(), "norm").pvalue > FINE
    assert stats.kstest(noise_of(0.8).ravel(), "norm").pvalue < TINY


def test_a_record_that_is_counted_twice_is_found() -> None:
    """Along the record's own direction the noise is N(0, 1), and the record shifts it by 1/σ = ½."""
    plans, charged = asked(spec()), stored()
    first = cells(400)
    parts = zip(plans.sums(Cells(first.x[:1], first.y[:1])), charged.noise_stds(), strict=True)
    direction = np.concatenate([sums / std for sums, std in parts])
    direction /= np.linalg.norm(direction)
    fair, double = (noise_of(twice=twice, releases=400) @ direction for twice in (False, True))
    assert abs(fair.mean()) < 0.2 and double.mean() - fair.mean() == pytest.approx(0.5, abs=1e-6)
    assert stats.ttest_1samp(double, 0.0).pvalue < TINY < stats.ttest_1samp(fair, 0.0).pvalue
