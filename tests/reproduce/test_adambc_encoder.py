"""DP-AdamBC inside an encoder: two jobs that differ by the optimizer alone."""

from __future__ import annotations

from benchmarks.reproduce.adambc_encoder import FIRST_RATE, OPTIMIZERS, RATES, job
from core.contracts.job_spec import JobSpec


def test_the_two_are_jobs_and_differ_by_the_optimizer_alone() -> None:
    jobs = (job("minilm", name, 1e-3) for name in OPTIMIZERS)
    adam, corrected = (JobSpec.model_validate(each | {"dataset": "ds_x"}) for each in jobs)
    assert adam.model_copy(update={"optimizer": corrected.optimizer}) == corrected
    assert (adam.optimizer.kind, corrected.optimizer.kind) == ("dp_adam", "dp_adambc")
    assert 0 < FIRST_RATE < len(RATES) - 1
