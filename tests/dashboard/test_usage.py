"""What jobs took in the browser: plots, a table, and the rows of GET /v1/usage as a file."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

from app.dashboard.chart import SERIES
from app.dashboard.usage_page import _charts
from app.usage.service import UsageRow, UsageView
from core.ids import now
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]


def row(month: str, **changes: Any) -> UsageRow:
    fields: dict[str, Any] = {"dataset": "ds_a", "dataset_name": "a", "team": "t", "key_id": None, "key_name": None}
    fields |= {"jobs": 1, "processor_s": 3600, "gpu_s": 0, "bytes": 10**6, "epsilon": 1.0, "delta": 1e-5, "share": 0.1}
    return UsageRow(month=month, **fields | changes)


def test_the_page_plots_and_lists_what_the_api_says(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser, month = signed_in("owner"), now().strftime("%Y-%m")
    sent = {"Authorization": f"Bearer {scene.owner.token}"}
    stated = browser.client.get("/v1/usage", headers=sent).json()
    mine = [each for each in stated["items"] if each["dataset"] == ids.reviews]
    assert mine and sum(each["jobs"] for each in mine) > 0 and any(each["epsilon"] for each in mine)
    page = browser.get("/dashboard/usage").text
    drawn = [json.loads(unescape(each)) for each in re.findall(r"data-chart='([^']*)'", page)]
    assert len(drawn) >= 2 and all(each["x"]["names"][-1] == month for each in drawn)
    assert page.count("<tr><td>20") == len(stated["items"])
    answer = browser.get("/dashboard/usage/usage.csv")
    assert answer.headers["content-type"].startswith("text/csv") and "usage-20" in answer.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [each["processor_s"] for each in lines] == [str(each["processor_s"]) for each in stated["items"]]
    assert "No job that you may see" in browser.get("/dashboard/usage?since=2020-01&until=2020-02&dataset=").text
    assert browser.get("/dashboard/usage?since=2026-13").status_code == 422
    assert browser.get("/dashboard/usage?dataset=nothing-like-it").status_code == 404


def test_the_smallest_are_a_line_together_but_for_epsilon() -> None:
    view = UsageView(
        since="2026-10",
        until="2026-11",
        items=[row("2026-11", team=f"t{k}", processor_s=3600 * (k + 1), epsilon=k + 1.0) for k in range(12)],
    )
    hours, files, epsilon = _charts(view)
    assert [each.name for each in (hours, files, epsilon)] == ["processor", "files", "epsilon"]
    assert [each.name for each in hours.lines] == [*(f"t{11 - k}" for k in range(7)), "5 more"]
    assert [each.y for each in hours.lines[-1].points] == [0.0, 1.0 + 2 + 3 + 4 + 5]
    assert [each.name for each in epsilon.lines] == [f"a, t{11 - k}" for k in range(len(SERIES))]
    assert hours.x.names == ["2026-10", "2026-11"]


def test_eight_have_a_line_each() -> None:
    items = [row("2026-11", team=f"t{k}") for k in range(len(SERIES))]
    hours = _charts(UsageView(since="2026-11", until="2026-11", items=items))[0]
    assert sorted(each.name for each in hours.lines) == [f"t{k}" for k in range(len(SERIES))]
