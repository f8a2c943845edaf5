"""Models that did not learn, told from released scores alone."""

from __future__ import annotations

import pytest

from app.db.engine import Database
from app.db.models import Job
from app.lifecycle.learning import Released, about
from tests.factories import release
from tests.lifecycle.conftest import Submit, claimed

CASES: list[tuple[Released, int | None, float | None, str | None]] = [
    (Released("accuracy", 0.51, 0.01), 2, None, "did not learn: accuracy 0.51 ± 0.01 is at chance, 0.5 for 2 classes"),
    (Released("accuracy", 0.10, 0.0), 10, None, "did not learn: accuracy 0.1 is at chance, 0.1 for 10 classes"),
    (Released("accuracy", 0.84, 0.20), 2, None, "the noise hides if it learned: accuracy 0.84 ± 0.2 may be at chance"),
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
