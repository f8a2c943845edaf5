"""Puts the migrations of `alembic/` into the wheel, as `app/db/migrations`. Everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithMigrations(build_py):
    """Builds the packages, then copies the migrations beside `app.db`: a wheel has no folder outside its packages."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            source = Path(__file__).resolve().parent / "alembic"
            target = Path(self.build_lib) / "app" / "db" / "migrations"
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithMigrations})
