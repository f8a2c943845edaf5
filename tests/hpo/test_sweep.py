"""What another plan would leave the final run."""

from __future__ import annotations

from typing import Any

import pytest

from core.privacy.price_requests import FinalRunRequest
from core.privacy.sweep_price import final_run
from tests.hpo.test_plan import GOLDEN, study


def asked(total: float = 1.0, levels: tuple[float, ...] = (0.1, 0.2), runs: int = 3, **of: Any) -> FinalRunRequest:
    return FinalRunRequest(study=study(**of), total_epsilon=total, levels=levels, runs_per_level=runs)


@pytest.mark.parametrize(("levels", "epsilon"), GOLDEN)
def test_the_golden_numbers_out_of_one_study(levels: tuple[float, ...], epsilon: float) -> None:
    """Panda et al. 2024, Table 13; the study itself has another total and other levels."""
    other = asked(levels=levels, total=1.0).model_copy(update={"study": study(3.0, (0.3, 0.5), 1)})
    assert final_run(other).epsilon == pytest.approx(epsilon, abs=1e-4)


def test_scores_are_paid_for_in_every_plan() -> None:
    assert final_run(asked(score_mu=0.01)).epsilon == pytest.approx(0.8790, abs=1e-4)
    by_runs = [final_run(asked(runs=n, score_mu=0.01)).epsilon or 0.0 for n in (1, 3, 5)]
    assert sorted(by_runs, reverse=True) == by_runs


def test_too_small_a_total_names_the_smallest_that_works() -> None:
    refused = final_run(asked(total=0.2))
    assert refused.epsilon is None and refused.mu is None
    assert "smallest total" in (refused.reason or "")
    least = refused.smallest_total_epsilon
    assert least is not None
    assert final_run(asked(total=least)).epsilon is not None
    assert final_run(asked(total=least * 0.999)).epsilon is None


def test_what_no_total_mends_has_a_reason_alone() -> None:
    refused = final_run(asked(levels=(1e-4, 0.2), steps=(5, 100_000)))
    assert refused.epsilon is None and refused.smallest_total_epsilon is None
    assert "noise multiplier above" in (refused.reason or "")


def test_under_poisson_sampling_too() -> None:
    poisson = {"steps": (20, 20), "sampling": "poisson", "sample_rate": 0.1, "filter_": ("rdp", 8.0)}
    assert 1.0 < (final_run(asked(1.5, (0.3, 0.5), 1, **poisson)).epsilon or 0.0) < 1.5
