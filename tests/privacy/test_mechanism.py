"""Mechanisms that must not be, and what is charged of those that are: found by mutation testing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, get_args

import pytest
from pydantic import ValidationError

from core.privacy.filters import GdpFilter, RdpFilter
from core.privacy.mechanism import AdaptiveMechanism, DelayedMechanism, MechanismConfig, TrainingMechanism
from core.privacy.releases import NoisyCount
from core.privacy.shares import units_of, units_per_mu2
from core.privacy.statistics_release import StatisticsRelease
from tests.statistics.data import spec

Variant = Literal["delayed", "extra_query", "noise_first"]
FULL = {"sampling": "full_batch", "sample_rate": 1.0, "expected_batch_size": 100.0, "clipping": "flat"}


def delayed(variant: Variant, plain: int, adaptive: int) -> DelayedMechanism:
    return DelayedMechanism(variant=variant, delay_sgd=plain, delay_adaptive=adaptive, max_grad_norm_adaptive=0.5)


@pytest.mark.parametrize("variant", get_args(Variant))
@pytest.mark.parametrize("plain", [1, 2, 3, 5])
def test_the_double_steps_that_are_charged_are_those_that_make_two_queries(variant: Variant, plain: int) -> None:
    mechanism = delayed(variant, plain, 2)
    for steps in range(1, 4 * plain + 9):
        queries = [len(mechanism.norms(step, 1.0)) for step in range(1, steps + 1)]
        assert mechanism.double_steps(steps) == queries.count(2), (steps, queries)


def test_plain_and_adaptive_steps_alternate_from_the_first_step() -> None:
    mechanism = delayed("delayed", 3, 2)
    assert [mechanism.is_adaptive(step) for step in range(1, 11)] == [False, False, False, True, True] * 2
    assert [step for step in range(1, 11) if mechanism.completes(step)] == [3, 8]
    assert [mechanism.norms(step, 1.0) for step in (1, 4)] == [(1.0,), (0.5,)]
    extra = delayed("extra_query", 3, 2)
    assert [step for step in range(1, 8) if not extra.is_adaptive(step)] == [1, 4, 7]
    assert [step for step in range(1, 8) if extra.completes(step)] == [1, 4, 7]


ONE_SUM: dict[str, Any] = FULL | {"steps": 1, "noise_multiplier": 2.0, "max_grad_norm": 1.0}
ADAPTIVE = AdaptiveMechanism(target_quantile=0.5, learning_rate=0.1, count_noise_multiplier=8.0)
COUNT = NoisyCount(account="holdout", noise_mu=0.5, records=100)


def statistics(**changes: Any) -> MechanismConfig:
    releases = changes.pop("releases", ())
    training = TrainingMechanism.model_validate(ONE_SUM | changes)
    release = StatisticsRelease.of(spec().queries or ())
    return MechanismConfig(unit="example", target_delta=1e-5, training=training, releases=releases, statistics=release)


def test_statistics_are_one_noisy_sum_and_nothing_besides() -> None:
    assert statistics().statistics is not None
    for wrong in (
        {"steps": 2},
        {"max_grad_norm": 2.0},
        {"sampling": "poisson", "sample_rate": 0.5},
        {"delayed": delayed("delayed", 1, 1)},
        {"adaptive": ADAPTIVE, "clipping": "adaptive"},
        {"releases": (COUNT,)},
    ):
        with pytest.raises(ValidationError, match="nothing besides"):
            statistics(**wrong)


@pytest.mark.parametrize("privacy_filter", [GdpFilter(), RdpFilter(order=6.0)])
def test_a_share_s_units_are_worth_at_most_its_mu(privacy_filter: GdpFilter | RdpFilter) -> None:
    """In fractions: rounded up, the trials of a study would spend more than its price."""
    per_unit = Fraction(units_per_mu2(privacy_filter))
    for number in range(1, 2000):
        mu_squared = number * 1e-12 * 7.0 ** (number % 9)
        assert units_of(mu_squared, privacy_filter) <= Fraction(mu_squared) * per_unit
