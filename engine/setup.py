"""Builds `scrimp.engine` with the service's modules that it imports: the same text, as `scrimp.engine.rooms`.

`core` and `worker` are names that a user's own project may have, and a service may be installed beside. So the wheel
holds them under one name: imports of them are renamed in the copies, and nothing else is.
"""

import ast
import importlib.util
import re
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
# A source archive has the packages inside; in the repository they lie beside this folder.
ROOT = HERE / "sources" if (HERE / "sources").is_dir() else HERE.parent
PACKAGE, ROOMS, NATIVE = "scrimp.engine", ("core", "worker"), Path("core") / "native"
IMPORT = re.compile(r"^(\s*from )((?:core|worker)(?:\.[\w.]+)?)( import )", flags=re.MULTILINE)


def modules():
    """The path of every module that the package needs, by what they import: {name: path}."""
    found, names = {}, [f"{PACKAGE}.{each.stem}" for each in (ROOT / "scrimp" / "engine").glob("*.py")]
    while names:
        name = names.pop().removesuffix(".__init__")
        path = _path(name)
        if name in found or path is None:
            continue
        found[name] = path
        names += [*_imported(path), *([name.rpartition(".")[0]] if name.split(".")[0] in ROOMS and "." in name else [])]
    return found


def _path(name):
    at = ROOT.joinpath(*name.split("."))
    return next((path for path in (at.with_suffix(".py"), at / "__init__.py") if path.is_file()), None)


def _imported(path):
    for node in _at_runtime(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import) and any(each.name.split(".")[0] in ROOMS for each in node.names):
            raise RuntimeError(f"{path} imports a room by its name: `from … import …` can be renamed")
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in (*ROOMS, "scrimp"):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _at_runtime(node):
    """All nodes but those under `if TYPE_CHECKING`."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _at_runtime(child)


def renamed(text):
    """The text with its imports of rooms from inside the package."""
    return IMPORT.sub(rf"\1{PACKAGE}.rooms.\2\3", text)


@cache
def compiled():
    """The compiled parts of a step and their compiler; None if no compiler works: then the wheel is pure Python."""
    script = importlib.util.spec_from_file_location("native_build", ROOT / NATIVE / "build.py")
    build = importlib.util.module_from_spec(script)
    sys.modules[script.name] = build  # for its dataclass
    script.loader.exec_module(build)
    folder = tempfile.TemporaryDirectory(prefix="scrimp-build-")
    compiler = build.build(Path(folder.name) / build.LIBRARY.name)
    return None if compiler is None else (folder, Path(folder.name) / build.LIBRARY.name, compiler)


class Build(build_py):
    """Copies the modules, and the compiled parts with the C files that they were built from."""

    def run(self):
        if self.editable_mode:
            raise RuntimeError("in the repository scrimp.engine needs no installation: install the service with -e")
        base = Path(self.build_lib) / "scrimp" / "engine"
        for name, path in modules().items():
            inside = path.relative_to(ROOT)
            target = base / "rooms" / inside if name.split(".")[0] in ROOMS else Path(self.build_lib) / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
        (base / "rooms" / "__init__.py").touch()
        (base / "py.typed").touch()
        for path in (ROOT / NATIVE).glob("*.[ch]"):
            shutil.copy(path, base / "rooms" / NATIVE / path.name)
        if (made := compiled()) is None:
            self.warn("no C compiler works here: a step will be made in Python, slower and with the same bits")
        else:
            shutil.copy(made[1], base / "rooms" / NATIVE / made[1].name)


class Engine(Distribution):
    """Has modules that setuptools does not look for. As the service's, platform-dependent if the library was built."""

    def has_pure_modules(self):
        return True

    def has_ext_modules(self):
        return not {"egg_info", "dist_info"}.issuperset(self.commands) and compiled() is not None


class Wheel(bdist_wheel):
    """Tagged for any Python 3: ctypes opens the library."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        made = compiled()
        return (python, abi, platform) if made is None else ("py3", "none", made[2].platform_tag or platform)


class Archive(sdist):
    """A source archive with the modules inside."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [each for each in files if not each.startswith("..")])
        inside = Path(base_dir) / "sources"
        for path in (*modules().values(), *(ROOT / NATIVE).glob("*.[ch]"), ROOT / NATIVE / "build.py"):
            target = inside / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


setup(distclass=Engine, cmdclass={"build_py": Build, "bdist_wheel": Wheel, "sdist": Archive})
