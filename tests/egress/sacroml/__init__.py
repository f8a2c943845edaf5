"""Answers of SACRO-ML 2.0.1, recorded from real runs of scrimp/attack_run.py, and a program that gives them again."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# In the place of an interpreter: it gets `-I attack_run.py FOLDER`, reads the rows as that does, and copies an answer.
PROGRAM = """#!{python}
import json, os, shutil, sys
isolated, program, folder = sys.argv[1:]
assert isolated == "-I" and os.path.basename(program) == "attack_run.py", sys.argv
assert os.stat(folder).st_mode & 0o077 == 0, "others can read the rows"
assert not [name for name in os.environ if name.startswith("SCRIMP")], "it is told what it need not know"
with open(folder + "/rows.json") as file:
    rows = json.load(file)
for name in ("train", "holdout"):
    assert len(rows[name]["probabilities"]) == len(rows[name]["correct"]) > 0, name
shutil.copy({answer!r}, folder + "/answer.json")
"""


def recorded(folder: Path, name: str) -> Path:
    """A program that answers with a recorded run."""
    path = folder / f"replay-{name}"
    path.write_text(PROGRAM.format(python=sys.executable, answer=str(HERE / f"{name}.json")))
    path.chmod(0o700)
    return path
