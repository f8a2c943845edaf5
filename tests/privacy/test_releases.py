"""Released statistics: one tuple in memory, version 1's members in JSON."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from core.privacy import gdp
from core.privacy.mechanism import MechanismConfig
from core.privacy.releases import NoisyCount, NoisyHistogram, NoisyMean, NoisySum, Release

TRAINING = {
    "sampling": "full_batch",
    "sample_rate": 1.0,
    "steps": 10,
    "noise_multiplier": 5.0,
    "max_grad_norm": 1.0,
    "clipping": "flat",
    "adaptive": None,
    "delayed": None,
    "expected_batch_size": 100,
    "records_per_unit": 1,
}
SCORE = {
    "what": "loss",
    "account": "holdout",
    "noise_mu": 0.05,
    "sensitivity": 2.0,
    "times": 3,
    "records_per_unit": 1,
    "records": 20,
    "groups": {},
    "ranks": None,
    "cutoff": None,
}
STORED: dict[str, Any] = {
    "version": 1,
    "unit": "example",
    "relation": "add_or_remove_one",
    "target_delta": 1e-5,
    "training": TRAINING,
    "releases": [SCORE],
    "frequencies": {"noise_mu": 0.1, "max_items": 9},
    "mean": {"noise_mu": 0.2, "max_norm": 3.0, "records": 100},
}
COUNT = NoisyCount(account="train", noise_mu=0.5, records=10, times=4)
EXAMPLES = {
    "accuracy": COUNT,
    "auc": NoisyCount(what="auc", account="train", noise_mu=0.5, records=10, times=4),
    "loss": NoisySum(what="loss", account="holdout", noise_mu=0.5, sensitivity=2.0, records=10, times=4),
    "frequencies": NoisyHistogram(noise_mu=0.5, max_items=9),
    "mean": NoisyMean(noise_mu=0.5, max_norm=2.0, records=10),
}


def test_version_1_is_read_into_one_tuple_and_written_as_it_was() -> None:
    config = MechanismConfig.model_validate(STORED)
    assert [each.what for each in config.releases] == ["frequencies", "mean", "loss"]
    assert (config.before, config.scores) == (config.releases[:2], config.releases[2:])
    assert json.dumps(config.model_dump(mode="json")) == json.dumps(STORED)
    assert MechanismConfig.model_validate_json(config.model_dump_json()) == config
    bare = STORED | {"frequencies": None, "mean": None}
    assert MechanismConfig.model_validate(bare).model_dump(mode="json") == bare


def test_what_a_mechanism_is_made_from_in_memory_is_what_is_read_back() -> None:
    read = MechanismConfig.model_validate(STORED)
    made = MechanismConfig(target_delta=read.target_delta, training=read.training, releases=read.releases)
    assert made == read


@pytest.mark.parametrize(
    "wrong",
    [
        {"releases": [{"what": "mean", "noise_mu": 0.2, "max_norm": 3.0, "records": 100}]},
        {"releases": [SCORE | {"what": "means"}]},
        {"means": None},
        {"mean": {"noise_mu": 0.2, "max_norm": 3.0, "record": 100}},
        {"mean": [0.2]},
        {"frequencies": {"noise_mu": 0.1, "max_items": 9, "max_norm": 1.0}},
    ],
)
def test_what_version_1_does_not_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MechanismConfig.model_validate(STORED | wrong)


def test_every_release_has_an_example() -> None:
    classes = get_args(get_args(Release)[0])
    assert {type(each) for each in EXAMPLES.values()} == set(classes)


@pytest.mark.parametrize("what", EXAMPLES)
def test_each_knows_its_event_its_account_its_line_and_its_noise(what: str) -> None:
    """The noise over the sensitivity is what its event says."""
    release = EXAMPLES[what]
    assert release.what == what and release.account in ("train", "holdout")
    assert release.line == {"frequencies": "frequencies", "mean": "mean"}.get(what, "evaluation")
    times = 4 if what in ("accuracy", "auc", "loss") else 1
    assert gdp.mu_of_event(release.event) == pytest.approx(math.sqrt(times) * release.sensitivity / release.noise_std)
