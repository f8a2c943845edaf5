"""What pyproject.toml cannot say: migrations beside `app.db`, and the compiled parts of a step in `core.native`."""

import importlib.util
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
LIBRARY = Path("core") / "native" / "libscrimp.so"


@cache
def native():
    """core/native/build.py, without the packages around it."""
    script = importlib.util.spec_from_file_location("native_build", ROOT / "core" / "native" / "build.py")
    build = importlib.util.module_from_spec(script)
    sys.modules[script.name] = build  # for its dataclass
    script.loader.exec_module(build)
    return build


@cache
def compiled():
    """The library and its compiler; None if no compiler works: then the wheel is pure Python."""
    build = native()
    folder = tempfile.TemporaryDirectory(prefix="scrimp-build-")
    compiler = build.build(Path(folder.name) / LIBRARY.name)
    return None if compiler is None else (folder, compiler)


class Build(build_py):
    """Builds the packages. A wheel has no folder outside its packages, so the migrations go into one."""

    def run(self):
        super().run()
        target = ROOT if self.editable_mode else Path(self.build_lib)
        if not self.editable_mode:
            migrations = target / "app" / "db" / "migrations"
            shutil.copytree(
                ROOT / "alembic", migrations, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        made = compiled()
        if made is None:
            self.warn("no C compiler works here: a step will be made in Python, slower and with the same bits")
            return
        beside = target / LIBRARY.with_suffix(".new")  # replaced at once: a running worker keeps its own
        shutil.copy(Path(made[0].name) / LIBRARY.name, beside)
        beside.replace(target / LIBRARY)


class Native(Distribution):
    """Platform-dependent if the library was built. It is not built for the questions that pip asks before."""

    def has_ext_modules(self):
        return not {"egg_info", "dist_info"}.issuperset(self.commands) and compiled() is not None


class Wheel(bdist_wheel):
    """Tagged for any Python 3: ctypes opens the library. `ziglang` builds it for every Linux since 2014."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        made = compiled()
        return (python, abi, platform) if made is None else ("py3", "none", made[1].platform_tag or platform)


# Where there is no compiler pip fetches one for the build: a package of 96 MiB, which it then drops.
setup(
    distclass=Native,
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    setup_requires=[] if native().compilers() else ["ziglang"],
)
