"""Helper processes: what comes back, what is kept from them, and that limits kill them and nothing else."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.datasets.parsing import PARSER, Parsers
from app.formats.asked import ParseRequest
from app.sandbox import limited
from app.sandbox.confinement import Policy
from app.sandbox.limited import Fresh, HelperProcess, LimitedServer, run_limited
from app.settings import Settings
from core.errors import BudgetError, Conflict, InvalidRequest, LimitError, ServiceError
from tests.formats import files

TARGETS = "tests.sandbox.targets"
MIB = 2**20


def run(
    function: str, request: dict[str, Any] | None = None, *, memory: int = 512 * MIB, time_s: float = 300.0
) -> dict[str, Any]:
    return run_limited(f"{TARGETS}:{function}", request or {}, memory_bytes=memory, time_s=time_s)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Ended, or a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def server() -> Iterator[LimitedServer]:
    server = LimitedServer(f"{TARGETS}:who", memory_bytes=512 * MIB, time_s=300.0)
    yield server
    server.close()


def test_the_answer_comes_back_and_prints_do_not_mix_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("echo", {"a": [1, 2.5, None, "ü\n"]}) == {"a": [1, 2.5, None, "ü\n"]}
    assert capfd.readouterr() == ("", "")


def test_it_runs_in_a_session_of_its_own() -> None:
    answer = run("who")
    assert answer["session"] == answer["pid"] != os.getsid(0)
    assert answer["cwd"] == "/"


def test_the_environment_holds_no_settings_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIMP_DATABASE_URL", "postgresql://user:password@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    answer = run("environment", {"key": "00ff00ff"})
    assert not [name for name in answer["environment"] if "SCRIMP" in name or "SECRET" in name]
    assert "00ff00ff" not in str(answer), "a request must not show in the process list"
    assert answer["environment"]["PATH"] == os.environ["PATH"]
    assert answer["environment"]["OMP_NUM_THREADS"] == "1"


def test_arrow_does_without_pandas() -> None:
    """Where pandas is installed too: it takes memory, and Arrow's answers must not depend on it."""
    assert run("arrow") == {"cells": [1.5], "pandas": False}


def test_limits_are_set() -> None:
    answer = run("limits", memory=300 * MIB, time_s=20.0)
    assert answer == {"RLIMIT_AS": [300 * MIB] * 2, "RLIMIT_CPU": [21, 22], "RLIMIT_CORE": [0, 0]}


@pytest.mark.parametrize(
    ("kind", "cls", "code", "members"),
    [
        (
            "invalid",
            InvalidRequest,
            "invalid-request",
            {"errors": [{"pointer": "/features/columns/1", "detail": "2 cells are not numbers", "count": 2}]},
        ),
        ("conflict", Conflict, "duplicate-name", {"name": "x"}),
        ("budget", BudgetError, "budget-exceeded", {"requested": 1.5, "remaining": 0.5}),
    ],
)
def test_service_errors_come_back_as_they_were(
    kind: str, cls: type[ServiceError], code: str, members: dict[str, Any]
) -> None:
    with pytest.raises(cls) as caught:
        run("fail", {"kind": kind})
    assert (type(caught.value), caught.value.code, caught.value.members) == (cls, code, members)
    assert caught.value.status == cls.status


@pytest.mark.parametrize("kind", ["value", "not-json", "nan"])
def test_other_errors_show_no_value(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ServiceError) as caught:
        run("fail", {"kind": kind})
    assert type(caught.value) is ServiceError
    assert "Ada" not in str(caught.value) + caplog.text
    assert ("ValueError" in caplog.text or "TypeError" in caplog.text) and ".py:" in caplog.text


def test_the_memory_limit_holds() -> None:
    assert run("allocate", {"bytes": 100 * MIB}, memory=400 * MIB) == {"length": 100 * MIB}
    with pytest.raises(LimitError, match="more memory than the limit of 400 MiB"):
        run("allocate", {"bytes": 800 * MIB}, memory=400 * MIB)


def test_a_memory_limit_too_small_even_to_start_is_an_error_of_ours() -> None:
    with pytest.raises(ServiceError):
        run("allocate", {"bytes": 8 * MIB}, memory=8 * MIB)  # what the interpreter has takes all of it


def test_the_wall_clock_kills(tmp_path: Path) -> None:
    """That of a call, whose process has started: how long that takes is the machine's."""
    process, mark = limited.source.take(f"{TARGETS}:sleep", 512 * MIB), tmp_path / "pid"
    assert process.call(f"{TARGETS}:sleep", {"mark": str(mark), "seconds": 0}, 300.0) == {}
    with pytest.raises(LimitError, match=r"longer than the limit of 0\.3 s"):
        process.call(f"{TARGETS}:sleep", {}, 0.3)  # it would sleep for ten minutes
    wait_for(lambda: gone(int(mark.read_text())), "the end of the process")


def test_the_wall_clock_counts_the_start_too() -> None:
    with pytest.raises(LimitError, match="longer than the limit of 0 s"):
        run("echo", time_s=0.0)


def test_processor_time_is_limited_too() -> None:
    with pytest.raises(LimitError, match="processor time"):
        run("spin")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGABRT", "segfault"])
def test_a_crash_reads_as_a_limit(how: str) -> None:
    with pytest.raises(LimitError):
        run("die", {"how": how})


def test_a_plain_exit_reads_as_our_error() -> None:
    with pytest.raises(ServiceError, match="without an answer") as caught:
        run("die", {"how": "exit"})
    assert type(caught.value) is ServiceError


def test_an_answer_without_bounds_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "MAX_ANSWER_BYTES", 3 * MIB)
    with pytest.raises(ServiceError):
        run("flood", {"bytes": 5 * MIB})


def test_no_file_descriptors_are_left_behind() -> None:
    run("echo")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run("echo")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_outlives_the_thread_that_asked_for_it(server: LimitedServer) -> None:
    """PR_SET_PDEATHSIG is about the thread that forked, and threads of a pool end."""
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(server.call({})["pid"]))
    thread.start()
    thread.join()
    wait_for(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), "the thread's end in the kernel")
    pids += [server.call({})["pid"] for _ in range(2)]
    assert len(set(pids)) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    mark = tmp_path / "pid"
    code = (
        "import threading; from app.sandbox.limited import run_limited\n"
        "from tests.warm import WIDE\n"
        f"t = threading.Thread(target=run_limited, args=('{TARGETS}:sleep', {{'mark': {str(mark)!r}}}),"
        " kwargs={'memory_bytes': 2**29, 'time_s': 600, 'files': WIDE})\n"
        "t.start(); t.join()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(lambda: mark.exists() and mark.read_text() != "", "the helper process")
        pid = int(mark.read_text())
        assert not gone(pid)
    finally:
        parent.send_signal(how)
        parent.wait()
    wait_for(lambda: gone(pid), "the end of the helper process")


def test_a_helper_whose_parent_is_already_gone_does_not_start() -> None:
    settings = '{"parent": 1, "memory_bytes": 1000000000, "cpu_s": null, "preload": []}'
    assert subprocess.run([sys.executable, "-m", "app.sandbox.limited", "0", settings], check=False).returncode == 1


def test_a_server_keeps_its_process_warm(server: LimitedServer) -> None:
    first, second = server.call({}), server.call({})
    assert (second["pid"], second["calls"]) == (first["pid"], 2)
    assert server.call({"x": 1}, target=f"{TARGETS}:echo") == {"x": 1}


def test_an_error_of_the_request_keeps_a_server_warm(server: LimitedServer) -> None:
    first = server.call({})
    with pytest.raises(InvalidRequest):
        server.call({"kind": "invalid"}, target=f"{TARGETS}:fail")
    assert server.call({})["pid"] == first["pid"]


@pytest.mark.parametrize(
    ("function", "request_", "error"),
    [
        ("sleep", {}, LimitError),
        ("allocate", {"bytes": 2**34}, LimitError),
        ("fail", {"kind": "value"}, ServiceError),
        ("die", {"how": "exit"}, ServiceError),
    ],
)
def test_a_server_is_replaced_after_a_failure(
    function: str, request_: dict[str, Any], error: type[ServiceError]
) -> None:
    server = LimitedServer(f"{TARGETS}:who", memory_bytes=512 * MIB, time_s=300.0)
    try:
        first = server.call({})
        server.time_s = 0.5 if function == "sleep" else 300.0
        with pytest.raises(error):
            server.call(request_, target=f"{TARGETS}:{function}")
        assert gone(first["pid"])
        server.time_s = 300.0
        assert server.call({})["pid"] != first["pid"]
    finally:
        server.close()


def test_a_server_that_died_while_idle_is_replaced(server: LimitedServer) -> None:
    first = server.call({})
    os.kill(first["pid"], signal.SIGKILL)
    wait_for(lambda: gone(first["pid"]), "its end")
    assert server.call({})["pid"] != first["pid"]


def test_a_server_serves_many_threads_one_at_a_time(server: LimitedServer) -> None:
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(server.call({"i": i}, target=f"{TARGETS}:echo") == {"i": i}))
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 12


def test_only_few_may_wait_for_a_turn() -> None:
    """Each waits in a thread of the web server: the rest are sent away at once, and told to come again."""
    server = LimitedServer(f"{TARGETS}:sleep", memory_bytes=512 * MIB, time_s=300.0)
    refused: list[int] = []

    def call() -> None:
        try:
            server.call({"seconds": 0.01}, target=f"{TARGETS}:echo")
        except LimitError as error:
            refused.append(error.status)

    try:
        with server._turn:
            threads = [threading.Thread(target=call) for _ in range(limited.MAX_WAITING + 5)]
            for thread in threads:
                thread.start()
            wait_for(lambda: len(refused) >= 5, "the refusals")
        for thread in threads:
            thread.join()
    finally:
        server.close()
    assert refused == [503] * 5


def test_who_waits_too_long_for_a_turn_is_sent_away() -> None:
    server = LimitedServer(f"{TARGETS}:sleep", memory_bytes=512 * MIB, time_s=0.2)
    statuses = []
    with ThreadPoolExecutor(1) as pool, server._turn:  # a call of another thread is under way
        statuses += [pool.submit(server.call, {}).exception(300).status]  # type: ignore[union-attr]
    with pytest.raises(LimitError) as its_own:
        server.call({})
    server.close()
    assert [*statuses, its_own.value.status] == [503, 422]


def test_a_closed_server_leaves_no_process(server: LimitedServer) -> None:
    pid = server.call({})["pid"]
    server.close()
    assert gone(pid)


def test_a_server_whose_module_can_not_be_imported_says_so() -> None:
    server = LimitedServer("tests.sandbox.no_such_module:f", memory_bytes=512 * MIB, time_s=300.0)
    with pytest.raises(ServiceError, match="without an answer") as caught:
        server.call({})
    server.close()
    assert type(caught.value) is ServiceError


def test_a_watch_sees_how_much_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * MIB))
    watch, request = limited.Watch(), {"file": str(tmp_path / "file"), "go": str(tmp_path / "go")}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(
            run_limited, f"{TARGETS}:read_file", request, memory_bytes=512 * MIB, time_s=300.0, watch=watch
        )
        wait_for(lambda: watch.read_bytes >= 3 * MIB or call.done(), "what was read")
        assert not call.done()
        (tmp_path / "go").touch()
        assert call.result() == {"size": 3 * MIB}
    assert watch.read_bytes < 4 * MIB


def test_a_watch_ends_a_call_and_its_process(tmp_path: Path) -> None:
    watch, mark = limited.Watch(), tmp_path / "mark"
    with ThreadPoolExecutor(1) as pool:
        request = {"mark": str(mark)}
        call = pool.submit(run_limited, f"{TARGETS}:sleep", request, memory_bytes=512 * MIB, time_s=300.0, watch=watch)
        wait_for(lambda: call.done() or (mark.exists() and mark.read_text() != ""), "its process")
        watch.stop.set()
        with pytest.raises(limited.Interrupted):
            call.result()
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_a_parser_reaches_its_own_file_and_nothing_else(tmp_path: Path) -> None:
    """The product's own process, with the files that a parser gets; the target stands for a reader turned hostile.

    Attack (Doors): A reader of an owner's file that turned hostile
    Now: its file and its output
    Also: tests/sandbox/test_limited.py::test_each_format_is_read_by_a_process_that_sees_its_file_alone,
    tests/datasets/test_parsing.py::test_a_recount_sees_its_parts_and_nothing_else
    """
    (tmp_path / "secret").write_text("s")
    (tmp_path / "out").mkdir()
    (tmp_path / "file").write_text("a,b")
    allowed = Policy((tmp_path / "file", Path(__file__).parents[1]), (tmp_path / "out",))
    request = {name: str(tmp_path / name) for name in ("secret", "out", "file")}
    process = Fresh().take(PARSER, 2**30, files=allowed)
    with socket.create_server(("127.0.0.1", 0)) as service:
        try:
            seen = process.call(f"{TARGETS}:reach", request | {"port": service.getsockname()[1]}, 60.0)
        finally:
            process.kill()
    assert (seen.pop("its file"), seen.pop("its output"), seen.pop("capabilities")) == ("reached: a,b", "reached: 1", 0)
    assert {name: each for name, each in seen.items() if each.startswith("reached")} == {}


class Seen(Fresh):
    """The service's source of processes, which notes what files they get."""

    def __init__(self) -> None:
        self.files: list[Policy] = []

    def take(
        self,
        target: str,
        memory_bytes: int,
        preload: Sequence[str] = (),
        cpu_s: int | None = None,
        files: Policy = Policy(),
    ) -> HelperProcess:
        self.files.append(files)
        return super().take(target, memory_bytes, preload, cpu_s, files)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "arrow", "npz"])
def test_each_format_is_read_by_a_process_that_sees_its_file_alone(
    format: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Seen()
    monkeypatch.setattr(limited, "source", source)
    file, out = files.write(tmp_path / f"d.{format}", format, files.number_rows(50)), tmp_path / "out"
    out.mkdir()
    request = {"spec": files.spec(format, records=50), "file": str(file), "holdout_file": None, "output_dir": str(out)}
    limits = {"max_unpacked_bytes": 2**28, "max_unpack_ratio": 1e9, "reserve_bytes": 0}
    rest = {"keys": files.KEYS, "opens": {}, "seal": None} | limits
    found = Parsers(settings).parse(ParseRequest.model_validate(request | rest))
    assert found.counts.train == 50 and source.files == [Policy((file,), (out,))]
