"""The event tree is built from the stored mechanism, and accountants are pure functions of it."""

from __future__ import annotations

import json

import dp_accounting as dp
import pytest

from core.errors import PrivacyError
from core.privacy import events, pld, rdp
from core.privacy.events import Leaf
from core.privacy.mechanism import MechanismConfig
from tests.privacy.support import DELTA, paper_jobs


def mechanism(sampling: str, rate: float) -> MechanismConfig:
    return MechanismConfig.model_validate(
        {
            "target_delta": DELTA,
            "training": {
                "sampling": sampling,
                "sample_rate": rate,
                "steps": 50,
                "noise_multiplier": 2.0,
                "max_grad_norm": 1.0,
                "clipping": "flat",
                "expected_batch_size": 100,
            },
            "releases": [{"what": "accuracy", "account": "holdout", "noise_mu": 0.05, "times": 3, "records": 500}],
        }
    )


def test_full_batch_is_a_self_composed_gaussian() -> None:
    gaussian = {"kind": "gaussian", "noise_multiplier": 2.0}
    expected = {"kind": "composed", "events": [{"kind": "self_composed", "count": 50, "event": gaussian}]}
    assert mechanism("full_batch", 1.0).event("train").model_dump(mode="json") == expected


def test_poisson_is_a_self_composed_sampled_gaussian() -> None:
    event = mechanism("poisson", 0.01).event("train")
    sampled = {"kind": "poisson_sampled", "sample_rate": 0.01, "event": {"kind": "gaussian", "noise_multiplier": 2.0}}
    stored = {"kind": "composed", "events": [{"kind": "self_composed", "count": 50, "event": sampled}]}
    assert json.dumps(event.model_dump(mode="json")) == json.dumps(stored)
    assert events.read(json.loads(event.model_dump_json())) == event


def test_each_account_pays_for_what_touches_it() -> None:
    config = mechanism("poisson", 0.01)
    assert events.leaves(config.event("train")) == {Leaf(0.01, 2.0): 50}
    assert events.leaves(config.event("holdout")) == {Leaf(1.0, 20.0): 3}
    bare = config.model_copy(update={"releases": ()})
    assert bare.event("holdout") == events.composed([]) and bare.events.holdout is None


def test_the_dp_event_has_the_shape_of_the_tree() -> None:
    event = events.to_dp_event(mechanism("poisson", 0.01).event("train"))
    sampled = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(2.0))
    assert event == dp.ComposedDpEvent([dp.SelfComposedDpEvent(sampled, 50)])


@pytest.mark.parametrize("tree", [{"kind": "laplace"}, {"kind": "poisson_sampled", "event": {"kind": "laplace"}}, {}])
def test_an_unknown_event_is_never_priced(tree: dict[str, object]) -> None:
    with pytest.raises(PrivacyError):
        events.read(tree)


def test_a_misspelt_member_of_an_event_is_refused() -> None:
    with pytest.raises(PrivacyError):
        events.read({"kind": "gaussian", "noise_multiplier": 2.0, "sample_rate": 0.1})


def test_asking_twice_changes_nothing() -> None:
    """Libraries whose accountants accumulate have answered differently the second time."""
    tree = events.composed([paper_jobs(2.002), events.noisy_sums(1.0, 20.0, 3)])
    before = tree.model_dump_json()
    assert [pld.epsilon(tree, DELTA) for _ in range(2)] == [pld.epsilon(tree, DELTA)] * 2
    assert rdp.epsilon(tree, DELTA) == rdp.epsilon(tree, DELTA)
    assert tree.model_dump_json() == before


def test_composition_does_not_depend_on_how_it_is_written() -> None:
    one = events.composed([events.noisy_sums(0.01, 2.0, 30), events.noisy_sums(0.01, 2.0, 20)])
    nested = events.SelfComposed(count=5, event=events.composed([events.noisy_sums(0.01, 2.0, 10)]))
    assert events.leaves(one) == events.leaves(nested) == events.leaves(events.noisy_sums(0.01, 2.0, 50))
    assert pld.epsilon(one, DELTA) == pld.epsilon(nested, DELTA)
