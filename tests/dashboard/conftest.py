"""The dashboard over a home of its own: in this process, and as a real server with a real browser in front of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.db.database import Database
from app.main import create_app
from app.secrets import ensure_secrets
from app.settings import Settings
from tests import servers
from tests.dashboard.scene import Everything, Key, Scene, everything
from tests.listening import listening

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]

VIEWPORT = {"width": 1280, "height": 800}
PATIENCE_MS = 300_000  # a slow machine answers late


class Browser:
    """A visitor without JavaScript: a client that signs in by the form, and keeps its cookies."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, url: str, **more: Any) -> httpx.Response:
        return self.client.get(url, **more)

    def sign_in(self, key: Key, following: str | None = None) -> httpx.Response:
        page = self.get("/dashboard/login")
        form = {"key": key.token, "csrf": token_of(page)} | ({"next": following} if following else {})
        return self.client.post("/dashboard/login", data=form)


def token_of(page: httpx.Response) -> str:
    """The CSRF token of a page's forms."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found is not None
    return found.group(1)


def make_home(home: Path, template: Path, **changes: Any) -> Settings:
    home.mkdir(mode=0o700)
    shutil.copy(template, home / "scrimp.db")
    made = Settings(home=home, allowed_hosts=["testserver", "127.0.0.1"], **changes)
    ensure_secrets(made)
    return made


@pytest.fixture
def scene(db: Database, settings: Settings) -> Scene:
    return Scene(db, settings)


@pytest.fixture
def visit(settings: Settings) -> Iterator[Callable[[], Browser]]:
    """Opens browsers on this test's home."""
    app = create_app(settings)
    yield lambda: Browser(TestClient(app, follow_redirects=False, raise_server_exceptions=True))
    app.state.pricing.close()
    app.state.db.close()


@pytest.fixture(scope="session")
def first_whole(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> tuple[Scene, Everything]:
    """A home with something of everything, made once and never touched again."""
    settings = make_home(tmp_path_factory.mktemp("first") / "home", migrated_database)
    db = Database.of(settings)
    scene = Scene(db, settings)
    ids = everything(scene)
    db.close()
    return scene, ids


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, first_whole: tuple[Scene, Everything]
) -> Iterator[tuple[Scene, Everything]]:
    """A copy of it, for tests that only look, or each at something else."""
    first, ids = first_whole
    home = tmp_path_factory.mktemp("whole") / "home"
    shutil.copytree(first.settings.home, home)
    settings = first.settings.model_copy(update={"home": home})
    db = Database.of(settings)
    yield first.copy(db, settings), ids
    db.close()


@pytest.fixture(scope="module")
def signed_in(whole: tuple[Scene, Everything]) -> Iterator[Callable[[str], Browser]]:
    """A browser that is signed in under a role."""
    scene, _ids = whole
    app = create_app(scene.settings)
    browsers: dict[str, Browser] = {}

    def of(role: str) -> Browser:
        if role not in browsers:
            browsers[role] = Browser(TestClient(app, follow_redirects=False))
            assert browsers[role].sign_in(getattr(scene, role)).status_code == 303
        return browsers[role]

    yield of
    app.state.pricing.close()
    app.state.db.close()


@pytest.fixture(scope="module")
def server(whole: tuple[Scene, Everything]) -> Iterator[str]:
    """The API on a real port, over the whole scene; its address."""
    with serving(whole[0].settings.home) as url:
        yield url


def serving(home: Path, **settings: Any) -> AbstractContextManager[str]:
    """The API on a real port over a home; its address."""
    return listening(Settings(home=home, **{"pricing_processes": 1} | settings))


@contextmanager
def api_process(home: Path, log: Path, **settings: str) -> Iterator[tuple[str, int]]:
    """The API as a process: its address and its id. `settings` are environment variables without their prefix."""
    port = servers.free_port()
    environment = os.environ | {"SCRIMP_HOME": str(home), "OMP_NUM_THREADS": "1", "SCRIMP_PORT": str(port)}
    environment |= {"SCRIMP_PRICING_PROCESSES": "1"}
    environment |= {f"SCRIMP_{name.upper()}": value for name, value in settings.items()}
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "scrimp_server.api"], env=environment, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 300
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(300)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A real Chromium, one for all files: a start costs three seconds."""
    with a_browser() as browser:
        yield browser


@contextmanager
def a_browser() -> Iterator[Any]:
    """A real Chromium. Where there is none the test is skipped, or fails if SCRIMP_REQUIRE_BROWSER=1.

    While it is there, this thread has an event loop: other tests of its folder call `asyncio.run` in another thread.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        reason = "no Chromium on this machine: apt install chromium"
        if os.environ.get("SCRIMP_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{reason} (SCRIMP_REQUIRE_BROWSER=1)")
        pytest.skip(reason)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def sessions() -> dict[str, Any]:
    """The cookies of the keys that signed in: who comes again sees no form, which saves half a second."""
    return {}


class Contexts:
    """Plain contexts of the browser, which tests use one after the other, each empty again.

    Each keeps a page of the service open, whose process the next page takes: to start one takes 0.6 s.
    """

    def __init__(self, chromium: Any, server: str) -> None:
        self.chromium, self.server = chromium, server
        self.idle: list[Any] = []

    def take(self) -> Any:
        if self.idle:
            return self.idle.pop()
        context = self.chromium.new_context(base_url=self.server, viewport=VIEWPORT)
        context.new_page().goto("/healthz")
        return context

    def give_back(self, context: Any) -> None:
        """Closes a test's pages, and forgets what they have stored."""
        first, *others = context.pages
        for page in others:
            page.close()
        stored = {"origin": self.server, "storageTypes": "all"}
        context.new_cdp_session(first).send("Storage.clearDataForOrigin", stored)
        context.clear_cookies()
        self.idle.append(context)


@pytest.fixture(scope="module")
def contexts(chromium: Any, server: str) -> Iterator[Contexts]:
    """The plain contexts of a module's tests."""
    own = Contexts(chromium, server)
    yield own
    for context in own.idle:
        context.close()


@pytest.fixture
def open_page(chromium: Any, contexts: Contexts, server: str, sessions: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """Opens a signed-in page, as a person of a role would; at the end no page may have complained about anything."""
    complaints: list[str] = []
    plain, others = [], []

    def open_(path: str, key: Key | None, **how: Any) -> Any:
        if how:
            context = chromium.new_context(base_url=server, **{"viewport": VIEWPORT} | how)
            others.append(context)
        else:
            context = contexts.take()
            plain.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(error.stack or str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda asked: None if asked.url.startswith(server) else complaints.append(asked.url))
        if key is not None and key.token in sessions:
            context.add_cookies(sessions[key.token])
        page.goto(path)
        if key is not None and "/dashboard/login" in page.url:
            page.get_by_label("API key").fill(key.token)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(f"{server}{path}")
            sessions[key.token] = context.cookies()
        return page

    yield open_
    for context in others:
        context.close()
    for context in plain:
        contexts.give_back(context)
    assert complaints == []
