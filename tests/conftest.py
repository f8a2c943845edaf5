"""Shared fixtures: a migrated home of its own for each test, and the API over it."""

from __future__ import annotations

import gc
import importlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient
from httpx import create_ssl_context
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from sqlalchemy import create_engine
from typer.main import get_command

from app.db.database import Database
from app.db.migrate import upgrade
from app.keys import service as keys
from app.main import create_app
from app.sandbox import limited as sandbox
from app.sandbox.processes import loading
from app.secrets import ensure_secrets, load_secret
from app.settings import Settings, get_settings
from tests import servers, spread, warm

if TYPE_CHECKING:
    from worker.attempt.fork_server import ForkServer

# Here and in what tests start, nothing reaches another machine. Imported by one name in all of them.
GUARD = str(Path(__file__).parent / "guard")
sys.path.insert(0, GUARD)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (GUARD, os.environ.get("PYTHONPATH"))))
loopback = importlib.import_module("loopback")
loopback.install()

# After so long a service gives up, here and in what tests start: a slow or busy machine is no fault. A test of such a
# limit sets it.
LIMITS = ("PRICING_TIME", "PREDICTION_TIME", "PARSE_WAIT", "BODY_TIME", "HEAD_TIME")
os.environ |= {f"SCRIMP_{limit}_S": "300" for limit in LIMITS}

BACKINGS = ("sqlite", "postgres")
YOUNG = 1_000_000  # objects that a test may have made before the first of them count as old
NEVER = 2**31 - 1  # collections of the young after which Python looks at all: its own choice falls within a test
WHOLE = 500  # tests between two looks at all objects

# By day the same examples each time; by night (--hypothesis-profile night) others, of which those that fail are kept.
# No outcome depends on how fast the machine is. Both begin at hypothesis's default: without a parent they would begin
# at its profile for CI where CI is in the environment, which draws the same examples each night.
EXAMPLES = Path(__file__).resolve().parents[1] / ".hypothesis" / "examples"
BOTH = hypothesis.settings(
    hypothesis.settings.get_profile("default"), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("day", BOTH, derandomize=True, database=None)
hypothesis.settings.register_profile("night", BOTH, print_blob=True, database=DirectoryBasedExampleDatabase(EXAMPLES))
hypothesis.settings.load_profile("day")


def constants_of_modules(found: Callable[[], Constants] = providers._get_local_constants) -> Constants:
    """What hypothesis draws now and then: constants of the modules that are loaded. By day none, as those depend on the
    tests that ran before."""
    return Constants() if hypothesis.settings().derandomize else found()


providers._get_local_constants = constants_of_modules


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and tests within them, in this seed's order")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m attack` reads the files that have such tests alone: reading all takes ten seconds."""
    if config.getoption("markexpr") != "attack" or collection_path.suffix != ".py":
        return None
    return True if "pytest.mark.attack" not in collection_path.read_text() else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    from tests import by_night  # which imports this module

    config.stash[by_night.COVERED] = by_night.mark(items)  # before `-m` looks at the marks
    seed = config.getoption("shuffle")
    if seed is not None:  # before pytest puts together what shares a fixture's parameter
        items.sort(key=partial(spread.shuffled, seed))
    yield
    if seed is None and hasattr(config, "workerinput"):  # among several workers
        spread.longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """The modules and thousands of tests live until the end: looking for garbage among them took four seconds."""
    with loading():
        collected = yield
    gc.set_threshold(10_000, YOUNG // 10_000, NEVER)
    return collected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[object]:
    """A command of the service sets the mask of its process: the next test's files would be closed to other users."""
    mask = os.umask(0o022)
    os.umask(mask)
    done = yield
    os.umask(mask)
    return done


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return spread.make_scheduler(config, log)


def pytest_unconfigure() -> None:
    """pytest looks for garbage five times at its end: once is enough."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names the tests that were not run because there is no GPU."""
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if "no CUDA device" in str(each.longrepr)]
    names = sorted({each.nodeid.partition("[")[0] for each in skipped})
    if names:
        terminalreporter.write_line(f"Not run, as there is no CUDA device (make gpu): {', '.join(names)}")


@pytest.fixture(autouse=True)
def its_garbage() -> Iterator[None]:
    """What a test leaves unclosed is an error of that test, not of the one during which garbage is next collected.

    Torn down last. The young generations hold what the test made, up to YOUNG objects; what is older is looked at
    between tests alone, as a collection of all within a test makes its garbage old.
    """
    yield
    gc.collect(1)
    if gc.get_count()[2] > WHOLE:
        gc.collect()


@pytest.fixture(autouse=True)
def settings_of_commands() -> Iterator[None]:
    """A command of the service turns its options into settings of its process, as of all that it starts: they would be
    those of the next test's services, too."""
    before = settings_here()
    yield
    for name, _ in settings_here() - before:
        del os.environ[name]
    os.environ.update(before)
    get_settings.cache_clear()


def settings_here() -> set[tuple[str, str]]:
    """Names and values in the environment."""
    return {each for each in os.environ.items() if each[0].startswith("SCRIMP_")}


@pytest.fixture(autouse=True)
def same_chance() -> None:
    """What draws without a seed of its own draws the same, whichever tests ran before."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:  # `torch.manual_seed` notes its callers for a GPU not yet in use, which takes a millisecond
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def loopback_only(its_garbage: None) -> Iterator[None]:
    """Fails a test that tried to reach another machine, also where something swallowed the refusal."""
    loopback.refused.clear()
    yield
    assert loopback.refused == []


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """An interrupted run leaves no process behind."""
    with servers.none_left():
        yield


@pytest.fixture(scope="session", autouse=True)
def warm_pricing() -> Iterator[None]:
    """Services of this process price and parse with real helper processes, which go from one service to the next."""
    with pytest.MonkeyPatch.context() as patch:
        kept = warm.Warm(sandbox.source)
        patch.setattr("app.sandbox.limited.source", kept)
        yield
    kept.end()


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Engines of this process share their compiled SQL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.db.database.create_engine", warm.Compiled(create_engine))
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_once() -> Iterator[None]:
    """`scrimp …` in this process parses with one tree of commands: Typer makes it anew for each call, in 24 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def authorities_once() -> Iterator[None]:
    """Clients of httpx share what they trust: each would read all authorities' certificates, in 20 ms, to ask http:."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_event_loop() -> Iterator[None]:
    """For the requests of all clients whose lifespan is not entered: a loop for each request doubles what it costs."""
    with start_blocking_portal() as portal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestClient, "portal", portal)
        yield


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """The product's fork server, one for all tests of this process: loading torch anew takes three seconds."""
    from tests.worker.support import forks  # loads torch

    return forks


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One real PostgreSQL for the session: the URL of its own database."""
    with servers.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Redis]:
    """One real Redis for the session. A test that kills one starts another of its own."""
    with servers.redis() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[servers.S3]:
    """One real S3 server for the session."""
    with servers.s3() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: servers.S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket of the test's own; this process has the credentials."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.bucket()


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> str:
    """The name of an empty database at the newest migration: a TEMPLATE for each test's own."""
    url = servers.new_database(postgres_server)
    upgrade(url)
    return servers.database_name(url)


@pytest.fixture
def postgres_url(postgres_server: str, migrated_postgres: str) -> Iterator[str]:
    """A migrated PostgreSQL database of the test's own."""
    url = servers.new_database(postgres_server, migrated_postgres)
    yield url
    servers.drop_database(postgres_server, url)


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest migration: copied for each test."""
    path = tmp_path_factory.mktemp("template") / "scrimp.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def backing() -> str:
    """Which database the test runs on. Folders whose tests are to pass on both give this fixture two parameters."""
    return "sqlite"


@pytest.fixture(scope="session")
def secrets_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Secrets that were made once: copied for each test, as making them waits for the disk six times."""
    made = Settings(home=tmp_path_factory.mktemp("secrets"))
    ensure_secrets(made)
    return made.effective_secrets_dir


@pytest.fixture(scope="session")
def first_settings() -> Settings:
    """Read from the environment once; a test's own are a copy."""
    return Settings(allowed_hosts=["testserver", "127.0.0.1"])


@pytest.fixture
def settings(
    tmp_path: Path, backing: str, secrets_made: Path, first_settings: Settings, request: pytest.FixtureRequest
) -> Settings:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    url = ""
    if backing == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        shutil.copy(request.getfixturevalue("migrated_database"), home / "scrimp.db")
    made = first_settings.model_copy(update={"home": home, "database_url": url})
    shutil.copytree(secrets_made, made.effective_secrets_dir)
    return made


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    database = Database.of(settings)
    yield database
    database.close()


class Api:
    """The API in this process, and a key of each role."""

    def __init__(self, client: TestClient, tokens: dict[str, str], key_ids: dict[str, str]) -> None:
        self.client, self.tokens, self.key_ids = client, tokens, key_ids

    def headers(self, role: str, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"} | more


@pytest.fixture
def api(settings: Settings, db: Database) -> Iterator[Api]:
    tokens, ids = {}, {}
    with db.write() as session:
        for role in ("admin", "owner", "analyst"):
            key, token = keys.create(
                session, load_secret(settings, "api_key_pepper"), name=role, role=role, created_by=None
            )
            tokens[role], ids[role] = token, key.id
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield Api(client, tokens, ids)
