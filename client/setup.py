"""What pyproject.toml cannot say: the package lies beside this folder, and a source archive takes it in."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
OUTSIDE, INSIDE = 'where = [".."]', 'where = ["."]'


class Archive(sdist):
    """A source archive with the package inside."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [each for each in files if not each.startswith("..")])
        made = Path(base_dir)
        shutil.copytree(HERE.parent / "scrimp", made / "scrimp", ignore=shutil.ignore_patterns("__pycache__"))
        settings = made / "pyproject.toml"
        text = settings.read_text(encoding="utf-8")
        if OUTSIDE not in text:
            raise RuntimeError(f"pyproject.toml does not say {OUTSIDE}")
        settings.unlink()  # it may be a hard link to the original
        settings.write_text(text.replace(OUTSIDE, INSIDE), encoding="utf-8")


setup(cmdclass={"sdist": Archive})
