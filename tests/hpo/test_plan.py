"""The budget of a study: the golden numbers of linear scaling, and shares that add up to the unit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.errors import InvalidRequest
from core.privacy import events, gdp, pld
from core.privacy.division import price_runs
from core.privacy.filters import filter_of
from core.privacy.mechanism import MechanismConfig
from core.privacy.price_requests import StudyCommon, StudyFitRequest, StudyRequest
from core.privacy.prices import PricedRun, Units
from core.privacy.releases import NoisyCount, NoisySum
from core.privacy.shares import noise_multiplier, run_mechanism, units_of
from core.privacy.study_price import largest_that_fits, price, study_event
from tests.by_night import but

DELTA = 1e-5
MEAN = {"noise_mu": 0.0173, "max_norm": 1.0, "records": 5000}


def study(
    total: float = 1.0,
    levels: tuple[float, ...] = (0.1, 0.2),
    per_level: int = 3,
    score_mu: float | None = None,
    *,
    account: str = "train",
    filter_: tuple[str, float | None] = ("gdp", None),
    steps: tuple[int, int] = (5, 100),
    sharers: int = 1,
    delta: float = DELTA,
    oracle: bool = False,
    mean: dict[str, Any] | None = None,
    mean_once: bool = False,
    **training: Any,
) -> StudyRequest:
    """What the pricing process is asked of a study."""
    release = {"what": "accuracy", "account": account, "noise_mu": score_mu, "records": 5000}
    score = [release] if score_mu else []
    runs = [{"role": "pilot", "level": j, "releases": score} for j in range(len(levels)) for _ in range(per_level)]
    role = "final" if levels else "candidate"
    asked = {
        "runs": runs + [{"role": role, "level": None, "releases": [] if levels else score}] * sharers,
        "levels": list(levels),
        "total_epsilon": total,
        "target_delta": delta,
        "unit": "example",
        "filter": {"kind": filter_[0], "order": filter_[1]},
        "steps": list(steps),
        "oracle": oracle,
        "mean": mean,
        "mean_once": mean_once,
        "training": {
            "sampling": "full_batch",
            "sample_rate": 1.0,
            "steps": steps[1],
            "max_grad_norm": 1.0,
            "clipping": "flat",
            "expected_batch_size": 5000,
            **training,
        },
    }
    return StudyRequest.model_validate(asked)


def mechanism_of(
    asked: StudyRequest, number: int, run: PricedRun, steps: int, scores: tuple[NoisyCount | NoisySum, ...] = ()
) -> MechanismConfig:
    """What a priced run does."""
    sigma = run.noise_multiplier
    return run_mechanism(asked.common, number=number, share=run.share, sigma=sigma, scores=scores, steps=steps)


# Of a total of 1 at δ = 1e-5, three pilots a level: what is left for the final run.
GOLDEN = [
    ((0.01, 0.05), 0.9927),
    ((0.05, 0.1), 0.9685),
    ((0.05, 0.2), 0.9031),
    ((0.1, 0.2), 0.8840),
    ((0.2, 0.3), 0.6933),
]


@pytest.mark.parametrize(("levels", "epsilon"), GOLDEN)
def test_what_pilots_leave_of_one(levels: tuple[float, ...], epsilon: float) -> None:
    """Panda et al. 2024, Table 13 (printed there with two digits)."""
    *_, final = price_runs(study(1.0, levels))
    assert final.epsilon == pytest.approx(epsilon, abs=1e-4)


def test_six_scores_of_the_training_part_cost_half_a_hundredth() -> None:
    *_, final = price_runs(study(1.0, score_mu=0.01))
    assert final.epsilon == pytest.approx(0.8790, abs=1e-4)


def test_scores_of_the_holdout_leave_the_training_part_alone() -> None:
    *_, final = price_runs(study(1.0, score_mu=0.01, account="holdout"))
    assert final.epsilon == pytest.approx(0.8840, abs=1e-4)
    assert final.charge.holdout == 0
    assert price_runs(study(1.0, score_mu=0.01, account="holdout"))[0].charge.holdout == 100_000_001


def test_one_private_mean_serves_the_whole_study() -> None:
    """Of a total of 1, and with scores, one mean takes 0.8790 to 0.8764: against the sum of squares by hand.

    Claim: a study pays for one private mean
    Now: one; 0.8764
    """
    asked = study(1.0, score_mu=0.01, mean=MEAN, mean_once=True)
    priced = price(asked)
    mu = {level: gdp.mu_from_epsilon(level, DELTA) for level in (0.1, 0.2, 1.0)}
    left = math.sqrt(mu[1.0] ** 2 - 3 * mu[0.1] ** 2 - 3 * mu[0.2] ** 2 - 6 * 0.01**2 - 0.0173**2)
    assert priced.runs[-1].epsilon == pytest.approx(gdp.epsilon_from_mu(left, DELTA), abs=1e-6)
    assert priced.runs[-1].epsilon == pytest.approx(0.8764, abs=1e-4)
    one = math.ceil(0.0173**2 * 1e12 * (1 + 1e-12))
    (line,) = [each for each in priced.lines if each.what == "mean"]
    assert (line.account, line.count, line.charge) == ("train", 1, one)
    assert line.epsilon is not None and line.epsilon.value == pytest.approx(0.05, abs=1e-4)
    # The first trial is charged for it, and no other.
    alike = [run.charge.train for run in priced.runs[:3]]
    assert alike == [alike[1] + one, alike[1], alike[1]]
    assert priced.runs[0].epsilon_with_scores > priced.runs[1].epsilon_with_scores == priced.runs[2].epsilon_with_scores
    assert priced.charge.train == units_of(mu[1.0] ** 2, filter_of("gdp"))
    assert sum(each.charge for each in priced.lines) == priced.charge.train
    whole = [mechanism_of(asked, number, run, 50).before for number, run in enumerate(priced.runs)]
    assert [len(each) for each in whole] == [1, 0, 0, 0, 0, 0, 0]


def test_under_poisson_sampling_too_one_mean_is_composed() -> None:
    training = {"sampling": "poisson", "sample_rate": 0.05, "expected_batch_size": 250}
    asked = study(2.0, (0.3, 0.6), 2, filter_=("rdp", 6.0), steps=(50, 50), mean=MEAN, mean_once=True, **training)
    priced = price_runs(asked)
    each_its_own = price_runs(asked.model_copy(update={"mean_once": False}))
    none = price_runs(asked.model_copy(update={"mean": None}))
    sigmas = [runs[-1].noise_multiplier or 0.0 for runs in (none, priced, each_its_own)]
    assert sigmas == sorted(sigmas) and len(set(sigmas)) == 3
    assert pld.epsilon(study_event(asked, priced, "train"), DELTA) <= 2.0
    assert priced[0].charge.train > priced[1].charge.train


def test_a_study_that_was_stored_with_a_mean_for_each_run_keeps_it() -> None:
    """Also what an oracle does. ε = 0.05 by itself at δ = 1e-5; seven of them take 0.8790 to 0.8611."""
    stored = study(1.0, mean=MEAN).common.model_dump(mode="json")
    assert "mean_once" not in stored  # version 1's document
    assert all(StudyCommon.model_validate(stored).before(number) for number in range(7))
    assert gdp.epsilon_from_mu(0.0173, DELTA) == pytest.approx(0.05, abs=1e-4)
    asked = study(1.0, score_mu=0.01, mean=MEAN)
    priced = price(asked)
    assert priced.runs[-1].epsilon == pytest.approx(0.8611, abs=1e-4)
    (line,) = [each for each in priced.lines if each.what == "mean"]
    assert (line.account, line.count) == ("train", 7)
    assert line.charge == 7 * math.ceil(0.0173**2 * 1e12 * (1 + 1e-12))
    assert priced.charge.train == units_of(gdp.mu_from_epsilon(1.0, DELTA) ** 2, filter_of("gdp"))
    assert sum(each.charge for each in priced.lines) == priced.charge.train
    mechanism = mechanism_of(asked, 6, priced.runs[-1], 50)
    (released,) = mechanism.before
    assert released.what == "mean" and released.noise_std == 1.0 / 0.0173
    assert filter_of("gdp").charge(mechanism, "train") <= priced.runs[-1].charge.train


def test_noise_of_a_hundred_steps_at_a_hundredth() -> None:
    assert gdp.mu_from_epsilon(1.0, DELTA) == pytest.approx(0.268051, abs=1e-6)
    of = filter_of("gdp")
    share = units_of(gdp.mu_from_epsilon(0.01, DELTA) ** 2, of)
    assert noise_multiplier(share, 100, 0, of) == pytest.approx(2437.9, abs=0.1)


FILTERS = st.sampled_from([("gdp", None), ("rdp", 6.0), ("rdp", 2.75), ("rdp", 64.0)])


SPECS = st.builds(
    study,
    st.floats(0.3, 20.0),
    st.lists(st.floats(0.01, 0.3), min_size=2, max_size=3, unique=True).map(sorted).map(tuple),
    st.integers(1, 4),
    st.none() | st.floats(1e-3, 0.05),
    filter_=FILTERS,
    steps=st.just((5, 300)),
    mean=st.none() | st.floats(1e-3, 0.02).map(lambda mu: {"noise_mu": mu, "max_norm": 2.0, "records": 5000}),
    mean_once=st.booleans(),
    delta=st.floats(-12.0, -3.0).map(lambda log_delta: 10.0**log_delta),
)


def price_or_skip(asked: StudyRequest) -> list[PricedRun]:
    try:
        return price_runs(asked)
    except InvalidRequest:
        assume(False)
        raise


def random_studies() -> Iterator[StudyRequest]:
    """The same ones each time. Drawn here, as drawing so many took longer than pricing them."""
    draw = random.Random(0)
    orders = [("gdp", None), ("rdp", 6.0), ("rdp", 2.75), ("rdp", 64.0)]
    while True:
        mean = {"noise_mu": draw.uniform(1e-3, 0.02), "max_norm": 2.0, "records": 5000}
        yield study(
            math.exp(draw.uniform(math.log(0.3), math.log(20.0))),
            tuple(sorted(draw.uniform(0.01, 0.3) for _ in range(draw.choice([2, 3])))),
            draw.randint(1, 4),
            draw.choice([None, draw.uniform(1e-3, 0.05)]),
            filter_=draw.choice(orders),
            steps=(5, 300),
            delta=10.0 ** draw.uniform(-12.0, -3.0),
            mean=draw.choice([None, mean]),
            mean_once=draw.choice([False, True]),
        )


@pytest.mark.parametrize("studies", but([200, 1000], lambda studies: studies == 200))
def test_the_parts_of_many_studies_add_up_to_their_totals_to_the_unit(studies: int) -> None:
    priced = 0
    for asked in random_studies():
        try:
            runs = price_runs(asked)
        except InvalidRequest:
            continue
        total = gdp.mu_from_epsilon(asked.total_epsilon, asked.target_delta) ** 2
        assert sum(run.charge.train for run in runs) == units_of(total, asked.filter.build()), asked
        priced += 1
        if priced == studies:
            return


@given(SPECS, st.integers(5, 300))
@settings(max_examples=100)
def test_whatever_runs_is_within_its_share_and_the_whole_within_the_total(asked: StudyRequest, steps: int) -> None:
    priced, of = price_or_skip(asked), asked.filter.build()
    done = []
    for number, (run, plan) in enumerate(zip(priced, asked.runs, strict=True)):
        mechanism = mechanism_of(asked, number, run, steps, plan.releases)
        assert of.charge(mechanism, "train") <= run.charge.train
        done.append(mechanism.event("train"))
    for event in (events.composed(done), study_event(asked, priced, "train")):
        assert gdp.epsilon_from_mu(gdp.mu_of_event(event) or 0.0, asked.target_delta) <= asked.total_epsilon


@given(st.floats(0.3, 8.0), st.integers(2, 50), FILTERS)
@settings(max_examples=40)
def test_candidates_share_to_the_unit(total: float, runs: int, filter_: tuple[str, float | None]) -> None:
    asked = study(total, (), 0, 0.005, filter_=filter_, sharers=runs)
    charges = [run.charge.train for run in price_runs(asked)]
    assert sum(charges) == units_of(gdp.mu_from_epsilon(total, DELTA) ** 2, filter_of(*filter_))
    assert max(charges) - min(charges) <= 1


@pytest.mark.parametrize("filter_", [("gdp", None), ("rdp", 6.0)])
def test_a_total_that_is_too_small_names_the_smallest_that_works(filter_: tuple[str, float | None]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        price_runs(study(0.3, filter_=filter_))
    (error,) = refused.value.members["errors"]
    smallest = error["smallest_total_epsilon"]
    assert error["pointer"] == "/privacy/target_epsilon"
    assert 0.38 < smallest < 0.42
    assert price_runs(study(smallest, filter_=filter_))[-1].share > 0
    with pytest.raises(InvalidRequest):
        price_runs(study(smallest * 0.998, filter_=filter_))


def test_under_poisson_sampling_all_noise_is_fixed() -> None:
    training = {"sampling": "poisson", "sample_rate": 0.05, "expected_batch_size": 250}
    asked = study(2.0, (0.3, 0.6), 2, 0.01, filter_=("rdp", 6.0), steps=(50, 50), **training)
    priced = price_runs(asked)
    sigmas = [run.noise_multiplier for run in priced]
    assert sigmas[0] == sigmas[1] > sigmas[2] == sigmas[3] > sigmas[4]
    assert 2.0 * (1 - 2e-3) < pld.epsilon(study_event(asked, priced, "train"), DELTA) <= 2.0
    assert math.isclose(priced[0].epsilon or 0.0, 0.3, rel_tol=1e-3)


def fits(asked: StudyRequest, train: int) -> float | None:
    return largest_that_fits(StudyFitRequest(study=asked, remaining=Units(train=train, holdout=0))).epsilon


@pytest.mark.parametrize("remaining", [300_000_000, 120_000_000])
def test_under_poisson_sampling_the_largest_total_truly_fits(remaining: int) -> None:
    """And nothing that is half a percent larger does; None where the pilots alone take more."""
    training = {"sampling": "poisson", "sample_rate": 0.05, "expected_batch_size": 250}
    asked = study(2.0, (0.3, 0.6), 1, 0.01, filter_=("rdp", 6.0), steps=(50, 50), **training)
    most = fits(asked, remaining)
    assert most is not None
    charged = [sum(run.charge.train for run in price_runs(asked.with_total(most * factor))) for factor in (1.0, 1.005)]
    assert charged[0] <= remaining < charged[1]
    assert fits(asked, 1_000_000) is None


def test_under_poisson_sampling_too_a_small_total_is_refused() -> None:
    training = {"sampling": "poisson", "sample_rate": 0.05, "expected_batch_size": 250}
    asked = study(0.5, (0.3, 0.6), 1, filter_=("rdp", 6.0), steps=(50, 50), **training)
    with pytest.raises(InvalidRequest) as refused:
        price_runs(asked)
    smallest = refused.value.members["errors"][0]["smallest_total_epsilon"]
    assert (price_runs(asked.with_total(smallest))[-1].noise_multiplier or 1e9) <= 1e5
