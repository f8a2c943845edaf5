"""Splits the API's CPU time by part: py-spy samples the threads that hold the interpreter, and names decide."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

# The innermost frame that belongs to a part decides. In this order, as a driver is called by what is called by …
PARTS = {
    "JSON": ("json/", "model_dump_json", "to_json"),
    "driver (psycopg)": ("psycopg",),
    "SQL: ORM": ("sqlalchemy/orm",),
    "SQL: statements, pool, results": ("sqlalchemy",),
    "pydantic": ("pydantic",),
    "HTTP: uvicorn": ("uvicorn", "asyncio", "uvloop", "h11"),
    "HTTP: Starlette, FastAPI": ("starlette", "fastapi"),
    "thread pool": ("anyio", "threading.py", "concurrent/"),
    "metrics": ("prometheus",),
    "keys (HMAC, look-up)": ("app/keys",),
    "privacy, ledger, lifecycle": ("core/privacy", "app/ledger", "app/lifecycle"),
    "own code of the route": ("app/",),
}


def profile(pid: int, seconds: float) -> subprocess.Popen[bytes]:
    """Starts sampling; `read` waits for its end."""
    out = Path(tempfile.mkdtemp(prefix="spy")) / "raw"
    line = ["record", "--pid", str(pid), "--duration", str(int(seconds)), "--rate", "250", "--format", "raw", "--gil"]
    program = Path(sys.executable).parent / "py-spy"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([program, *line, "--full-filenames", "--output", out], stdout=quiet, stderr=quiet)
    process.out = out  # type: ignore[attr-defined]
    return process


def read(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Returns each part's share of all samples."""
    process.wait(60)
    counts: Counter[str] = Counter()
    for line in process.out.read_text().splitlines():  # type: ignore[attr-defined]
        stack, number = line.rsplit(" ", 1)
        counts[part_of(stack.split(";"))] += int(number)
    total = sum(counts.values()) or 1
    return {part: count / total for part, count in counts.most_common()}


def part_of(frames: list[str]) -> str:
    for frame in reversed(frames):
        for part, names in PARTS.items():
            if any(name in frame for name in names):
                return part
    return "other"
