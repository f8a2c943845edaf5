"""Work on untrusted input, in a process of its own under limits of memory and time.

A helper process is `python -m app.sandbox.limited`, in its own session, without the service's environment, and confined
as an attempt is (app.sandbox.confinement): no network, no other process, and no files but those that its caller names.
It reads requests from one end of a socket pair and answers there, one JSON document a line: prints cannot mix with an
answer. So requests and answers are JSON here, whose documents are the callers'. It dies with the service. Whatever
happens in it, the caller gets a result or a ServiceError.

    run_limited     one request, then the process is gone: parsing a data file
    LimitedServer   a warm process that answers many requests, one at a time: pricing, whose imports take seconds
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import logging
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from app import progress
from app.sandbox.confinement import Policy, allow_calls, confine, die_with
from app.sandbox.processes import loading, plain_environment
from core.errors import LimitError, ServiceError

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
MAX_ANSWER_BYTES = 64 * 1024 * 1024
LOOK_S = 0.5  # how often a call looks whether it is to end
MAX_WAITING = 16  # calls of one LimitedServer, including the running one
OUT_OF_MEMORY = 77  # the exit status of a process that has no memory left to report it

# Signals that end a process if an allocation fails inside a C library, or if the kernel enforces a limit.
LIMIT_SIGNALS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


class Interrupted(Exception):
    """A watched call was ended by its caller."""


class WorkLimitError(LimitError):
    """What was to be done takes more processor time or memory than a process may have, however busy the machine is."""


@dataclass(eq=False)
class Watch:
    """What the caller of a long call sees of it, and how it ends the call from another thread.

    Attributes:
        stop: once set, the process is killed and the call raises Interrupted.
        read_bytes: how many bytes the process has read (app.progress).
    """

    stop: threading.Event = field(default_factory=threading.Event)
    read_bytes: int = 0


def run_limited(
    target: str,
    request: dict[str, Any],
    *,
    memory_bytes: int,
    time_s: float,
    cpu_s: int | None = None,
    files: Policy = Policy(),
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Runs `target(request)` once in a process of its own and returns its answer.

    Args:
        target: "package.module:function"; the function takes and returns a JSON object.
        request: JSON. Not on the command line, because it may hold keys.
        memory_bytes: address space of the process (RLIMIT_AS).
        time_s: wall clock, including the start of the process.
        cpu_s: of processor time (RLIMIT_CPU); None: as much as `time_s` gives.
        files: what it may read and write beside the interpreter and this program.
        watch: hears of its progress, and may end it.

    Raises:
        Interrupted: the watch ended it.
        WorkLimitError: it exceeded its memory or processor time.
        LimitError: it exceeded its wall clock.
        ServiceError: the target's error, with the same class, code and members; any other failure becomes a plain
            ServiceError whose text holds no value.
    """
    cpu_s = math.ceil(time_s) + 1 if cpu_s is None else cpu_s
    process = source.take(target, memory_bytes, cpu_s=cpu_s, files=files)
    try:
        return process.call(target, request, time_s, watch)
    finally:
        source.give_back(target, process)


class Source(Protocol):
    """Where helper processes come from, and where they go when their work is done."""

    def take(
        self,
        target: str,
        memory_bytes: int,
        preload: Sequence[str] = (),
        cpu_s: int | None = None,
        files: Policy = Policy(),
    ) -> HelperProcess: ...

    def give_back(self, target: str, process: HelperProcess) -> None: ...


class Fresh:
    """Starts a process each time and ends it each time. The service's source."""

    def take(
        self,
        target: str,
        memory_bytes: int,
        preload: Sequence[str] = (),
        cpu_s: int | None = None,
        files: Policy = Policy(),
    ) -> HelperProcess:
        """A new process, which imports `preload` at once."""
        return HelperProcess(memory_bytes=memory_bytes, cpu_s=cpu_s, preload=preload, files=files)

    def give_back(self, target: str, process: HelperProcess) -> None:
        """Ends the process."""
        process.kill()


# Tests put another one here, which keeps processes from one service to the next.
source: Source = Fresh()


class LimitedServer:
    """A warm helper process: started at the first call (or by `start`), replaced after it died or was killed.

    Thread-safe; one call runs at a time. A caller that waits longer than one call may take gets LimitError (503), with
    the advice to try again.

    Args:
        target: "package.module:function", the default target of `call`.
        memory_bytes: address space of the process.
        time_s: wall clock of one call.
    """

    def __init__(self, target: str, *, memory_bytes: int, time_s: float) -> None:
        self.target = target
        self.memory_bytes = memory_bytes
        self.time_s = time_s
        self._process: HelperProcess | None = None
        self._turn = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    @property
    def alive(self) -> bool:
        """Returns True if the process is running. If not, the next call starts one."""
        process = self._process
        return process is not None and process.alive

    def start(self) -> None:
        """Starts the process and returns at once, while the process imports its modules."""
        with self._turn:
            self._running()

    def call(self, request: dict[str, Any], *, target: str | None = None) -> dict[str, Any]:
        """Runs `target(request)` in the warm process. Raises like `run_limited`."""
        with self._my_turn():
            return self._running().call(target or self.target, request, self.time_s)

    def close(self) -> None:
        """Ends the process, if there is one. A later call would start another."""
        process, self._process = self._process, None
        if process is not None:
            source.give_back(self.target, process)
        atexit.unregister(self.close)

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[None]:
        # Few may wait: each waiting caller holds a thread of the web server.
        if not self._waiting.acquire(blocking=False):
            raise busy()
        try:
            if not self._turn.acquire(timeout=self.time_s):
                raise busy()
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._waiting.release()

    def _running(self) -> HelperProcess:
        if self._process is None or not self._process.alive:
            self.close()
            self._process = source.take(self.target, self.memory_bytes, (_module(self.target),))
            atexit.register(self.close)
        return self._process


def busy() -> LimitError:
    """The error for a caller whose wait for a turn was too long (503)."""
    error = LimitError("The service is busy with other requests of this kind: try again")
    error.status = 503
    return error


class HelperProcess:
    """The caller's end of one helper process. Any failure other than a ServiceError kills it."""

    def __init__(
        self, *, memory_bytes: int, cpu_s: int | None, preload: Sequence[str] = (), files: Policy = Policy()
    ) -> None:
        self.memory_bytes, self.cpu_s = memory_bytes, cpu_s
        self.busy = False  # a call waits for its answer
        self._socket, child_end = socket.socketpair()
        with child_end:
            settings = {"parent": os.getpid(), "memory_bytes": memory_bytes, "cpu_s": cpu_s, "preload": list(preload)}
            # -P: no module is imported from the folder in which the service was started.
            command = [sys.executable, "-P", "-m", "app.sandbox.limited", str(child_end.fileno()), json.dumps(settings)]
            self._popen = _launch(command, child_end.fileno())
        # Not on the command line, which other users of the machine see: names of files may be an owner's.
        with contextlib.suppress(OSError):  # it has ended: its first call says why
            self._socket.sendall(
                json.dumps({"readable": _names(files.readable), "writable": _names(files.writable)}).encode() + b"\n"
            )

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def call(self, target: str, request: dict[str, Any], time_s: float, watch: Watch | None = None) -> dict[str, Any]:
        """Runs `target(request)` in the process and returns its answer. Raises like `run_limited`."""
        self.busy = True
        try:
            message = {"target": target, "request": request}
            answer = self._exchange(message, time.monotonic() + time_s, watch or Watch())
        except TimeoutError:
            self.kill()
            raise LimitError(f"This takes longer than the limit of {time_s:g} s") from None
        except (OSError, EOFError):
            raise self._death(target) from None
        except BaseException:
            self.kill()  # a late answer must not be taken for the next call's
            raise
        self.busy = False
        if "result" in answer:
            return dict(answer["result"])
        if "error" in answer:
            raise _rebuilt(**answer["error"])
        self.kill()
        if "out_of_memory" in answer:
            raise self._out_of_memory()
        log.error("%s failed in its process: %s at %s", target, answer["failure"]["type"], answer["failure"]["at"])
        raise ServiceError("An internal error; the service's log names its kind")

    def kill(self) -> int:
        """Ends the process and all that it started. Returns its exit status (negative: a signal)."""
        self._socket.close()
        if self._popen.returncode is None:  # not yet waited for: the number still belongs to this process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        return self._popen.wait()

    def _exchange(self, message: dict[str, Any], deadline: float, watch: Watch) -> dict[str, Any]:
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        buffer = bytearray()
        while True:
            chunk = self._received(deadline, watch)
            buffer += chunk
            if len(buffer) > MAX_ANSWER_BYTES:
                raise EOFError
            if b"\n" not in chunk:
                continue
            *lines, remaining = bytes(buffer).split(b"\n")
            for line in lines:
                answer = dict(json.loads(line))
                if "read_bytes" not in answer:
                    return answer
                watch.read_bytes = answer["read_bytes"]
            buffer = bytearray(remaining)

    def _received(self, deadline: float, watch: Watch) -> bytes:
        """The next bytes of the answer; looks at the watch while it waits."""
        while not watch.stop.is_set():
            self._socket.settimeout(min(LOOK_S, _left(deadline)))
            try:
                chunk = self._socket.recv(1 << 20)
            except TimeoutError:
                continue
            if not chunk:
                raise EOFError
            return chunk
        raise Interrupted

    def _death(self, target: str) -> ServiceError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(1.0)  # the connection closes before the process has ended; the status tells why
        status = self.kill()
        if status == -signal.SIGXCPU:
            return WorkLimitError("This takes more processor time than the limit")
        if status == -signal.SIGKILL:  # the kernel's choice, where the machine has no memory left
            return LimitError(self._too_large)
        if status == OUT_OF_MEMORY or -status in LIMIT_SIGNALS:
            return self._out_of_memory()
        log.error("the process of %s ended with status %d and no answer", target, status)
        return ServiceError("An internal error: a helper process ended without an answer")

    def _out_of_memory(self) -> LimitError:
        return WorkLimitError(self._too_large)

    @property
    def _too_large(self) -> str:
        return f"This needs more memory than the limit of {self.memory_bytes // 2**20} MiB"


def _names(paths: Iterable[Path]) -> list[str]:
    return [str(each) for each in paths]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _rebuilt(kind: str, code: str, message: str, members: dict[str, Any]) -> ServiceError:
    """Rebuilds the raised error: classes differ in their signatures, so its fields are set directly."""
    classes: dict[str, type[ServiceError]] = {"ServiceError": ServiceError}
    pending: list[type[ServiceError]] = [ServiceError]
    while pending:
        children = pending.pop().__subclasses__()
        classes |= {child.__name__: child for child in children}
        pending += children
    cls = classes.get(kind, ServiceError)
    error = cls.__new__(cls)
    ServiceError.__init__(error, message, **members)
    error.code = code
    return error


# The kernel sends PR_SET_PDEATHSIG when the THREAD that forked ends, and a web server's threads come and go. So one
# thread that lives as long as this process starts all helper processes.
_starting = threading.Lock()
_launcher: tuple[int, ThreadPoolExecutor] | None = None


def _launch(command: list[str], fd: int) -> subprocess.Popen[bytes]:
    global _launcher  # noqa: PLW0603 - one thread a process, made on first use
    with _starting:
        if _launcher is None or _launcher[0] != os.getpid():  # a forked copy of this process has no such thread
            _launcher = (os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="helper-launcher"))
        return _launcher[1].submit(_popen, command, fd).result()


def _popen(command: list[str], fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=_environment(),
        cwd="/",
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # a traceback may hold data
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    variables = plain_environment()
    path = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_IO_THREADS"), "1")
    # Arrow's own allocators reserve address space by the gigabyte, and RLIMIT_AS counts it.
    return variables | threads | {"PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


# --- In the helper process ---


class WithoutPandas(MetaPathFinder):
    """As if pandas were not installed. Arrow loads it where it is, which takes 0.3 s and tens of MiB, and some of its
    answers then differ."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("helper processes do without pandas", name=name)


def _main(fd: int, parent: int, memory_bytes: int, cpu_s: int | None, preload: list[str]) -> None:
    die_with(parent)
    _limit(memory_bytes, cpu_s)
    sys.meta_path.insert(0, WithoutPandas())
    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as lines:
        _confine(**json.loads(lines.readline() or b"{}"))
        with loading():
            for module in preload:
                importlib.import_module(module)

        def say(message: bytes) -> None:
            lines.write(message + b"\n")
            lines.flush()

        # The thread that tells progress has ended before the answer is written.
        with progress.heard_by(lambda count: say(json.dumps({"read_bytes": count}).encode())):
            for line in lines:  # ends when the caller's end is closed
                say(_answer(**json.loads(line)))


def _confine(readable: Sequence[str], writable: Sequence[str]) -> None:
    confine(Policy(tuple(map(Path, readable)), tuple(map(Path, writable))))
    allow_calls()


def _limit(memory_bytes: int, cpu_s: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the data
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if cpu_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    with contextlib.suppress(OSError):  # if the machine runs out of memory, this process is killed before the service
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _answer(target: str, request: dict[str, Any]) -> bytes:
    try:
        function = getattr(importlib.import_module(_module(target)), target.partition(":")[2])
        return json.dumps({"result": function(request)}, allow_nan=False).encode()
    except ServiceError as error:
        fields = {"kind": type(error).__name__, "code": error.code, "message": error.message, "members": error.members}
        return json.dumps({"error": fields}).encode()
    except MemoryError:
        return b'{"out_of_memory": true}'
    except Exception as error:
        # Only the type and the places: texts and locals of an exception may hold data.
        at = [
            f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-12:]
        ]
        return json.dumps({"failure": {"type": type(error).__name__, "at": at}}).encode()


def _module(target: str) -> str:
    return target.partition(":")[0]


if __name__ == "__main__":
    try:
        _main(int(sys.argv[1]), **json.loads(sys.argv[2]))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
