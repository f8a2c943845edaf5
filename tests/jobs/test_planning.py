"""Plans: steps, rates and divisors from public numbers, and every refusal with a pointer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.admission.choices import closed
from app.admission.facts import DatasetFacts
from app.admission.job_rules import Checked, check
from app.admission.work import Training
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import AdaptiveNorm, JobSpec
from core.errors import InvalidRequest
from core.privacy.derive import default_delta
from core.privacy.pricing import price
from core.privacy.releases import NoisyCount, NoisyScore
from tests.factories import dataset_spec, job_spec, slots_for


def facts(train: int = 8000, held_out: int = 2000, width: int = 2, **changes: Any) -> DatasetFacts:
    spec = DatasetSpec.model_validate(dataset_spec(**changes))
    private = spec.privacy.sensitivity == "private"
    return DatasetFacts(
        id="ds_x",
        name=spec.name,
        spec=spec,
        records_train=train,
        records_holdout=held_out,
        features=width,
        outputs=2,
        filter=spec.privacy.filter if private else None,
        order=8.0 if spec.privacy.filter == "rdp" and private else None,
        cap_delta=1e-5 if private else None,
        stated_slots=slots_for(train, held_out) if private else None,
    )


RDP = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "rdp"}
PUBLIC = {"sensitivity": "public"}
MLP, CNN = {"kind": "mlp", "hidden": [8]}, {"kind": "cnn", "preset": "conv2"}
TF32 = {"device": "cuda", "fp32_precision": "tf32"}


def spec_of(**changes: Any) -> JobSpec:
    return JobSpec.model_validate(job_spec("ds_x", **changes))


def planned(spec: JobSpec, facts: DatasetFacts) -> Checked:
    return check(closed(spec, facts).spec, facts)


def test_full_batch_divides_by_the_public_count() -> None:
    made = check(spec_of(), facts())
    assert (made.steps, made.expected_batch_size, made.sample_rate) == (50, 8000, 1.0)
    assert made.pricing is not None
    score = NoisyCount(account="holdout", noise_mu=0.05, sensitivity=1.0, times=1, records=2000)
    assert made.pricing.releases == (score,)


def test_steps_of_epochs_are_floored_as_everywhere() -> None:
    """Golden: 20 epochs of 50,000 at 512 are 1953 steps; 100 epochs of 25,000 at 64 are 39062."""
    poisson = {"kind": "poisson", "expected_batch_size": 512}
    made = check(spec_of(sampling=poisson, length={"epochs": 20}, evaluation=None), facts(50_000, 0, privacy=RDP))
    assert made.steps == 1953
    poisson = {"kind": "poisson", "expected_batch_size": 64}
    made = check(spec_of(sampling=poisson, length={"epochs": 100}, evaluation=None), facts(25_000, 0, privacy=RDP))
    assert made.steps == 39_062


def test_epochs_are_exact_in_decimal() -> None:
    """0.7 · 10 is 7 steps; in binary floating point it would be 6."""
    poisson = {"kind": "poisson", "expected_batch_size": 1}
    asked = spec_of(sampling=poisson, length={"epochs": 0.7}, evaluation=None, privacy=None)
    made = check(asked, facts(10, 0, privacy=PUBLIC))
    assert made.steps == 7


REFUSED = [
    (
        spec_of(sampling={"kind": "poisson", "expected_batch_size": 8001}),
        facts(privacy=RDP),
        "/sampling/expected_batch_size",
    ),
    (spec_of(sampling={"kind": "poisson", "expected_batch_size": 64}), facts(), "/sampling"),
    (spec_of(privacy=None), facts(), "/privacy"),
    (spec_of(seed=1), facts(), "/seed"),
    (spec_of(privacy={"target_epsilon": 1.0, "target_delta": 1e-4}), facts(), "/privacy/target_delta"),
    (
        spec_of(sampling={"kind": "poisson", "expected_batch_size": 64}, length={"steps": 9}, evaluation=None),
        facts(privacy=RDP),
        "/length",
    ),
    (
        spec_of(sampling={"kind": "poisson", "expected_batch_size": 64}, length={"steps": 9}, evaluation=None),
        facts(privacy=PUBLIC),  # with privacy all the same: of so few not one would be made
        "/length",
    ),
    (spec_of(), facts(holdout=None), "/evaluation"),
    (spec_of(evaluation={"points": 51}), facts(), "/evaluation/points"),
    (
        spec_of(sampling={"kind": "poisson", "expected_batch_size": 64}, evaluation={"points": 6}),
        facts(privacy=RDP),
        "/evaluation/points",
    ),
    (
        spec_of(length={"epochs": 1e7}, sampling={"kind": "poisson", "expected_batch_size": 1}),
        facts(privacy=RDP),
        "/length/epochs",
    ),
    (
        spec_of(runtime={"dtype": "float32"}),
        facts(width=32768, features={"kind": "hashed_text", "column": "text"}),
        "/runtime/dtype",
    ),
    (spec_of(runtime={"processes": 2, "device": "cuda", "shard": "optimizer"}), facts(), "/runtime/shard"),
    (spec_of(runtime={"shard": "optimizer"}), facts(), "/runtime/shard"),
    (spec_of(runtime={"shard": "optimizer", "processes": "auto"}), facts(), "/runtime/shard"),
    (spec_of(runtime=TF32), facts(), "/runtime/fp32_precision"),  # a linear model
    (spec_of(runtime=TF32 | {"device": "cpu"}, model=MLP), facts(), "/runtime/fp32_precision"),
    (spec_of(runtime=TF32 | {"dtype": "float64"}, model=MLP), facts(), "/runtime/fp32_precision"),
    (spec_of(runtime=TF32, model=MLP, clipping={"engine": "opacus"}), facts(), "/runtime/fp32_precision"),
]


@pytest.mark.parametrize(("spec", "of", "pointer"), REFUSED, ids=[each[2] + str(i) for i, each in enumerate(REFUSED)])
def test_refusals_point_at_what_to_change(spec: JobSpec, of: DatasetFacts, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(spec, of)
    assert refused.value.members["errors"][0]["pointer"] == pointer


def test_tf32_is_in_the_numerics_of_a_network_on_a_gpu() -> None:
    """They are stored with the job: every attempt and every replay has them. Others' are as they were."""
    found = []
    for runtime in (TF32, {"device": "cuda"}):
        work = check(spec_of(runtime=runtime, model=MLP), facts()).work
        assert isinstance(work, Training)
        found.append(work.numerics.model_dump(mode="json"))
    assert found[0] == found[1] | {"fp32_precision": "tf32"} and "fp32_precision" not in found[1]


def test_public_data_needs_no_privacy_and_has_no_price() -> None:
    for runtime in ({}, {"processes": 2}, {"processes": 2, "shard": "optimizer"}):
        made = check(spec_of(privacy=None, seed=7, runtime=runtime), facts(privacy=PUBLIC))
        assert made.pricing is None


def test_a_private_job_on_public_data_is_priced_but_scores_are_free() -> None:
    made = check(spec_of(), facts(privacy=PUBLIC))
    assert made.pricing is not None
    assert made.pricing.releases == ()


@given(st.integers(1, 10**12))
def test_default_delta_is_the_largest_power_of_ten_within_one_over_n(records: int) -> None:
    delta = default_delta(records)
    assert delta * records <= 1 + 1e-12
    assert delta == 1e-3 or delta * 10 * records > 1 - 1e-12


TENSOR = {"format": "npz", "features": {"kind": "tensor", "array": "x"}}
TEXT = {"features": {"kind": "hashed_text", "column": "text"}}
UNFIT: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({"model": MLP}, TEXT, 32768, "/model/kind"),
    ({"model": CNN}, {}, 784, "/model/kind"),
    ({"model": CNN}, TENSOR, 785, "/model/preset"),
    ({"model": CNN | {"preset": "conv5"}}, TENSOR, 784, "/model/preset"),
    ({"model": MLP | {"hidden": [10_000, 10_000]}}, TENSOR, 784, "/model"),
]


@pytest.mark.parametrize(("asked", "data", "features", "pointer"), UNFIT)
def test_a_model_that_does_not_fit_the_data_is_refused(
    asked: dict[str, Any], data: dict[str, Any], features: int, pointer: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(spec_of(**asked), facts(width=features, **data))
    assert refused.value.members["errors"][0]["pointer"] == pointer
    check(spec_of(model=CNN), facts(width=784, **TENSOR))
    check(spec_of(model=MLP, clipping={"kind": "per_layer"}), facts())


def test_an_adaptive_norm_is_priced_with_its_count() -> None:
    made = check(spec_of(clipping={"kind": "adaptive", "max_grad_norm": 0.1}), facts())
    assert made.pricing is not None
    assert made.pricing.training.clipping == "adaptive" and made.pricing.training.adaptive == AdaptiveNorm()
    with pytest.raises(ValueError, match="adaptive"):
        spec_of(clipping={"kind": "flat", "adaptive": {}})


OF_USERS = RDP | {"unit": "user", "user_column": "u", "max_records_per_user": 5}


def test_users_are_priced_as_units_with_all_their_records() -> None:
    made = check(spec_of(), facts(privacy=OF_USERS | {"filter": "gdp"}))
    assert made.pricing is not None
    assert made.pricing.unit == "user" and made.pricing.training.records_per_unit == 5
    assert [each.records_per_unit for each in made.pricing.releases if isinstance(each, NoisyScore)] == [5]
    assert made.expected_batch_size == 8000  # users
    answer = price(made.pricing)
    assert answer.mechanism is not None and answer.epsilon is not None
    assert answer.mechanism.unit == answer.epsilon.unit == answer.lines[0].epsilon.unit == "user"
    one = check(spec_of(), facts())
    assert one.pricing is not None
    alone = price(one.pricing)
    assert alone.epsilon is not None
    assert answer.charge == alone.charge and answer.epsilon.value == alone.epsilon.value


def test_an_adaptive_norm_counts_records_and_is_refused_for_users() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(spec_of(clipping={"kind": "adaptive"}), facts(privacy=OF_USERS))
    assert refused.value.members["errors"][0]["pointer"] == "/clipping/kind"


def test_groups_of_classes_cost_what_the_score_costs() -> None:
    grouped = {"on": "holdout", "noise_mu": 0.05, "groups": {"rare": [1]}}
    made = check(spec_of(evaluation=grouped), facts())
    assert made.pricing is not None
    (release,) = made.pricing.releases
    assert (
        isinstance(release, NoisyCount)
        and release.groups == {"rare": (1,)}
        and release.sensitivity == 1.0
        and release.times == 1
    )


def test_two_classes_are_scored_by_one_histogram_at_the_price_of_a_count() -> None:
    asked = {"on": "holdout", "noise_mu": 0.05}
    named, count = (planned(spec_of(evaluation=each), facts()) for each in (asked, asked | {"metrics": ["accuracy"]}))
    assert named.spec.evaluation is not None and named.spec.evaluation.metrics == ["auc"]  # stored, and told
    assert named.pricing is not None and count.pricing is not None
    (release,) = named.pricing.releases
    assert isinstance(release, NoisyCount) and (release.what, release.sensitivity) == ("auc", 1.0)
    priced, of_a_count = price(named.pricing), price(count.pricing)
    assert (priced.charge, priced.epsilon, priced.lines) == (of_a_count.charge, of_a_count.epsilon, of_a_count.lines)
    assert release.noise_std == 20.0 and "recall" in release.parts


NINE = {"task": {"kind": "classification", "label": "y", "classes": list(range(9))}}


@pytest.mark.parametrize(
    ("asked", "of", "kept"),
    [
        ({}, NINE, None),
        ({"groups": {"rare": [1]}}, {}, None),
        ({"metrics": ["loss"]}, {}, ["loss"]),
    ],
)
def test_other_scores_stay_as_they_are_named(asked: dict[str, Any], of: dict[str, Any], kept: list[str] | None) -> None:
    made = planned(spec_of(evaluation={"on": "holdout"} | asked), replace(facts(**of), outputs=9 if of else 2))
    assert made.spec.evaluation is not None and made.spec.evaluation.metrics == kept


def test_an_auc_of_nine_classes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="2 classes, and this data set has 9"):
        check(spec_of(evaluation={"on": "holdout", "metrics": ["auc"]}), replace(facts(**NINE), outputs=9))
    for wrong in ({"metrics": ["auc", "accuracy"]}, {"metrics": ["auc"], "groups": {"rare": [1]}}):
        with pytest.raises(ValidationError):
            spec_of(evaluation={"on": "holdout"} | wrong)


def test_accuracy_and_loss_are_two_releases_each_charged() -> None:
    asked = {"on": "holdout", "noise_mu": 0.05, "metrics": ["accuracy", "loss"], "loss_bound": 0.5}
    one, two = (check(spec_of(evaluation=each), facts()) for each in (asked | {"metrics": ["accuracy"]}, asked))
    assert one.pricing is not None and two.pricing is not None
    assert [(r.what, r.sensitivity) for r in two.pricing.releases] == [("accuracy", 1.0), ("loss", 0.5)]
    charges = [price(each.pricing).charge.holdout for each in (one, two) if each.pricing]
    assert charges[1] == 2 * charges[0] > 0
    assert not one.warnings and "a guess among all classes" in two.warnings[0]


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [({"groups": {"rare": [2]}}, "/evaluation/groups/rare"), ({"by_frequency": True}, "/evaluation/by_frequency")],
)
def test_groups_that_are_private_or_no_classes_are_refused(asked: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(spec_of(evaluation={"on": "holdout"} | asked), facts())
    assert refused.value.members["errors"][0]["pointer"] == pointer
    assert check(spec_of(privacy=None, evaluation={"on": "holdout", "by_frequency": True}), facts(privacy=PUBLIC))


def test_a_scores_noise_is_known_before_the_job_runs() -> None:
    asked = {"on": "holdout", "noise_mu": 0.05}
    made = planned(spec_of(evaluation=asked | {"metrics": ["accuracy"]}), facts(held_out=5000))
    assert [(each.name, each.std) for each in made.scores(None)] == [("accuracy", pytest.approx(0.004))]
    made = planned(spec_of(evaluation=asked), facts(held_out=5000))
    stds = [("auc", pytest.approx(0.024)), ("accuracy", pytest.approx(0.008))]
    assert [(each.name, each.std) for each in made.scores(None)] == stds
    assert made.warnings == ()
    groups = {"on": "holdout", "noise_mu": 0.05, "groups": {"a": [0], "b": [1]}, "metrics": ["loss"], "loss_bound": 4.0}
    made = planned(spec_of(evaluation=groups), facts(held_out=5000))
    assert [(each.name, each.std) for each in made.scores(None)] == [("loss", pytest.approx(0.016 * 3**0.5))]
    assert planned(spec_of(evaluation=None), facts()).scores(None) == ()
    public = planned(spec_of(privacy=None), facts(privacy=PUBLIC))
    assert (public.scores(None), public.warnings) == ((), ())


def test_a_score_that_its_noise_makes_meaningless_is_warned_of() -> None:
    """0.84 ± 0.20 fitted without a word. The noise_mu that the warning names is enough."""
    asked, pays = {"on": "holdout", "metrics": ["accuracy"]}, {"target_epsilon": 4.0}
    made = check(spec_of(privacy=pays, evaluation=asked | {"noise_mu": 0.05}), facts(held_out=100))
    (warning,) = made.warnings
    assert warning.startswith("accuracy is released with noise of about ± 0.2, too much to tell models apart")
    assert warning.endswith("noise_mu = 0.5 gives ± 0.02")
    enough = asked | {"noise_mu": 0.5}
    assert check(spec_of(privacy=pays, evaluation=enough), facts(held_out=100)).warnings == ()


@pytest.mark.parametrize(
    ("epsilon", "held_out", "says"),
    [
        (0.1, 300, "at this ε it is at least ± "),
        (1.0, 300, "noise_mu = "),
        (100.0, 1, "too few records score it, no ε up to 100 gives ± 0.05"),
    ],
)
def test_a_meaningless_score_names_what_would_do_and_that_does(epsilon: float, held_out: int, says: str) -> None:
    """At ε = 0.1 the warning asked for a noise_mu that cost ε = 30."""

    def at(epsilon: float, noise_mu: float) -> tuple[str, ...]:
        evaluation = {"on": "holdout", "metrics": ["accuracy"], "noise_mu": noise_mu}
        asked = spec_of(privacy={"target_epsilon": epsilon}, evaluation=evaluation)
        return check(asked, facts(held_out=held_out)).warnings

    (warning,) = at(epsilon, 0.01)
    assert f": {says}" in warning
    if (named := re.search(r"noise_mu = ([\d.]+)", warning)) is not None:
        assert at(epsilon, float(named[1])) == ()
    if (named := re.search(r"takes ε = ([\d.]+)", warning)) is not None:
        enough = 1.01 * float(named[1])  # it has two digits
        (warning,) = at(enough, 0.01)
        (mu,) = re.findall(r"noise_mu = ([\d.]+)", warning)
        assert at(enough, float(mu)) == ()


CYCLIC = {"kind": "cyclic", "batches": 20}


def test_cyclic_batches_have_a_public_plan() -> None:
    made = check(spec_of(sampling=CYCLIC, length={"epochs": 2.5}), facts())
    assert (made.steps, made.expected_batch_size, made.sample_rate) == (50, 400, 1.0)
    assert made.pricing is not None and made.pricing.training.cycle == 20 and made.pricing.training.participations == 3
    with pytest.raises(InvalidRequest, match="at most as many batches"):
        check(spec_of(sampling=CYCLIC), facts(train=19))


@pytest.mark.parametrize(
    ("sampling", "decay", "warned"),
    [(CYCLIC, 0.9, False), (CYCLIC, 0.95, True), ({"kind": "full_batch"}, 0.5, True)],
)
def test_correlated_noise_that_gains_little_is_warned_of(sampling: dict[str, Any], decay: float, warned: bool) -> None:
    """A step's noise is taken back within 1/(1 − λ) steps: a record should not take part again before."""
    noise = {"kind": "correlated", "decay": decay}
    made = check(spec_of(sampling=sampling, noise=noise, optimizer={"kind": "dp_sgd", "learning_rate": 1.0}), facts())
    assert any("gains little" in each for each in made.warnings) is warned


def test_a_largest_batch_is_priced_at_the_enforced_bound() -> None:
    sampling = {"kind": "poisson", "expected_batch_size": 80, "largest_batch": 240}
    made = check(spec_of(sampling=sampling, length={"steps": 100}, evaluation=None), facts(privacy=RDP))
    assert made.pricing is not None and made.pricing.training.truncation is not None
    assert made.pricing.training.truncation.records == 2 * 8000 + 64
    rows = made.work.numerics.rows_per_pass
    assert made.work.numerics.filling == pytest.approx(1.0 - 80 / (-(-240 // rows) * rows))


@pytest.mark.parametrize(
    ("batch", "largest", "says"),
    [(80, 2 * 8000 + 65, "at most that many"), (80, 10**15, "at most that many"), (8000, 8000, "leave")],
)
def test_a_largest_batch_that_cuts_nothing_is_refused(batch: int, largest: int, says: str) -> None:
    sampling = {"kind": "poisson", "expected_batch_size": batch, "largest_batch": largest}
    with pytest.raises(InvalidRequest, match=says) as refused:
        check(spec_of(sampling=sampling, length={"steps": 100}, evaluation=None), facts(privacy=RDP))
    assert refused.value.members["errors"][0]["pointer"] == "/sampling/largest_batch"


def test_a_largest_batch_at_the_bound_has_a_price() -> None:
    sampling = {"kind": "poisson", "expected_batch_size": 80, "largest_batch": 2 * 8000 + 64}
    made = check(spec_of(sampling=sampling, length={"steps": 100}, evaluation=None), facts(privacy=RDP))
    assert made.pricing is not None and price(made.pricing).epsilon is not None
