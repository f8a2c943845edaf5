"""What the helper processes of the tests run."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from app import progress
from app.errors import BudgetError, Conflict, InvalidRequest

calls = 0


def echo(request: dict[str, Any]) -> dict[str, Any]:
    print("this must not mix with the answer")
    print("nor this", file=sys.stderr)
    return request


def who(request: dict[str, Any]) -> dict[str, Any]:
    global calls  # noqa: PLW0603
    calls += 1
    return {"pid": os.getpid(), "calls": calls, "session": os.getsid(0), "cwd": str(Path.cwd())}


def environment(request: dict[str, Any]) -> dict[str, Any]:
    return {"environment": dict(os.environ), "argv": sys.argv}


def limits(request: dict[str, Any]) -> dict[str, Any]:
    return {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_CORE")}


def fail(request: dict[str, Any]) -> dict[str, Any]:
    kind = request["kind"]
    if kind == "invalid":
        raise InvalidRequest.at("/features/columns/1", "2 cells are not numbers", count=2)
    if kind == "conflict":
        raise Conflict("duplicate-name", "taken", name="x")
    if kind == "budget":
        raise BudgetError("too expensive", requested=1.5, remaining=0.5)
    if kind == "value":
        raise ValueError("the patient's name is Ada")
    if kind == "not-json":
        return {"answer": object()}
    if kind == "nan":
        return {"answer": float("nan")}
    raise AssertionError(kind)


def allocate(request: dict[str, Any]) -> dict[str, Any]:
    return {"length": len(bytearray(request["bytes"]))}


def sleep(request: dict[str, Any]) -> dict[str, Any]:
    if "mark" in request:
        Path(request["mark"]).write_text(str(os.getpid()), encoding="ascii")
    time.sleep(request.get("seconds", 600))
    return {}


def sleep_with_child(request: dict[str, Any]) -> dict[str, Any]:
    child = subprocess.Popen(["sleep", "600"])
    Path(request["mark"]).write_text(str(child.pid), encoding="ascii")
    return sleep({})


def spin(request: dict[str, Any]) -> dict[str, Any]:
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (1, hard))
    while True:
        pass


def die(request: dict[str, Any]) -> dict[str, Any]:
    if request["how"] == "exit":
        os._exit(3)
    if request["how"] == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), getattr(signal, request["how"]))
    return {}


def flood(request: dict[str, Any]) -> dict[str, Any]:
    return {"text": "x" * request["bytes"]}


def read_file(request: dict[str, Any]) -> dict[str, Any]:
    """Reads a file, and waits until its progress was told and answered by another file."""
    with progress.of_reads():
        size = len(Path(request["file"]).read_bytes())
        while not Path(request["go"]).exists():
            time.sleep(0.05)
    return {"size": size}
