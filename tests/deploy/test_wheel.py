"""An installed wheel does without the repository, and without torch where no worker runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.settings import Settings
from core.native import build, library
from core.native.build import LIBRARY, compilers
from scrimp_server.commands import service
from tests.conftest import GUARD

C_FILES = (*build.SOURCES, *build.FOLDER.glob("*.h"))
ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("alembic", "app", "client", "core", "scrimp", "scrimp_server", "worker"),
    *("pyproject.toml", "setup.py", "README.md", "LICENSE"),
)
LEFT = shutil.ignore_patterns("__pycache__", "build")
TORCHLESS = "raise ImportError('this installation has no torch')\n"


def built(folder: Path, project: str, name: str, **environment: str) -> Path:
    """Builds a project's wheel from a copy: a build leaves folders where it runs."""
    source = folder / "source"
    source.mkdir(parents=True)
    for part in SOURCES:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=LEFT)
        else:
            shutil.copy(ROOT / part, source / part)
    for made in source.rglob("*.so"):
        made.unlink()
    # What pip asks a project for, without its metadata before.
    program = f"import setuptools.build_meta as b; b.build_wheel({str(folder)!r})"
    command = [sys.executable, "-c", program]
    subprocess.run(
        command, cwd=source / project, check=True, timeout=300, env=os.environ | environment, capture_output=True
    )
    return next(folder.glob(f"{name}-*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"), ".", "scrimp")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what both wheels put into site-packages, and a torch that cannot be imported."""
    target = wheel.parent / "site"
    for each in (wheel, built(tmp_path_factory.mktemp("client"), "client", "scrimp_client")):
        with zipfile.ZipFile(each) as packed:
            packed.extractall(target)
    (target / "torch.py").write_text(TORCHLESS)
    return target


@pytest.fixture
def umask() -> Iterator[None]:
    """The usual one, which lets others read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_prepare_makes_a_home_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)  # others can enter it
    environment = os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{GUARD}", "SCRIMP_HOME": str(home)}
    line = [sys.executable, "-P", "-m", "scrimp.cli", "prepare"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (home / "admin.key").read_text().startswith("scrimp_key_")
    assert len((home / "signing_key.pub").read_text()) == 45
    readable = [str(path.relative_to(home)) for path in home.rglob("*") if path.stat().st_mode & 0o077]
    assert readable == []
    from_wheel = "import app, scrimp, sys; print(app.__file__, scrimp.__file__)"
    where = subprocess.run(
        [sys.executable, "-P", "-c", from_wheel],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert where.stdout.split() == [str(installed / name / "__init__.py") for name in ("app", "scrimp")]


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("name", ["api", "relay", "worker"])
def test_a_process_that_runs_alone_writes_for_itself_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIMP_HOME", str(tmp_path))
    monkeypatch.setattr(os, "execv", _become)
    with pytest.raises(Became) as became:
        getattr(service, name)(home=Settings().home)
    assert became.value.args == (0o077,)


class Became(Exception):
    """Where another program would run in this process, which then never returns: with its mask."""


def _become(_path: str, _line: list[str]) -> None:
    raise Became(os.umask(0o022))


HOOK = "from setuptools import build_meta; print('asks for', build_meta.get_requires_for_build_wheel())"
METADATA = "from setuptools import build_meta; print('has', build_meta.prepare_metadata_for_build_wheel('.'))"


def asked(folder: Path, hook: str, tools: Path) -> str:
    """What pip is told by a copy of the project that it is about to build, where `tools` are all there are."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for package in ("app", "core", "scrimp", "scrimp_server", "worker"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    shutil.copytree(ROOT / "core" / "native", folder / "core" / "native", ignore=LEFT)
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(tools)}
    command = [sys.executable, "-c", hook]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(find_spec("ziglang") is not None, reason="the package is installed here: it is the compiler")
@pytest.mark.parametrize(("path", "wanted"), [("with", "[]"), ("without", "['ziglang']")])
def test_a_build_without_a_compiler_fetches_one(tmp_path: Path, path: str, wanted: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    if path == "with":
        (tools / "cc").symlink_to("/bin/true")
    said = asked(tmp_path, HOOK, tools)
    assert f"asks for {wanted}" in said, said


@pytest.mark.skipif(find_spec("ziglang") is not None, reason="the package is installed here: it is the compiler")
@pytest.mark.parametrize(("hook", "says"), [(HOOK, "asks for []"), (METADATA, "has scrimp-")])
def test_what_pip_asks_before_a_build_is_told_without_compiling(tmp_path: Path, hook: str, says: str) -> None:
    """Compiling takes eight seconds, and pip asks each question in a process of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cc").write_text(f"#!/bin/sh\n: > {tmp_path}/compiled\n")
    (tools / "cc").chmod(0o755)
    said = asked(tmp_path, hook, tools)
    assert says in said and not (tmp_path / "compiled").exists(), said


def test_a_wheel_has_the_compiled_step(wheel: Path, installed: Path) -> None:
    """Built by whatever compiler there is, for any Python 3 on this kind of machine, and it loads."""
    if not compilers():
        pytest.skip("there is no C compiler")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    assert not list(installed.parent.rglob("*.data"))
    folder = installed / "core" / "native"
    assert all((folder / each.name).read_bytes() == each.read_bytes() for each in C_FILES)
    assert library.load(folder / LIBRARY.name) is not None


def test_without_a_compiler_a_wheel_is_pure_python(tmp_path: Path) -> None:
    if any(compiler.portable for compiler in compilers()):
        pytest.skip("this Python carries a compiler")
    pure = built(tmp_path, ".", "scrimp", PATH=str(tmp_path), CC="")
    assert pure.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(pure) as packed:
        names = packed.namelist()
    assert {f"core/native/{each.name}" for each in C_FILES} <= set(names)
    assert not [name for name in names if name.endswith(".so")]
