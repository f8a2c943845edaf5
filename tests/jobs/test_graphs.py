"""Jobs on graphs: what a node's reach costs, and which jobs have no price."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError
from scipy.integrate import quad
from scipy.stats import norm

from app.admission.facts import DatasetFacts
from app.admission.job_rules import Checked, check
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from core.privacy.mechanism import MechanismConfig, TrainingMechanism
from core.privacy.price_requests import PlanRequest
from core.privacy.pricing import price
from core.privacy.releases import NoisyScore
from tests.factories import dataset_spec, job_spec
from tests.jobs.test_planning import facts

NODES = {"kind": "nodes", "columns": ["a", "b"], "keep": 8}
LINEAR: dict[str, Any] = {"kind": "linear"}
GCN: dict[str, Any] = {"kind": "gcn", "hops": 1, "neighbours": 4}
RATE = {"optimizer": {"kind": "dp_sgd", "learning_rate": 0.5}}


def nodes(**changes: Any) -> DatasetFacts:
    return facts(width=2, **({"features": NODES} | changes))


def checked(model: dict[str, Any], of: DatasetFacts | None = None, **changes: Any) -> Checked:
    spec = JobSpec.model_validate(job_spec("ds_x", model=model, **(RATE | changes)))
    return check(spec, (of or nodes()).seen_by(spec.model))


def scores_of(model: dict[str, Any]) -> tuple[NoisyScore, ...]:
    asked = checked(model, evaluation={"on": "holdout", "noise_mu": 0.5}).pricing
    assert asked is not None
    return tuple(each for each in asked.releases if isinstance(each, NoisyScore))


def plan(model: dict[str, Any], **changes: Any) -> PlanRequest:
    found = checked(model, **changes).pricing
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "reach", "width"),
    [
        (GCN, 9, 4),
        (GCN | {"neighbours": 1}, 3, 4),
        (GCN | {"hops": 2, "hidden": [8]}, 41, 24),
        ({"kind": "linear"}, 1, 2),
        ({"kind": "mlp", "hidden": [3]}, 1, 2),
    ],
)
def test_each_record_is_clipped_to_its_part_of_what_a_node_moves(model: dict[str, Any], reach: int, width: int) -> None:
    found = plan(model)
    assert found.training.reach == reach and found.training.terms_per_unit == reach
    assert [each.noise_std for each in scores_of(model)] == [reach * each.noise_std for each in scores_of(LINEAR)]
    assert checked(model).facts.features == width
    assert ("reach" in found.model_dump(mode="json")["training"]) == (reach > 1)


def test_the_price_is_the_gaussian_of_sensitivity_c_and_not_of_the_reach() -> None:
    """Reach and price are apart: what a unit moves is C either way, by the clip."""
    prices = [price(plan(each, evaluation=None)) for each in ({"kind": "linear"}, GCN)]
    assert prices[0].epsilon == prices[1].epsilon and prices[0].charge == prices[1].charge


def test_the_price_is_an_integral_of_the_real_sum() -> None:
    """ε, δ of T steps whose sums differ by reach · C / reach in norm, at noise σ C: by numerical integration."""
    found = price(plan(GCN, evaluation=None, length={"steps": 20}, privacy={"noise_multiplier": 5.0}))
    training = MechanismConfig.model_validate(found.mechanism).training
    c = 2.0 * training.max_grad_norm / training.terms_per_unit
    moved = 0.5 * c + 4 * c  # its own gradient, and those of four readers, which turn round
    mu = moved * math.sqrt(20) / (training.noise_multiplier * training.max_grad_norm)
    assert found.epsilon is not None
    epsilon = found.epsilon.value

    def excess(x: float) -> float:
        return max(0.0, float(norm.pdf(x - mu)) - math.exp(epsilon) * float(norm.pdf(x)))

    assert quad(excess, epsilon / mu, mu + 12, epsabs=1e-14)[0] == pytest.approx(found.epsilon.delta, rel=1e-3)


def test_a_mechanism_with_a_reach_refuses_what_its_price_does_not_cover() -> None:
    stored = price(plan(GCN)).mechanism
    training = MechanismConfig.model_validate(stored).training
    poisson = {"sampling": "poisson", "sample_rate": 0.1}
    with pytest.raises(ValidationError, match="not drawn"):
        TrainingMechanism.model_validate(training.model_dump() | poisson)


@pytest.mark.parametrize(
    ("model", "changes", "of", "pointer", "says"),
    [
        (GCN, {"sampling": {"kind": "poisson", "expected_batch_size": 100}}, {}, "/sampling", "does not draw"),
        (GCN, {"clipping": {"kind": "adaptive", "max_grad_norm": 1.0}}, {}, "/clipping/kind", "changes several"),
        (GCN, {"audit": {"canaries": 100}}, {}, "/audit", "no node reads them"),
        (GCN | {"neighbours": 9}, {}, {}, "/model/neighbours", "keeps 8"),
        (GCN, {}, {"features": {"kind": "columns", "columns": ["a", "b"]}}, "/model/kind", "`nodes`"),
    ],
)
def test_what_has_no_price_is_refused_by_name(
    model: dict[str, Any], changes: dict[str, Any], of: dict[str, Any], pointer: str, says: str
) -> None:
    private = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "rdp"}
    with pytest.raises(InvalidRequest, match=says) as refused:
        checked(model, nodes(**({"privacy": private} | of)), **changes)
    assert refused.value.members["errors"][0]["pointer"] == pointer


def test_trees_that_no_memory_holds_are_refused() -> None:
    wide = NODES | {"columns": [f"c{at}" for at in range(5_000)]}
    with pytest.raises(InvalidRequest, match="fewer `neighbours`"):
        checked(GCN, nodes(features=wide))
    assert checked({"kind": "linear"}, nodes(features=wide)).pricing is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"features": NODES | {"node": "a"}}, "different columns"),
        ({"features": NODES | {"tree": {"hops": 1, "neighbours": 2}}}, "leave it out"),
        ({"task": {"kind": "classification", "label": "neighbours", "classes": [0, 1]}}, "id or its list"),
        ({"features": NODES | {"keep": 65}}, "64"),
    ],
)
def test_declarations_that_mean_no_graph(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DatasetSpec.model_validate(dataset_spec(**({"features": NODES} | changes)))


def test_two_hops_need_what_the_first_makes() -> None:
    with pytest.raises(ValidationError, match="two `hops`"):
        JobSpec.model_validate(job_spec("ds_x", model={"kind": "gcn", "hops": 2}))
