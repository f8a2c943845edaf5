"""The wheel alone, in a fresh environment with what it depends on, and nothing of the service."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.architecture.walls import graph
from tests.cli.test_client_alone import Environment
from tests.deploy.test_wheel import LEFT, ROOT

PARTS = ("engine", "core", "worker", "scrimp")
REQUIRED = ("torch", "numpy", "cryptography", "mpmath", "pydantic", "dp-accounting", "scipy")
OF_SERVICE = ("app", "core", "worker", "sqlalchemy", "celery", "fastapi", "httpx", "opacus", "typer", "pyarrow")
TRAINS = """
import torch, sys
from torch import nn
from scrimp import engine
torch.manual_seed(0)
x = torch.randn(600, 10)
data = x, (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
asked = engine.Settings(optimizer=engine.DpAdam(learning_rate=0.02), batch_size=60)
done = engine.train(model, nn.CrossEntropyLoss(reduction="none"), data, target_epsilon=8, delta=1e-5, steps=40,
                    settings=asked)
assert float((model(data[0]).argmax(1) == data[1]).double().mean()) > 0.8
from scrimp.engine.rooms.worker.noise.native import NATIVE
print(done.report.epsilon.value <= 8, NATIVE is not None, "rooms" in type(done.report.epsilon).__module__)
print([name for name in %r if name in sys.modules])
"""


def build(folder: Path, source: Path, kind: str) -> Path:
    program = f"import setuptools.build_meta as b; b.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, timeout=300, capture_output=True)
    return next(folder.glob("scrimp_engine-*.whl" if kind == "wheel" else "scrimp_engine-*.tar.gz"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=LEFT)
    for made in folder.rglob("*.so"):
        made.unlink()
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a source archive, as pip makes it on a machine for which there is none."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(build(folder, source / "engine", "sdist")) as packed:
        packed.extractall(folder / "inside", filter="data")
    (inside,) = (folder / "inside").iterdir()
    return build(folder, inside, "wheel")


@pytest.mark.slow
def test_it_trains_where_nothing_of_the_service_is(wheel: Path, tmp_path: Path) -> None:
    alone = Environment(tmp_path / "alone")
    shutil.unpack_archive(wheel, alone.site, "zip")
    alone.link(*REQUIRED)
    done = alone.run("-c", TRAINS % (OF_SERVICE,))
    assert done.returncode == 0, done.stderr
    compiled = any("libscrimp" in name for name in zipfile.ZipFile(wheel).namelist())
    assert done.stdout.split("\n")[:2] == [f"True {compiled} True", "[]"]


def test_what_it_requires_is_what_was_linked() -> None:
    project = tomllib.loads((ROOT / "engine" / "pyproject.toml").read_text())["project"]
    assert [each.partition(">")[0] for each in project["dependencies"]] == list(REQUIRED)
    service = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == service["version"]


@pytest.mark.nightly  # by day the archive's wheel trains, above, and has every module that is imported, below
def test_a_source_archive_makes_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    names = []
    for each in (wheel, build(tmp_path, source / "engine", "wheel")):
        with zipfile.ZipFile(each) as packed:
            names.append({name for name in packed.namelist() if "dist-info" not in name})
    assert names[0] == names[1]


def test_the_wheel_s_text_is_the_repository_s(wheel: Path) -> None:
    """But for the names of rooms: one engine."""
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if "/rooms/" in name and name.endswith(".py")]
        texts = {name: packed.read(name).decode() for name in names}
    assert len(texts) > 100
    for name, text in texts.items():
        path = ROOT / name.removeprefix("scrimp/engine/rooms/")
        own = path.read_text() if path != ROOT / "__init__.py" else ""
        assert text.replace("scrimp.engine.rooms.", "") == own, name
    modules = {name.removeprefix("scrimp/engine/rooms/").removesuffix(".py").replace("/", ".") for name in names}
    modules = {name.removesuffix(".__init__") for name in modules}
    imported = graph().find_upstream_modules("scrimp.engine", as_package=True)
    assert {name for name in imported if name.startswith(("core", "worker"))} <= modules


def test_no_path_of_imports_leads_to_the_service() -> None:
    imports = graph()
    everything = imports.find_upstream_modules("scrimp.engine", as_package=True)
    assert not any(name.startswith(("worker.attempt", "worker.messages", "worker.tasks")) for name in everything)
    packages = {name.partition(".")[0] for name in everything} - sys.stdlib_module_names
    required = {name.replace("-", "_") for name in REQUIRED} | {"pydantic_core"}
    assert packages <= required | {"core", "worker"}
