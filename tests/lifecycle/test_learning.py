"""Models that did not learn, told from released scores alone."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Job, Metric
from app.lifecycle.learning import Released, about, still_true
from core.contracts.metrics import ReleasedHistogram
from core.privacy.larger_class import against_larger_class
from core.privacy.score_histogram import BINS, EDGES, Floats, cells_of, tree_sums
from tests.factories import release
from tests.lifecycle.conftest import Submit, claimed

CASES: list[tuple[Released, int | None, float | None, str | None]] = [
    (Released("accuracy", 0.51, 0.01), 2, None, "did not learn: accuracy 0.51 ± 0.01 is at chance, 0.5 for 2 classes"),
    (Released("accuracy", 0.10, 0.0), 10, None, "did not learn: accuracy 0.1 is at chance, 0.1 for 10 classes"),
    (Released("accuracy", 0.84, 0.20), 2, None, "the noise hides if it learned: accuracy 0.84 ± 0.2 may be at chance"),
    (Released("accuracy", 0.55, 0.04), 2, None, "the noise hides if it learned: accuracy 0.55 ± 0.04 may be at chance"),
    (Released("accuracy", 0.84, 0.01), 2, None, None),
    (Released("accuracy", 0.30, 0.02), 10, None, None),
    (Released("loss", 4.99, 0.02), None, 5.0, "did not learn: loss 4.99 ± 0.02 is at its bound, 5"),
    (Released("loss", 0.7, 0.02), None, 5.0, None),
    (Released("loss", 2.3, 0.0), 10, None, None),  # exact, so not clipped to a bound
    (Released("accuracy:rare", 0.0, 0.01), 2, None, None),
    (Released("ndcg@10", 0.0, 0.01), None, None, None),
]


@pytest.mark.parametrize(("score", "classes", "bound", "said"), CASES, ids=lambda value: str(value)[:40])
def test_scores_at_chance_and_losses_at_their_bound_are_named(
    score: Released, classes: int | None, bound: float | None, said: str | None
) -> None:
    found = about([score], classes, bound)
    assert [each[: len(said or "")] for each in found] == ([said] if said else [])


@pytest.mark.parametrize(("value", "learned"), [(0.5, False), (0.9, True)])
def test_a_job_that_did_not_learn_has_a_warning(db: Database, submit: Submit, value: float, learned: bool) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    assert log.start_block(1, 50)
    log.record_digest(50, "a" * 64)
    score = {"name": "accuracy", "step": 50, "value": value, "std": 0.01, "on": "holdout"}
    release(log, score | {"released_by": "noisy_count"})
    log.succeed([], 50, ["another"])
    with db.read() as session:
        warnings = session.get_one(Job, job_id).warnings
    assert warnings[0] == "another"
    assert any(each.startswith("did not learn") for each in warnings) is not learned


def test_planned_noise_is_no_warning_once_scores_are_there(db: Database, submit: Submit) -> None:
    """AUC was "released with noise of about ± 0.25" beside an AUC of ± 0.068."""
    job_id = submit(evaluation={"noise_mu": 0.0001, "metrics": ["accuracy"]})
    other = "accuracy is released with noise of about as much as an older job's"
    log = claimed(db, job_id)
    with db.write() as session:
        job = session.get_one(Job, job_id)
        planned = [each for each in job.warnings if "released with noise of about ± " in each]
        assert planned and job.quote["planned_noise"] == planned
        job.warnings = [*planned, other]
    assert log.start_block(1, 50)
    log.record_digest(50, "a" * 64)
    score = {"name": "accuracy", "step": 50, "value": 0.9, "std": 0.01, "on": "holdout"}
    with db.write() as session:
        assert still_true(session, session.get_one(Job, job_id)) == [*planned, other]
    release(log, score | {"released_by": "noisy_count"})
    log.succeed([], 50, [])
    with db.read() as session:
        assert session.get_one(Job, job_id).warnings == [other]


def rare(records: int, shift: float, gap: float) -> Floats:
    """A histogram of records of which 16 % are positive."""
    generator = np.random.default_rng(0)
    labels = generator.random(records) < 0.16
    bins = np.searchsorted(EDGES, shift + gap * labels + generator.standard_normal(records))
    return np.array([np.bincount(bins[labels == each], minlength=BINS) for each in (False, True)], dtype=np.float64)


OF_TWO = [
    (rare(2400, -4.5, 0.0), 0.0, "did not learn: as good as always answering 'no'"),
    (rare(2400, -4.5, 0.0), 2.0, "did not learn: as good as always answering 'no'"),
    (rare(2400, -3.5, 0.9), 2.0, "at a threshold of 0.5 as good as always answering 'no'"),
    (rare(2400, -4.5, 0.0), 60.0, "the noise hides if it learned: it may be as good as always answering 'no'"),
    (rare(2400, -2.6, 1.5), 40.0, "at a threshold of 0.5 the noise does not show that it is better than always"),
    (rare(2400, -1.5, 3.0), 2.0, None),
    (rare(2400, -4.5, 0.0)[::-1], 2.0, "did not learn: as good as always answering 'yes'"),
]


@pytest.mark.parametrize(("cells", "noise_std", "said"), OF_TWO)
def test_two_classes_are_compared_with_the_larger_one(cells: Floats, noise_std: float, said: str | None) -> None:
    noise = noise_std * np.random.default_rng(4).standard_normal(cells.shape)
    released = cells_of(tree_sums(cells) + noise).flatten().tolist()
    found = against_larger_class(ReleasedHistogram(cells=released, noise_std=noise_std), ["no", "yes"])
    assert [each[: len(said or "")] for each in found] == ([said] if said else [])


def test_a_job_s_histogram_is_compared_when_it_ends(db: Database, submit: Submit) -> None:
    """Of 0.84 accuracy nothing warned, as chance is 0.5."""
    job_id = submit(evaluation={"noise_mu": 0.25})
    log = claimed(db, job_id)
    assert log.start_block(1, 50)
    log.record_digest(50, "a" * 64)
    score = {"name": "auc", "step": 50, "value": 0.5, "std": 0.01, "on": "holdout", "released_by": "noisy_count"}
    histogram = {"cells": rare(24_000, -4.5, 0.0).flatten().tolist(), "noise_std": 4.0}
    parts = [{"name": "accuracy", "value": 0.84, "std": 0.001}]
    release(log, score | {"histogram": histogram, "parts": parts})
    log.succeed([], 50, [])
    with db.read() as session:
        (warning,) = session.get_one(Job, job_id).warnings
    assert warning.startswith("did not learn: as good as always answering '0': accuracy 0.8")


def test_a_job_keeps_its_last_histogram_alone(db: Database, submit: Submit) -> None:
    """Of a thousand evaluations each mark and each list would have been megabytes."""
    job_id = submit(evaluation={"noise_mu": 0.05, "points": 2})
    log = claimed(db, job_id)
    score = {"name": "auc", "value": 0.5, "std": 0.01, "on": "holdout", "released_by": "noisy_count"}
    for step in (25, 50):
        assert log.start_block(step - 24, step)
        log.record_digest(step, "a" * 64)
        release(log, score | {"step": step, "histogram": {"cells": [float(step)] * 2 * BINS, "noise_std": 20.0}})
    with db.read() as session:
        rows = session.scalars(select(Metric).where(Metric.job_id == job_id).order_by(Metric.step)).all()
    first, last = (each.histogram for each in rows)
    assert first is None and last is not None and last.cells[0] == 50.0


def test_several_classes_are_compared_with_the_largest_class_s_share() -> None:
    """Accuracy 0.7 of four classes is far above chance, and no more than always answering the class that has 0.69."""
    share = Released("largest_share", 0.69, 0.005)
    (said,) = about([Released("accuracy", 0.70, 0.005), share], 4, None)
    assert "did not learn" in said and "always answering the largest class, 0.69 ± 0.005" in said
    assert about([Released("accuracy", 0.72, 0.005), share], 4, None) == []
    (hidden,) = about([Released("accuracy", 0.72, 0.2), share], 4, None)
    assert "the noise hides" in hidden
