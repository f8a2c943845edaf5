"""What the helper processes of the tests run."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app import progress
from core.errors import BudgetError, Conflict, InvalidRequest

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


def arrow(request: dict[str, Any]) -> dict[str, Any]:
    """An answer of Arrow's for which it looks for pandas."""
    import pyarrow as pa

    return {
        "cells": pa.array([1.5, None]).to_numpy(zero_copy_only=False).tolist()[:1],
        "pandas": "pandas" in sys.modules,
    }


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


def reach(request: dict[str, Any]) -> dict[str, Any]:
    """What a parser reaches that its owner's file has turned hostile."""
    secret, out, parent = Path(request["secret"]), Path(request["out"]), os.getppid()
    tries: dict[str, Callable[[], object]] = {
        "its file": lambda: Path(request["file"]).read_text(),
        "its output": lambda: (out / "part").write_text("x"),
        "a secret": secret.read_text,
        "a secret's folder": lambda: list(secret.parent.iterdir()),
        "a file beside it": lambda: (secret.parent / "mine").write_text("x"),
        "a secret's mode": lambda: secret.chmod(0o644),
        "the service": lambda: socket.create_connection(("127.0.0.1", request["port"]), timeout=300),
        "the service's environment": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        "a signal": lambda: os.kill(parent, 0),
        "its limits": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE),
        "a fork": os.fork,
        "a file larger than the disk": lambda: os.truncate(out / "part", shutil.disk_usage(out).free),
    }
    return {name: _tried(each) for name, each in tries.items()} | {"capabilities": _status("CapEff")}


def _tried(what: Callable[[], object]) -> str:
    try:
        return f"reached: {what()}"
    except OSError as error:
        return type(error).__name__


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1], 16)
