"""The real API on a real port, without relay and worker: jobs stay queued."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.db.database import Database
from app.keys.service import ensure_admin_key
from app.secrets import ensure_secrets
from app.settings import Settings
from scrimp.cli import app
from tests.e2e.conftest import csv_spec, job_of, write_csv
from tests.listening import listening


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
def cli(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("cli")
    settings = Settings(home=folder / "home", webhooks_allow_private=["127.0.0.0/8"], webhooks_ports=[])
    settings.home.mkdir(mode=0o700)
    ensure_secrets(settings)
    shutil.copy(migrated_database, settings.home / "scrimp.db")
    db = Database.of(settings)
    key = ensure_admin_key(db, settings).read_text().strip()
    db.close()
    with listening(settings) as url:
        yield Cli(url, key, folder)


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
