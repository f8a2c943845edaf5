"""What a search leaves "auto" becomes numbers at admission: levels, noise of scores, bounds of η, the search itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.choices import Closed, closed, levels_of, score_mu, with_rate
from app.admission.facts import DatasetFacts
from app.admission.job_rules import check
from app.admission.study import CheckedStudy, check_study
from app.db.database import Database
from app.db.models import Job
from core.contracts.hpo import Auto, LinearScaling, PrivateCount, Space, noise_mu_of
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from core.privacy import pricing
from core.privacy.gdp import mu_from_epsilon
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.hpo.conftest import price_once
from tests.jobs.test_api import RDP, get, post
from tests.jobs.test_stored import facts_of

SQLITE = pytest.mark.parametrize("backing", ["sqlite"])
GDP = {"privacy": RDP | {"filter": "gdp"}}
PROBE = {"kind": "dp_sgd", "momentum": 0.9, "free_step": True}
MLP = {"kind": "mlp", "hidden": [4]}
UNRULED = {"kind": "cnn", "preset": "conv5"}
NAMED = {"kind": "dp_adambc", "learning_rate": 0.1}
POISSON = {"kind": "poisson", "expected_batch_size": 400}


def search(epsilon: float = 1.0, **changes: Any) -> JobSpec:
    spec = job_spec("ds_x", optimizer=PROBE, evaluation=None, privacy={"target_epsilon": epsilon})
    return JobSpec.model_validate(spec | {"hpo": {"space": {"steps": [15, 60]}}} | changes)


def studied(spec: JobSpec, facts: DatasetFacts) -> CheckedStudy:
    return check_study(closed(spec, facts).spec, facts, None)


def test_what_is_left_out_is_auto_and_reading_it_needs_a_number() -> None:
    found = LinearScaling()
    assert (found.levels, found.space.learning_rate, PrivateCount().noise_mu) == ("auto", "auto", "auto")
    for read in (lambda: found.epsilons, lambda: found.space.rates, lambda: noise_mu_of(PrivateCount())):
        with pytest.raises(ValueError, match="still auto"):
            read()
    assert Space(learning_rate=(0.1, 1.0)).rates == (0.1, 1.0)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 50.0])
def test_two_levels_with_three_pilots_take_a_third_of_the_bill(epsilon: float) -> None:
    mu = mu_from_epsilon(epsilon, 1e-5)
    taken = sum(3 * mu_from_epsilon(each, 1e-5) ** 2 for each in levels_of(mu, 1e-5)) / mu**2
    assert taken == pytest.approx(0.3375, abs=0.005)


def test_more_pilots_are_cheaper_ones() -> None:
    mu = mu_from_epsilon(1.0, 1e-5)
    taken = sum(20 * mu_from_epsilon(each, 1e-5) ** 2 for each in levels_of(mu, 1e-5, 20)) / mu**2
    assert taken == pytest.approx(0.3375, abs=0.005)


def test_a_total_without_levels_says_so() -> None:
    with pytest.raises(InvalidRequest) as caught:
        levels_of(1e-5, 1e-3)
    assert [each["pointer"] for each in caught.value.members["errors"]] == ["/hpo/levels"]


@pytest.mark.parametrize(
    ("on", "mu", "expected"),
    [
        ("train", 0.268, 0.025),  # 200/8,000
        ("train", 0.1, 0.01),  # a tenth of μ
        ("train", 0.001, 0.001),
        ("holdout", 1.5, 0.1),  # 200/2,000
        ("holdout", None, 0.1),
    ],
)
def test_a_score_deviates_by_half_a_percent_where_the_bill_allows_it(
    on: str, mu: float | None, expected: float
) -> None:
    assert score_mu(PrivateCount.model_validate({"on": on}), facts_of(GDP), mu) == pytest.approx(expected)


@settings(max_examples=40)
@given(
    st.floats(0.05, 30.0),
    st.sampled_from(["full_batch", "poisson"]),
    st.sampled_from([None, (0.1, 10.0)]),
    st.tuples(st.integers(1, 200), st.integers(0, 2000)),
    st.sampled_from([{"strategy": "linear_scaling"}, {"strategy": "random"}, {"strategy": "random_k", "runs": 4}]),
)
def test_the_space_is_around_the_rules_rate(
    epsilon: float,
    sampling: str,
    norms: tuple[float, float] | None,
    steps: tuple[int, int],
    strategy: dict[str, Any],
) -> None:
    space: dict[str, Any] = {"max_grad_norm": norms}
    if sampling == "full_batch":
        space["steps"] = [steps[0], sum(steps)]
    sampled = {"sampling": POISSON, "length": {"steps": 40}} if sampling == "poisson" else {}
    study = studied(search(epsilon, hpo=strategy | {"space": space}, **sampled), facts_of({"privacy": RDP}))
    least, most = study.hpo.space.rates
    assert 0.0 < least < most
    assert most / least >= 8.9
    # What is stored is what was planned, and is read again.
    assert JobSpec.model_validate(study.spec.model_dump(mode="json")).hpo == study.hpo


@pytest.mark.parametrize("sampling", ["full_batch", "poisson"])
def test_the_rate_of_one_run_with_everything_lies_within_the_space(sampling: str) -> None:
    """Also under Poisson sampling, where σ of the space is a guess."""
    changes: dict[str, Any] = {"sampling": POISSON} if sampling == "poisson" else {}
    facts = facts_of({"privacy": RDP})
    single = check(search(hpo=None, **changes), facts)
    assert single.pricing is not None
    rate = with_rate(single, pricing.price(single.pricing), Closed(single.spec)).spec.optimizer.rate
    hpo = {"space": {}} if sampling == "poisson" else {"space": {"steps": [15, 60]}}
    study = studied(search(hpo=hpo, **changes), facts)
    least, most = study.bounds.r
    assert 2.0 * least < rate * 50 < most / 1.8
    assert math.log10(most / least) < 2.1


def test_the_space_reaches_down_to_the_levels_that_are_named() -> None:
    """Levels far below the total have a smaller r."""
    facts, space = facts_of(GDP), {"steps": [15, 60]}
    least, most = studied(search(hpo={"levels": [0.01, 0.02], "space": space}), facts).hpo.space.rates
    own, top = studied(search(hpo={"space": space}), facts).hpo.space.rates
    assert most == top and least < own / 3.0


def test_without_a_rule_the_space_is_around_the_named_rate() -> None:
    for changes in ({"model": MLP, "clipping": {"kind": "automatic"}}, {"optimizer": {"kind": "dp_adambc"}}):
        optimizer = {"kind": "dp_sgd"} | changes.get("optimizer", {})
        named = search(**changes | {"optimizer": optimizer | {"learning_rate": 0.02}})
        assert studied(named, facts_of(GDP)).hpo.space.rates == (0.002, 0.2)
        with pytest.raises(InvalidRequest) as refused:
            studied(search(**changes), facts_of(GDP))
        assert refused.value.members["errors"][0]["pointer"] == "/hpo/space/learning_rate"


def test_numbers_stay_as_they_are() -> None:
    said = {
        "levels": [0.1, 0.2],
        "space": {"learning_rate": [0.1, 10.0], "steps": [5, 100]},
        "score": {"kind": "private_count", "on": "train", "noise_mu": 0.01},
    }
    asked = search(hpo=said)
    study = studied(asked, facts_of(GDP))
    assert study.hpo == asked.hpo and study.spec == asked


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 80.0])
def test_the_defaults_divide_any_total(epsilon: float) -> None:
    """Levels, scores and the final run: it keeps most of the total."""
    study = studied(search(epsilon), facts_of(GDP))
    assert study.pricing is not None
    priced = price_once(study.pricing)
    assert ((priced.runs[-1].mu or 0.0) / mu_from_epsilon(epsilon, 1e-5)) ** 2 > 0.59


def test_auto_is_one_run_with_a_rate_where_a_rule_is_known() -> None:
    for named, changes in (("auto", {}), (3.0, {}), ("auto", {"model": MLP})):
        asked = search(hpo={"strategy": "auto"}, optimizer=PROBE | {"learning_rate": named}, **changes)
        found = closed(asked, facts_of(GDP))
        assert found.spec.hpo is None and found.spec.optimizer.learning_rate == named
    why = found.why
    assert why is not None and "34 % of μ²" in why and "takes none" in why


@pytest.mark.parametrize(
    ("task", "kind"),
    [({}, "private_count"), ({"task": {"kind": "regression", "label": "label"}}, "private_loss")],
)
def test_auto_is_linear_scaling_where_none_is_known(task: dict[str, Any], kind: str) -> None:
    found = closed(search(optimizer=NAMED, hpo={"strategy": "auto"}), facts_of(GDP | task))
    assert isinstance(found.spec.hpo, LinearScaling) and found.spec.hpo.score.kind == kind and found.why is None
    other = search(hpo=None)
    assert closed(other, facts_of(GDP)) == Closed(other)
    assert Auto().model_dump() == {"strategy": "auto"}


@pytest.mark.parametrize(
    ("changes", "pointer", "what"),
    [
        ({"model": {"kind": "matrix_factorization"}}, "/optimizer/learning_rate", "name one"),
        ({"optimizer": NAMED, "privacy": {"target_epsilon": 0.001}}, "/hpo", "leave `hpo` out"),
    ],
)
def test_where_auto_would_search_an_error_names_what_was_said(changes: dict[str, Any], pointer: str, what: str) -> None:
    """`strategy: auto` has neither a space nor levels: nobody is sent there."""
    asked: dict[str, Any] = {"hpo": {"strategy": "auto"}, "model": UNRULED} | changes
    unruled = search(**asked)
    with pytest.raises(InvalidRequest) as refused:
        closed(unruled, facts_of(GDP))
    (error,) = refused.value.members["errors"]
    assert error["pointer"] == pointer and what in error["detail"] and "levels" not in error["detail"]


def test_a_job_with_auto_is_admitted_as_one_run_and_says_why(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db), optimizer=PROBE, hpo={"strategy": "auto"})
    quote = post(api, "/v1/quotes", spec, key=None).json()
    job = post(api, "/v1/jobs", spec).json()
    assert "A search is not expected to gain" in quote["resolved"]["because"]
    assert quote["hpo"] is None and job["study"] is None and job["spec"]["hpo"] is None
    assert job["spec"]["optimizer"]["learning_rate"] == quote["resolved"]["learning_rate"] > 0.0
    assert post(api, "/v1/jobs", spec).json()["id"] == job["id"]
    # All of the total is for the one run.
    alone = post(api, "/v1/quotes", spec | {"hpo": None}, key=None).json()
    assert (
        alone["charge"] == quote["charge"]
        and alone["resolved"]["learning_rate"] == job["spec"]["optimizer"]["learning_rate"]
    )


@SQLITE
def test_a_search_of_defaults_is_stored_as_numbers_and_quoted_as_admitted(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db), optimizer=PROBE, hpo={"space": {"steps": [15, 60]}})
    quote = post(api, "/v1/quotes", spec, key=None).json()
    job = post(api, "/v1/jobs", spec).json()
    stored = job["spec"]["hpo"]
    assert stored["levels"] == [0.126, 0.269] and stored["score"]["noise_mu"] == 0.025
    assert all(isinstance(each, float) for each in stored["space"]["learning_rate"])
    assert post(api, "/v1/quotes", job["spec"], key=None).json()["hpo"] == quote["hpo"] == job["quote"]["hpo"]
    with db.read() as session:
        assert session.get_one(Job, job["id"]).spec["hpo"] == stored
    assert get(api, f"/v1/jobs/{job['id']}/trials").json()["study"]["strategy"] == "linear_scaling"


@SQLITE
def test_auto_without_a_rule_is_a_study(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db), optimizer=NAMED, hpo={"strategy": "auto"})
    quote = post(api, "/v1/quotes", spec, key=None).json()
    assert quote["hpo"]["strategy"] == "linear_scaling" and quote["hpo"]["runs"] == 7
    assert [part["name"] for part in quote["resolved"]["parts"]] == ["device"]


@SQLITE
def test_a_sweeps_levels_follow_its_totals(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db), optimizer=PROBE, evaluation=None, hpo={"space": {"steps": [15, 60]}})
    answer = post(api, "/v1/quotes/sweep", {"spec": spec, "total_epsilon": [0.5, 1.0, 2.0]}, key=None)
    points = answer.json()["points"]
    assert [each["levels"] for each in points][1] == [0.126, 0.269]
    assert points[0]["levels"] < points[1]["levels"] < points[2]["levels"]
    assert all(each["final"] is not None for each in points)
    auto = post(api, "/v1/quotes/sweep", {"spec": spec | {"hpo": {"strategy": "auto"}}}, key=None)
    assert [each["pointer"] for each in auto.json()["errors"]] == ["/spec/hpo"]
