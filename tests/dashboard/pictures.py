"""Renews docs/img/dashboard-*.png from the scene that the tests use: `python -m tests.dashboard.pictures`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from app.db.engine import Database
from app.db.migrate import upgrade
from tests.dashboard.conftest import CHROMIUM_ARGUMENTS, api_process, make_home
from tests.dashboard.scene import Scene, everything

FOLDER = Path(__file__).parents[2] / "docs" / "img"
WIDTH = 1180
HEIGHTS = {"jobs": 660, "job": 830, "dataset": 830}


def main() -> None:
    """Writes a picture of the list of jobs, of a job and of a data set."""
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.db"
        upgrade(f"sqlite:///{template}")
        settings = make_home(Path(folder) / "home", template)
        db = Database.of(settings)
        scene = Scene(db, settings)
        ids = everything(scene)
        db.close()
        paths = {"jobs": "", "job": f"/jobs/{ids.succeeded}", "dataset": f"/datasets/{ids.reviews}"}
        with api_process(settings.home, Path(folder) / "out") as (url, _pid):
            take(url, scene.admin.token, paths)


def take(url: str, token: str, paths: dict[str, str]) -> None:
    """Takes the upper part of each page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_ARGUMENTS)
        page = browser.new_context(base_url=url).new_page()
        page.goto("/dashboard/login")
        page.get_by_label("API key").fill(token)
        page.get_by_role("button", name="Sign in").click()
        for name, path in paths.items():
            page.set_viewport_size({"width": WIDTH, "height": HEIGHTS[name]})
            page.goto(f"/dashboard{path}")
            if name != "jobs":
                page.locator(".chart canvas").first.wait_for()
            page.wait_for_timeout(500)
            page.screenshot(path=FOLDER / f"dashboard-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
