"""The caption under a metric's chart says how that number was released."""

from __future__ import annotations

import re
from collections.abc import Callable

from app.lifecycle.job_events import Part
from core.contracts.stored_documents import Number
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Scene


def captions(visit: Callable[[], Browser], scene: Scene, job: str) -> dict[str, str]:
    """Chart's name → caption."""
    browser = visit()
    browser.sign_in(scene.analyst)
    text = browser.get(f"/dashboard/jobs/{job}").text
    charts = re.findall(r"<figure>(.*?)<figcaption>(.*?)</figcaption>", text, re.DOTALL)
    return {found[0]: caption for chart, caption in charts for found in [re.findall(r"([\w:]+) by training", chart)]}


def test_scores_by_group_are_not_said_to_be_the_clipping_norm(visit: Callable[[], Browser], scene: Scene) -> None:
    evaluation = {"on": "holdout", "noise_mu": 0.05, "groups": {"rare": [0], "common": [1]}}
    clipping = {"kind": "adaptive", "max_grad_norm": 1.0}
    job = scene.job(scene.dataset("reviews"), "by group", evaluation=evaluation, clipping=clipping)
    log = scene.start(job)
    scene.step(log, 50)
    score = {"name": "accuracy", "step": 50, "value": 0.8, "std": 0.01, "on": "holdout", "released_by": "noisy_count"}
    parts = [Part(name=f"accuracy:{group}", value=0.7, std=0.02) for group in ("rare", "common")]
    log.record_metric(Number.model_validate(score), parts)
    norm = {
        "name": "clipping_norm",
        "step": 50,
        "value": 0.5,
        "std": 0.0,
        "on": "train",
        "released_by": "post_processing",
    }
    log.record_metric(Number.model_validate(norm))
    said = captions(visit, scene, job)
    assert set(said) == {"accuracy", "accuracy:rare", "accuracy:common", "clipping_norm"}
    assert "The clipping norm C" in said.pop("clipping_norm")
    assert not any("clipping norm" in each for each in said.values())
    assert all("same noisy sums" in said[f"accuracy:{group}"] for group in ("rare", "common"))


def test_a_selection_s_page_says_what_it_is(visit: Callable[[], Browser], scene: Scene) -> None:
    """Its rate is no part of a noisy sum, and no other accountant has a figure for it."""
    hpo = {
        "strategy": "random_size",
        "distribution": {"kind": "poisson", "mean": 4.0},
        "most_runs": 12,
        "duration_s": 1,
        "space": {"learning_rate": [0.1, 10.0]},
    }
    evaluation = {"on": "holdout", "noise_mu": 0.05, "points": 1, "metrics": ["accuracy"]}
    job = scene.job(scene.dataset("selected", filter="rdp"), "selection", evaluation=evaluation, hpo=hpo)
    log = scene.start(job)
    scene.step(log, 50)
    scene.release(log, 50, 0.8)
    rate = {"name": "learning_rate", "step": 50, "value": 0.5, "std": 0.0, "on": "train"}
    log.record_metric(Number.model_validate(rate | {"released_by": "post_processing"}))
    said = captions(visit, scene, job)
    assert "best of a secret number of runs" in said["learning_rate"]
    browser = visit()
    browser.sign_in(scene.analyst)
    text = browser.get(f"/dashboard/jobs/{job}").text
    assert "12 are computed" in text and "nothing of the other runs" in text
    assert "a bound, at the best order" in text and "Other accountants" not in text
