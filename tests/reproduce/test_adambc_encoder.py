"""DP-AdamBC inside an encoder: two jobs that differ by the optimizer alone."""

from __future__ import annotations

import pytest

from benchmarks.reproduce.adambc_encoder import OPTIMIZERS, TUNINGS, Tuning, job
from core.contracts.job_spec import JobSpec


@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_the_two_are_jobs_and_differ_by_the_optimizer_alone(tuning: Tuning) -> None:
    jobs = (job(tuning, "minilm", name, 1e-3) for name in OPTIMIZERS)
    adam, corrected = (JobSpec.model_validate(body | {"dataset": "ds_x"}) for body in jobs)
    assert adam.model_copy(update={"optimizer": corrected.optimizer}) == corrected
    assert (adam.optimizer.kind, corrected.optimizer.kind) == ("dp_adam", "dp_adambc")
    assert 0 < tuning.first < len(tuning.rates) - 1
