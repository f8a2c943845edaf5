"""Runs the notebooks in examples/ against a service of their own and stores their outputs, so that pages show them.

    python scripts/run_notebooks.py [search.ipynb]

Stored outputs hold no path, no host and no time.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MACHINE = re.compile(r"/(?:tmp|home|root|usr|work|Users)/|127\.0\.0\.1|localhost")  # what a stored output must not hold
READY_S = 120.0


def execute(book: Any, folder: Path, url: str, key: str) -> None:
    """Runs a notebook from top to bottom, in a folder, against a service."""
    os.environ |= {"SCRIMP_URL": url, "SCRIMP_KEY": key, "IPYTHONDIR": str(folder / "ipython")}
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()


def clean(book: Any) -> None:
    """Removes what differs between machines and runs.

    Raises:
        ValueError: an output names a path or a host.
    """
    book.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
            if found := MACHINE.search(str(output)):
                raise ValueError(f"an output holds {found[0]}: print less in {cell.source!r}")


@contextmanager
def service(home: Path) -> Iterator[tuple[str, str]]:
    """A `scrimp serve` of one's own: its address and the admin's key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = home.with_suffix(".log")
    with log.open("w") as out:
        command = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + READY_S
        while "ready in" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text())
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", (home / "admin.key").read_text().strip()
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    for path in sorted(EXAMPLES.glob(sys.argv[1] if len(sys.argv) > 1 else "*.ipynb")):
        with tempfile.TemporaryDirectory() as made, service(Path(made) / "home") as (url, key):
            book = nbformat.read(path, as_version=4)
            execute(book, Path(made), url, key)
            clean(book)
            nbformat.write(book, path)
        print(path.name)


if __name__ == "__main__":
    main()
