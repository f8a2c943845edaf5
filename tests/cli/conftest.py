"""The real API on a real port, without relay and worker: jobs stay queued."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from app.db.engine import Database
from app.db.migrate import upgrade
from app.keys.service import ensure_admin_key
from app.main import create_app
from app.secrets import ensure_secrets
from app.settings import Settings
from scrimp.cli import app
from tests.e2e.conftest import csv_spec, job_of, write_csv


class Cli:
    """Runs `scrimp …` in this process against one service."""

    def __init__(self, url: str, key: str, folder: Path) -> None:
        self.url, self.key, self.folder = url, key, folder

    def __call__(self, *arguments: str, url: str | None = None, key: str | None = None) -> Result:
        connection = ["--url", url or self.url, "--key", key or self.key]
        return CliRunner().invoke(
            app, [*arguments, *connection], env={"COLUMNS": "200", "SCRIMP_HOME": str(self.folder)}
        )

    def bare(self, *arguments: str) -> Result:
        """A command that calls no service."""
        return CliRunner().invoke(app, list(arguments))

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def file(self, name: str, document: Any) -> str:
        path = self.folder / name
        path.write_text(json.dumps(document))
        return str(path)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("cli")
    settings = Settings(home=folder / "home", webhooks_allow_private=["127.0.0.0/8"], webhooks_ports=[])
    settings.home.mkdir(mode=0o700)
    ensure_secrets(settings)
    upgrade(settings.effective_database_url)
    db = Database.of(settings)
    key = ensure_admin_key(db, settings).read_text().strip()
    db.close()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Cli(f"http://127.0.0.1:{listening.getsockname()[1]}", key, folder)
        server.should_exit = True
        thread.join(15)


@pytest.fixture(scope="module")
def dataset(cli: Cli) -> str:
    """A private data set with a cap of ε = 8, by its name."""
    data = write_csv(cli.folder / "data.csv", rows=2000)
    spec = cli.file("dataset.json", csv_spec("small"))
    result = cli("datasets", "add", spec, "--file", str(data))
    assert result.exit_code == 0, result.output
    return "small"


@pytest.fixture
def job_file(cli: Cli, dataset: str) -> str:
    cheap = {"privacy": {"target_epsilon": 0.5}, "evaluation": {"noise_mu": 0.05}}
    return cli.file("job.json", job_of(dataset, name="one", **cheap))
