"""The charts of two classes: in [0, 1], drawable, and shown on the page of a job that released a histogram."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from app.dashboard.two_classes import COSTS, two_classes
from app.lifecycle.job_events import Part
from core.contracts.metrics import ReleasedHistogram
from core.contracts.stored_documents import Number
from core.privacy.score_histogram import BINS, EDGES, cells_of, tree_sums
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Scene

SCORE = {"name": "auc", "step": 50, "value": 0.8, "std": 0.02, "on": "holdout", "released_by": "noisy_count"}


def released(noise_std: float) -> ReleasedHistogram:
    """Of 4,000 records, 16 % of them positive."""
    generator = np.random.default_rng(0)
    labels = generator.random(4000) < 0.16
    bins = np.searchsorted(EDGES, generator.standard_normal(4000) + 1.5 * labels - 2.0)
    counts = np.array([np.bincount(bins[labels == each], minlength=BINS) for each in (False, True)])
    noise = noise_std * generator.standard_normal(counts.shape)
    cells = cells_of(tree_sums(counts) + noise).flatten().tolist()
    return ReleasedHistogram(cells=tuple(cells), noise_std=noise_std)


@pytest.mark.parametrize("noise_std", [0.0, 4.0, 400.0])
def test_every_point_and_band_lies_between_0_and_1(noise_std: float) -> None:
    histogram = released(noise_std)
    found = two_classes(histogram, 50, "holdout", ["no", "yes"])
    for chart in found.charts:
        line = chart.lines[0]
        for point in line.points:
            assert point.low is not None and point.high is not None
            assert 0.0 <= point.low <= point.y <= point.high <= 1.0 and 0.0 <= point.x <= 1.0
            assert chart.x.low < point.x < chart.x.high and chart.y.low < point.low and point.high < chart.y.high
        places = [each.x for each in line.points]
        assert places == sorted(set(places))  # a line has one y at each x
    assert [each.cost for each in found.thresholds] == list(COSTS)
    assert (found.positive, found.exact) == ("yes", noise_std == 0.0)


def test_a_job_s_page_shows_its_curves_and_thresholds(visit: Callable[[], Browser], scene: Scene) -> None:
    job = scene.job(scene.dataset("patients"), "risk", evaluation={"noise_mu": 0.15, "metrics": ["loss", "auc"]})
    plain = scene.job(scene.dataset("reviews"), "plain")
    for each in (job, plain):
        log = scene.start(each)
        scene.step(log, 50)
        if each == job:
            parts = [Part(name="accuracy", value=0.84, std=0.01), Part(name="recall", value=0.3, std=0.02)]
            loss = {"name": "loss", "value": 0.4, "released_by": "noisy_sum"}
            log.record_metric(Number.model_validate(SCORE | loss))
            log.record_metric(Number.model_validate(SCORE | {"histogram": released(4.0)}), parts)
        scene.finish(log)
    browser = visit()
    browser.sign_in(scene.analyst)
    page = browser.get(f"/dashboard/jobs/{job}").text
    charts = {name: json.loads(html.unescape(text)) for name, text in CHART.findall(page)}
    assert {"scores-roc", "scores-reliability", "curve-auc", "curve-loss", "curve-recall"} <= set(charts)
    assert next(name for name in charts if name.startswith("curve-")) == "curve-auc", "the answer's, not the first's"
    assert len(charts["scores-roc"]["lines"][0]["points"]) > 50
    assert "a histogram of scores by class on the hold-out part" in page and "Thresholds by cost" in page
    assert "which was charged: all this costs nothing more" in page and "the noise and the draw" in page
    listed = browser.get("/dashboard").text
    assert all(f">{name}<" in listed for name in ("auc", "accuracy")) and ">recall<" not in listed
    assert "Thresholds by cost" not in browser.get(f"/dashboard/jobs/{plain}").text


CHART = re.compile(r"<div class=\"chart\" id=\"([\w:-]+)\"[^>]*data-chart='([^']*)'")


def test_the_api_gives_the_histogram_with_the_list_of_numbers_alone(visit: Callable[[], Browser], scene: Scene) -> None:
    job = scene.job(scene.dataset("patients"), "risk", evaluation={"noise_mu": 0.25})
    log = scene.start(job)
    scene.step(log, 50)
    log.record_metric(Number.model_validate(SCORE | {"histogram": released(4.0)}))
    browser = visit()
    headers = {"Authorization": f"Bearer {scene.analyst.token}"}
    found = {path: browser.client.get(f"/v1/jobs/{job}{path}", headers=headers) for path in ("", "/metrics", "/events")}
    (number,) = found["/metrics"].json()["items"]
    assert number["histogram"] == json.loads(released(4.0).model_dump_json())
    assert "cells" not in found[""].text and '"auc"' in found[""].text
    assert "cells" not in found["/events"].text and '"auc"' in found["/events"].text
