"""What runs here, as two hashes that a certificate names: the installed packages, and the service's own code.

$ python -m worker.attempt.environment > packages.txt      # the lines, and what they hash to
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import app
import worker

SUFFIXES = (".py", ".c", ".so")


def lines() -> list[str]:
    """NAME==VERSION of each installed distribution, sorted, each once."""
    return sorted({f"{each.name.lower().replace('_', '-')}=={each.version}" for each in distributions()})


@cache  # by the fork server, once: attempts inherit it
def packages() -> str:
    """SHA-256 (hex) of `lines`, each with a line's end."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines()).encode()).hexdigest()


@cache
def code() -> str:
    """SHA-256 (hex) of the files of the packages app and worker: lines of SHA-256, two spaces, name; sorted by name.

    `sha256sum` writes the same lines.
    """
    found = {}
    for package in (app, worker):
        root = Path(next(iter(package.__path__)))
        for path in root.rglob("*"):
            if path.suffix in SUFFIXES:
                name = f"{package.__name__}/{path.relative_to(root).as_posix()}"
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256("".join(f"{found[name]}  {name}\n" for name in sorted(found)).encode()).hexdigest()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in [*lines(), f"# packages {packages()}", f"# code {code()}"]))
