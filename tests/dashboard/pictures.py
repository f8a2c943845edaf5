"""Renews docs/img/dashboard-*.png from the scene that the tests use: `python -m tests.dashboard.pictures`.

With `--heights` it prints how high each page is instead, on a phone, a
laptop and a large screen; with `--axe` which rules of axe-core each page
breaks there, by day and by night, with all that it folds unfolded.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from app.db.database import Database
from app.db.migrate import upgrade
from tests.dashboard.conftest import CHROMIUM_ARGUMENTS, api_process, make_home
from tests.dashboard.scene import Scene, everything
from tests.dashboard.test_axe import FILLED, findings, settled

FOLDER = Path(__file__).parents[2] / "docs" / "img"
WIDTH = 1280
WIDTHS = (375, 1280, 1920)
UNFILLED = "[data-once] > p.muted"  # with "…": a part that fills itself and did not yet
COLOURS = 128  # of a picture's palette: a third of the bytes
HEIGHTS = {"jobs": 660, "job": 830, "dataset": 830}


def main() -> None:
    """Writes a picture of the list of jobs, of a job and of a data set; or prints the heights of the pages."""
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.db"
        upgrade(f"sqlite:///{template}")
        settings = make_home(Path(folder) / "home", template)
        db = Database.of(settings)
        scene = Scene(db, settings)
        ids = everything(scene)
        db.close()
        paths = {"jobs": "", "job": f"/jobs/{ids.succeeded}", "dataset": f"/datasets/{ids.reviews}"}
        with api_process(settings.home, Path(folder) / "out") as (url, _pid), signed_in(url, scene.admin.token) as page:
            of_dataset = {each: f"{paths['dataset']}/{each}" for each in ("budgets", "manage", "statement")}
            more = (
                paths | of_dataset | {"new job": "/submit", "register": "/register", "keys": "/keys", "usage": "/usage"}
            )
            if "--heights" in sys.argv:
                measure(page, more)
            elif "--axe" in sys.argv:
                examine(page, more)
            else:
                take(page, paths)


@contextmanager
def signed_in(url: str, token: str) -> Iterator[Any]:
    """A page of a browser that prefers light colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_ARGUMENTS)
        page = browser.new_context(base_url=url, color_scheme="light").new_page()
        page.goto("/dashboard/login")
        page.get_by_label("API key").fill(token)
        page.get_by_role("button", name="Sign in").click()
        yield page
        browser.close()


def take(page: Any, paths: dict[str, str]) -> None:
    """Takes the upper part of each page."""
    for name, path in paths.items():
        page.set_viewport_size({"width": WIDTH, "height": HEIGHTS[name]})
        page.goto(f"/dashboard{path}")
        if name != "jobs":
            page.locator(".chart canvas").first.wait_for()
        page.wait_for_timeout(500)
        taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        taken.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"dashboard-{name}.png", optimize=True)


def measure(page: Any, paths: dict[str, str]) -> None:
    """Prints the height of each page at each width, and where it is wider than the screen."""
    for name, path in paths.items():
        cells = []
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if page.goto(f"/dashboard{path}").status != 200:
                cells.append("none")
                continue
            expect(page.locator(UNFILLED, has_text=re.compile("^…$"))).to_have_count(0, timeout=60_000)
            whole = page.evaluate("[document.documentElement.scrollHeight, document.documentElement.scrollWidth]")
            cells.append(f"{whole[0]:,}" + (" wide" if whole[1] > width else ""))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def examine(page: Any, paths: dict[str, str]) -> None:
    """Prints the rules of axe-core that each page breaks at each width, by day and by night."""
    for name, path in paths.items():
        cells = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"/dashboard{path}")
                settled(page, FILLED)
                page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
                broken = {each.partition(":")[0] for each in findings(page)}
                cells.append(", ".join(sorted(broken)) or "none")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
