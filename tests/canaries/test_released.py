"""What the audit plants, and how it reads what comes back."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from core.contracts.dataset_spec import DatasetSpec
from core.contracts.metrics import AUC_PARTS
from core.privacy import events, gdp
from core.privacy.filters import filter_of
from scrimp.audit import planting
from scrimp.audit.audited_kinds import KINDS, QUICK, SCORE_MU, SCORE_POINTS, USER_RECORDS, Kind, chosen
from scrimp.audit.planting import CAP, FILLERS, LOSS_BOUND, ORDER, distinct_words, plant
from scrimp.audit.released import charged_scores_mu, read_tensor, scores_of, uncharged
from scrimp.audit.run import SHARING, Audit
from scrimp.client import Client
from scrimp.models import OF_AUC, MetricPoint

BY_NAME = {kind.name: kind for kind in KINDS}


def test_kinds_are_chosen_by_name() -> None:
    assert [kind.name for kind in chosen("quick")] == list(QUICK)
    assert chosen("all") == list(KINDS)
    assert [kind.name for kind in chosen("users, dp_sgd,users")] == ["users", "dp_sgd"]
    with pytest.raises(ValueError, match="no kind 'adam'"):
        chosen("dp_sgd,adam")


def test_every_optimizer_clip_sampling_and_score_has_a_kind() -> None:
    from app.catalogue.optimizer_kinds import CATALOGUE

    assert {kind.optimizer["kind"] for kind in KINDS} == set(CATALOGUE)
    assert {kind.clipping["kind"] for kind in KINDS} == {"flat", "automatic", "adaptive", "per_layer"}
    assert {kind.sample_rate < 1.0 for kind in KINDS} == {True, False}
    assert {kind.metric for kind in KINDS if kind.of_scores} == {"accuracy", "loss"}
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_all_tests_of_a_run_together_fail_as_often_as_said() -> None:
    audit = Audit(Client(), list(KINDS), 8000, 1e-3)
    weights = sum(kind.comparable for kind in KINDS)
    guessed = sum(kind.of_presence for kind in KINDS)
    tests = 2 * 5 * (len(KINDS) - guessed) + 2 * guessed + weights * (weights - 1) / 2
    assert audit.level * tests == pytest.approx(1e-3)


def test_words_are_where_the_service_hashes_them() -> None:
    from sklearn.feature_extraction.text import HashingVectorizer  # two seconds

    words, places = zip(*(pair for pair, _ in zip(distinct_words(512), range(300), strict=False)), strict=True)
    vectorizer = HashingVectorizer(n_features=512, binary=True, alternate_sign=False, norm="l2")
    assert vectorizer.transform(words).indices.tolist() == list(places)
    assert len(set(places)) == 300


@pytest.mark.parametrize("name", ["dp_sgd", "users", "score loss", "score loss of users"])
def test_a_planted_data_set_can_be_registered_and_holds_the_canaries_that_are_in(name: str, tmp_path: Path) -> None:
    planted = plant(BY_NAME[name], "planted", 400, tmp_path, np.random.default_rng(8))
    spec = DatasetSpec.model_validate(planted.spec)
    assert 0.3 < planted.inside.mean() < 0.7 and len(planted.places) == len(planted.inside)
    assert not set(planted.places.tolist()) & set(planted.decoys.tolist()) or BY_NAME[name].of_scores
    if planted.file.suffix == ".npz":
        x = np.load(planted.file)["x"]
        assert np.flatnonzero(x.sum(axis=0)).tolist() == planted.places[planted.inside].tolist()
        return
    with planted.file.open() as file:
        rows = [row for row in csv.DictReader(file) if row["text"].startswith("canary")]
    each = USER_RECORDS + 2 if spec.privacy.unit == "user" else 1
    assert len(rows) == each * int(planted.inside.sum())


def test_jobs_that_share_a_data_set_fit_its_cap() -> None:
    def price(kind: Kind) -> int:
        twice = 2 if kind.optimizer.get("variant") == "extra_query" else 1
        return twice * rdp.charge_event(events.noisy_sums(kind.sample_rate, kind.noise_multiplier, kind.steps))

    rdp = filter_of("rdp", ORDER)
    costly = sorted((price(kind) for kind in KINDS if kind.layout != "array" and not kind.of_scores), reverse=True)
    assert sum(costly[:SHARING]) < rdp.budget(**CAP)
    assert gdp.mu_from_epsilon(CAP["epsilon"], CAP["delta"]) ** 2 > SCORE_POINTS * SCORE_MU**2


def test_a_tensor_is_read_without_torch(tmp_path: Path) -> None:
    values = {"weight": np.arange(6, dtype=np.float32).reshape(1, 6), "mean": np.ones(2), "n": np.arange(2)}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(values, path)
    assert read_tensor(path, "weight").tolist() == [0, 1, 2, 3, 4, 5]
    assert read_tensor(path, "mean").tolist() == [1.0, 1.0]
    for name in ("n", "bias"):
        with pytest.raises(ValueError, match=name):
            read_tensor(path, name)


def certificate(**changes: Any) -> dict[str, Any]:
    release = {"what": "loss", "account": "holdout", "noise_mu": 3.0, "sensitivity": LOSS_BOUND, "times": 2}
    gaussian = {"kind": "gaussian", "noise_multiplier": 1 / 3.0}
    tree = {"kind": "composed", "events": [{"kind": "self_composed", "count": 2, "event": gaussian}]}
    body: dict[str, Any] = {
        "mechanism": {"releases": [release | {"records_per_unit": 1, "cutoff": None}]},
        "events": {"train": {"kind": "composed", "events": []}, "holdout": tree},
        "filter": {"kind": "gdp"},
        "charge": {"train": 0, "holdout": 18 * 10**12 + 1},
    }
    return body | changes


def point(name: str, step: int, **changes: Any) -> MetricPoint:
    values = {"value": 1.0, "std": 0.1, "on": "holdout", "released_by": "noisy_sum"}
    return MetricPoint.model_validate({"name": name, "step": step} | values | changes)


def released(inside: float, rest: float, noise: float, bound: float) -> dict[str, float]:
    """A score as the worker makes it of two noisy sums."""
    from worker.metrics.scores import _ratio

    value, std = _ratio(inside, rest, noise, bound)
    return {"value": value, "std": std, "released_by": "post_processing"}


@pytest.mark.parametrize("name", ["score loss", "score loss of users", "score accuracy"])
def test_a_score_gives_its_noisy_sums_back(name: str) -> None:
    kind: Kind = BY_NAME[name]
    accuracy, k = kind.metric == "accuracy", USER_RECORDS if kind.layout == "users" else 1
    bound = 1.0 if accuracy else LOSS_BOUND
    changes = {"what": kind.metric, "sensitivity": bound, "records_per_unit": k, "noise_mu": 3.0}
    body = certificate(mechanism={"releases": [changes]})
    noise, base = bound * k / 3.0, FILLERS * bound / 2.0
    sums = (0.4, FILLERS + 0.7) if accuracy else (base + 0.7 * bound * k, base - 0.2)
    metrics = [point(f"{kind.metric}:g7", 3, **released(*sums, noise, bound)), point(kind.metric, 3), point("x:g1", 3)]
    (found,) = scores_of(kind, body, metrics).items()
    assert found[0] == 7 and found[1] == [pytest.approx(0.7)]


def test_what_was_paid_for_is_nothing_to_report() -> None:
    metrics = [point("loss", 1), point("loss", 2), point("loss:g1", 2, released_by="post_processing")]
    body = certificate()
    assert uncharged(body, metrics, body["charge"]) == []
    assert charged_scores_mu(BY_NAME["score loss"], body, metrics) == pytest.approx(3.0)


def test_rmse_is_part_of_the_release_that_gives_r_squared() -> None:
    body = certificate()
    body["mechanism"]["releases"][0] |= {"what": "r_squared", "sensitivity": 2.0**0.5}
    metrics = [point("r_squared", 2), point("rmse", 2, released_by="post_processing")]
    assert uncharged(body, metrics, body["charge"]) == []
    assert uncharged(body, metrics[1:], body["charge"]) == ["rmse at step 2 is part of no score"]


def test_what_comes_with_auc_was_paid_for_with_it() -> None:
    assert OF_AUC == AUC_PARTS
    release = {"what": "auc", "sensitivity": 1.0, "times": 2}
    body = certificate(mechanism={"releases": [certificate()["mechanism"]["releases"][0] | release]})
    parts = [point(name, 2, released_by="post_processing") for name in OF_AUC]
    assert uncharged(body, [point("auc", 2), *parts], body["charge"]) == []
    alone = uncharged(body, [point("auc", 1), *parts], body["charge"])
    assert len(alone) == len(OF_AUC) and all("is part of no score" in each for each in alone)


def test_an_uncharged_score_is_named_and_leaves_the_others_less() -> None:
    body = certificate()
    thrice = [point("loss", step) for step in (1, 2, 3)]
    assert uncharged(body, thrice, body["charge"]) == ["loss on holdout was released 3 times, and charged for 2"]
    assert charged_scores_mu(BY_NAME["score loss"], body, thrice) == pytest.approx(np.sqrt(6.0))
    others = {
        "has no such score": point("accuracy", 1, released_by="noisy_count"),
        "the certificate's mechanism has": point("loss", 1, on="train"),
        "is exact": point("loss", 2, released_by="public_data", std=0.0),
        "is part of no score": point("loss:g1", 3, released_by="post_processing"),
    }
    for words, metric in others.items():
        assert words in uncharged(body, [metric], body["charge"])[0]
    assert uncharged(body, [point("clipping_norm", 4, released_by="post_processing")], body["charge"]) == []


def test_a_bill_that_lacks_a_release_is_named() -> None:
    cheap = certificate(events={"train": {"kind": "composed", "events": []}, "holdout": None})
    assert "its events hold 0" in uncharged(cheap, [], cheap["charge"])[0]
    body = certificate()
    less = {"train": 0, "holdout": 10**12}
    assert [each.split(",")[0] for each in uncharged(body, [], less)] == [
        "the ledger charged holdout 1000000000000",
        "the ledger's entry differs from the certificate's charge",
    ]


def test_canaries_of_an_array_are_fewer(tmp_path: Path) -> None:
    planted = plant(BY_NAME["center"], "array", 4000, tmp_path, np.random.default_rng(9))
    assert len(planted.places) == planting.MOST_IN_ARRAY < 4000
