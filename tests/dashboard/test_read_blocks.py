"""The list, a job's page and its quote say which blocks it reads, also where that is `first` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene
from tests.dashboard.test_manage import Page, add_block, month, registered
from tests.factories import job_spec

Whole = tuple[Scene, Everything]
CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.1}, "evaluation": None}


def submit(browser: Browser, scene: Scene, dataset: str, **changes: Any) -> str:
    headers = {"Authorization": f"Bearer {scene.owner.token}", "Idempotency-Key": str(changes)}
    answer = browser.client.post("/v1/jobs", json=job_spec(dataset, **CHEAP | changes), headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_each_view_names_them(whole: Whole, signed_in: Callable[[str], Browser]) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    dataset = registered(browser, scene, "read", 130_000)
    early = submit(browser, scene, dataset)
    assert "It reads 210 declared records" in browser.get(f"/dashboard/jobs/{early}").text
    assert "(210)" not in browser.get(f"/dashboard?dataset={dataset}").text
    assert add_block(Page(browser, dataset), "2026-10", month(131_000)).status_code == 200
    both, alone = submit(browser, scene, dataset, name="both"), submit(browser, scene, dataset, blocks=["first"])
    assert "reads the blocks 2026-10 (200), first (210)" in browser.get(f"/dashboard/jobs/{both}").text
    assert "reads the blocks first (210)" in browser.get(f"/dashboard/jobs/{alone}").text
    listed = browser.get(f"/dashboard?dataset={dataset}").text
    assert "2026-10 (200), first (210)" in listed and ">first (210)<" in listed
