"""The client's wheel alone, in a fresh environment with what it depends on and nothing of the service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cli.conftest import Cli
from tests.deploy.test_wheel import LEFT, ROOT, built
from tests.worker.test_load_model import same
from tests.worker.test_predicting import CASES, message
from worker.predicting.predict import predicted

MOST_BYTES = 40 * 2**20
SMALLEST = (
    "import json, sys, scrimp; print(json.dumps(scrimp.load_model(sys.argv[1]).predict(json.loads(sys.argv[2]))))"
)


def needed(names: list[str]) -> Iterator[Distribution]:
    """The distributions of these requirements and all that they require, without extras, as they are installed here."""
    seen: set[str] = set()
    while names:
        name = Requirement(names.pop()).name.lower()
        if name not in seen:
            seen.add(name)
            found = distribution(name)
            yield found
            wanted = map(Requirement, found.requires or [])
            names += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]


def bare() -> dict[str, str]:
    """This environment, without what points to this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SCRIMP"))}


class Environment:
    """A virtual environment without pip: distributions are linked from this one."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        (self.site,) = folder.glob("lib/python*/site-packages")
        self.python, self.bytes = folder / "bin" / "python", 0

    def link(self, *names: str, site: Path | None = None) -> None:
        """Links distributions into its folder of packages, or into another one, which it does not see by itself: a
        package as a whole, with its compiled modules, and what packages share file by file."""
        for each in needed(list(names)):
            for file in each.files or []:
                path, package = (Path(str(each.locate_file(name))) for name in (file, file.parts[0]))
                if ".." in file.parts or not path.is_file():
                    continue
                whole = (package / "__init__.py").is_file()
                target = (site or self.site) / (package.name if whole else file)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    target.symlink_to(package if whole else path)
                self.bytes += path.stat().st_size if site is None and path.suffix != ".pyc" else 0

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-I", *arguments]
        return subprocess.run(
            command, env=bare() | variables, cwd=self.site, capture_output=True, text=True, timeout=300, check=False
        )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("alone")
    made = Environment(folder / "venv")
    requirements = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]["dependencies"]
    made.link(*requirements)
    wheel = built(folder, "client", "scrimp_client")
    made.bytes += wheel.stat().st_size
    command = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, str(wheel)], check=True, timeout=300, env=bare(), cwd=folder)
    return made


@pytest.fixture(scope="module")
def with_numpy(alone: Environment) -> str:
    """What a program begins with to see numpy, which the client alone does not have."""
    site = alone.site.parent / "numpy-packages"
    alone.link("numpy", site=site)
    return f"import sys; sys.path.append({str(site)!r}); "


def scrimp(alone: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return alone.run(str(alone.python.with_name("scrimp")), *arguments)


def test_it_is_small_and_has_nothing_of_the_service(alone: Environment) -> None:
    assert alone.bytes < MOST_BYTES, f"{alone.bytes / 2**20:.1f} MiB"
    names = ("app", "core", "worker", "scrimp_server", "numpy")
    tried = f"import importlib.util as u; print([name for name in {names} if u.find_spec(name)])"
    assert alone.run("-c", tried).stdout.strip() == "[]"
    assert alone.run("-c", "import scrimp; print(scrimp.__file__)").stdout.startswith(str(alone.site))
    assert (alone.site / "scrimp" / "py.typed").exists()


def test_its_help_lists_the_client_s_commands_alone(alone: Environment) -> None:
    done = scrimp(alone, "--help")
    assert done.returncode == 0, done.stderr
    assert "jobs" in done.stdout and "certificates" in done.stdout and "serve" not in done.stdout


@pytest.mark.parametrize("command", ["serve", "worker", "secrets"])
def test_a_command_of_the_service_says_what_to_install(alone: Environment, command: str) -> None:
    done = scrimp(alone, command, "--home", "/nowhere")
    assert (done.returncode, done.stderr.strip()) == (
        1,
        f"scrimp {command}: only the client is installed here; for the service: pip install scrimp",
    )


def test_it_submits_a_job(alone: Environment, cli: Cli, job_file: str) -> None:
    done = scrimp(alone, "jobs", "submit", job_file, "--url", cli.url, "--key", cli.key, "--json")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    assert cli.json("jobs", "show", job["id"])["status"] == "queued"
    refused = scrimp(alone, "quote", cli.file("wrong.json", {"dataset": "small"}), "--url", cli.url, "--key", cli.key)
    assert refused.returncode == 1 and "/privacy" in refused.stderr


def test_what_is_missing_is_named(alone: Environment, tmp_path: Path) -> None:
    message(tmp_path, "linear")
    program = f"import scrimp\ntry:\n    scrimp.load_model({str(tmp_path)!r})\nexcept ImportError as e:\n    print(e)"
    said = alone.run("-c", program).stdout.strip()
    assert said == "load_model needs numpy: pip install 'scrimp-client[model]'"
    certificate = tmp_path / "certificate.json"
    signed = {"certificate": {}, "signature": "", "public_key": "", "algorithm": "Ed25519"}
    certificate.write_text(json.dumps(signed))
    done = scrimp(alone, "certificates", "verify", str(certificate))
    assert done.returncode == 1 and "pip install 'scrimp-client[verify]'" in done.stderr


@pytest.mark.parametrize("name", ["linear", "table", "text", "relu"])
def test_a_linear_model_or_mlp_needs_numpy_alone(
    alone: Environment, with_numpy: str, tmp_path: Path, name: str
) -> None:
    asked, _ = message(tmp_path, name)
    done = alone.run("-c", with_numpy + SMALLEST, str(tmp_path), json.dumps(CASES[name][4]))
    assert done.returncode == 0, done.stderr
    assert same(json.loads(done.stdout), predicted(asked.model_copy(update={"top": 10})))


def test_another_model_needs_the_worker_s_code(alone: Environment, with_numpy: str, tmp_path: Path) -> None:
    message(tmp_path, "ratings")
    done = alone.run("-c", with_numpy + SMALLEST, str(tmp_path), "[]")
    assert done.returncode == 1 and "a model of kind 'matrix_factorization' needs the worker's code" in done.stderr
    assert "pip install 'scrimp[worker]'" in done.stderr


def test_a_source_archive_holds_the_package(alone: Environment, tmp_path: Path) -> None:
    """The package lies outside the project's folder; the archive makes the same wheel."""
    source = tmp_path / "source"
    for name in ("client", "scrimp"):
        shutil.copytree(ROOT / name, source / name, ignore=LEFT)
    program = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=source / "client", check=True, timeout=300, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        packed.extractall(tmp_path / "archive", filter="data")
    (archive,) = (tmp_path / "archive").iterdir()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    subprocess.run([*command, str(archive)], check=True, timeout=300, env=bare())
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if name.startswith("scrimp/")}
    assert held == {str(path.relative_to(alone.site)) for path in (alone.site / "scrimp").rglob("*") if kept(path)}


def kept(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def test_both_distributions_have_one_version() -> None:
    client, service = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("client", ".")
    )
    assert client["version"] == service["version"]
    assert f"scrimp-client[attack]=={client['version']}" in service["dependencies"]
