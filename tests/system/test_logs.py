"""Log lines: what they name, and what they leave out."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app import logs
from app.main import create_app
from app.settings import Settings
from core.errors import InvalidRequest

SECRET = "Ada Lovelace, 36"


class Kept(logging.Handler):
    """Formats what it is given, as a process's handler would."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(logging.DEBUG)
        self.formatter, self.lines = formatter, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(params=[logs.TextFormatter(), logs.JsonFormatter("api")], ids=["text", "json"])
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    handler, logger = Kept(request.param), logging.getLogger("app")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def broken(error: Exception) -> None:
    try:
        raise error
    except type(error) as caught:
        logging.getLogger("app.test").error("it broke", exc_info=caught)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError(SECRET), "ValueError"),
        (OSError(28, "No space left on device", f"/data/{SECRET}"), "OSError: No space left on device"),
        (InvalidRequest("a field is missing"), "InvalidRequest: a field is missing"),
    ],
)
def test_an_exception_is_logged_without_its_text(kept: Kept, error: Exception, says: str) -> None:
    broken(error)
    (line,) = kept.lines
    assert says in line and "test_logs.py:" in line and "Ada" not in line
    if isinstance(kept.formatter, logs.JsonFormatter):
        assert json.loads(line)["error"]["type"] == says


def test_lines_name_their_subject_also_in_threads(kept: Kept) -> None:
    log = logging.getLogger("app.test").info
    log("nothing known")
    with logs.about({"request": "abcdefgh"}), logs.about({"job": "job_a", "attempt": "2"}):
        context = copy_context()
        thread = threading.Thread(target=lambda: context.run(log, "both"))
        thread.start()
        thread.join()
    log("nothing again")
    first, both, last = kept.lines
    if isinstance(kept.formatter, logs.JsonFormatter):
        assert {"request": "abcdefgh", "job": "job_a", "attempt": "2"}.items() <= json.loads(both).items()
        assert "job" not in json.loads(first) and "job" not in json.loads(last)
    else:
        assert " abcdefgh job_a/2 app.test: both" in both and " - app.test" in first and " - app.test" in last


def test_a_request_has_one_id_everywhere(settings: Settings, kept: Kept) -> None:
    app = create_app(settings.model_copy(update={"access_log": True}))
    with TestClient(app) as client:
        answer = client.get("/v1/jobs/job_abc?q=Lovelace", headers={"X-Request-Id": "chosen-by-a-client"})
    (line,) = [each for each in kept.lines if "/v1/jobs" in each]
    request = answer.headers["X-Request-Id"]
    assert request in line and request != "chosen-by-a-client" and "Lovelace" not in line and "job_abc" in line
    assert "GET /v1/jobs/{job_id} 401" in line
    if isinstance(kept.formatter, logs.JsonFormatter):
        found = json.loads(line)
        assert (found["request"], found["route"], found["status"]) == (request, "/v1/jobs/{job_id}", 401)
        assert found["duration_ms"] >= 0.0


def test_an_id_from_a_trusted_proxy_is_kept(settings: Settings) -> None:
    with TestClient(create_app(settings.model_copy(update={"trusted_proxies": 1}))) as client:
        for given, kept_ in (("edge-0123456789", True), ("a b", False), ("x" * 65, False), ("short", False)):
            found = client.get("/healthz", headers={"X-Request-Id": given}).headers["X-Request-Id"]
            assert (found == given) is kept_


def in_a_process(program: str) -> list[dict[str, Any]]:
    """What a process with JSON logs writes, wherever."""
    whole = "from app import logs\nimport asyncio, gc, logging, warnings, threading\n" + (
        "logs.configure('relay', 'json', 'debug')\n" + program
    )
    line = [sys.executable, "-c", whole]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_process_logs_warnings_and_its_end_without_values() -> None:
    found = in_a_process(
        f"""
logging.getLogger("httpcore").info({SECRET!r})
logging.getLogger("app.x").debug("ours")
warnings.warn({SECRET!r})
thread = threading.Thread(target=lambda: int({SECRET!r}))
thread.start()
thread.join()
raise KeyError({SECRET!r})
"""
    )
    assert [each["message"] for each in found] == [
        "ours",
        "UserWarning at <string>:7",
        "a thread ends",
        "this process ends: KeyError",
    ]
    assert {each["process"] for each in found} == {"relay"} and SECRET not in json.dumps(found)
    assert found[2]["error"]["type"] == "ValueError"


def test_what_libraries_say_of_an_exception_is_left_out() -> None:
    found = in_a_process(
        f"""
def fail():
    raise ValueError({SECRET!r})
async def fails():
    fail()
async def main():
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    del task
    gc.collect()
    asyncio.get_running_loop().call_soon(fail)
    asyncio.get_running_loop().call_exception_handler({{"message": {SECRET!r}}})
    await asyncio.sleep(0)
asyncio.run(main())
try:
    fail()
except ValueError as error:
    logging.getLogger("uvicorn.error").error("failed: %r", error, exc_info=True)
    logging.getLogger("somelib.part").warning("failed: %r", error, exc_info=True)
logging.getLogger("somelib.part").warning("a pool is full")
logging.getLogger("somelib.part").warning("called without an exception", exc_info=True)
"""
    )
    never, left_out, callback, uvicorn, part, full, without = found
    assert SECRET not in json.dumps(found)
    for each in (never, callback, uvicorn, part):
        assert each["error"]["type"] == "ValueError" and each["error"]["at"][-1] == "<string>:6 fail"
        assert each["message"].startswith(f"ValueError, as {each['logger']} reports at ")
    assert left_out["message"].startswith("asyncio reports at ") and "error" not in left_out
    assert (full["message"], without["message"]) == ("a pool is full", "called without an exception")


def test_what_celery_says_of_a_task_is_left_out() -> None:
    found = in_a_process(
        f"""
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
app = Celery("x", broker="memory://", backend="cache+memory://")
for kind in (ValueError, Reject):
    def task():
        raise kind({SECRET!r})
    named = app.task(name=kind.__name__)(task)
    request = {{"id": {SECRET!r}, "task": named.name, "hostname": "h", "delivery_info": {{}}}}
    build_tracer(named.name, named, app=app)({SECRET!r}, (), {{}}, request)
"""
    )
    raised = next(each for each in found if each.get("error", {}).get("type") == "ValueError")
    assert raised["message"].startswith("ValueError, as celery.app.trace reports at trace.py:")
    assert SECRET not in json.dumps(found)


def test_what_celery_prints_at_a_signal_is_left_out(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are no lines of the log, and at SIGUSR1 they are the local variables of every thread."""
    monkeypatch.setenv("SCRIMP_HOME", str(settings.home))
    monkeypatch.setenv("SCRIMP_LOG_FORMAT", "json")
    found = in_a_process(
        f"""
import os, signal
from worker.celery_app import app
worker = app.Worker(pool="solo", quiet=True)
worker.install_platform_tweaks(worker)
def run(secret):
    for number in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), number)
run({SECRET!r})
"""
    )
    assert found[-1]["message"] == "this worker ends: SIGTERM" and SECRET not in json.dumps(found)


def test_an_error_that_nothing_can_catch_is_logged_without_its_text() -> None:
    (found,) = in_a_process(
        f"""
class Fails:
    def __repr__(self):
        return {SECRET!r}
    def __del__(self):
        raise ValueError({SECRET!r})
Fails()
"""
    )
    assert found["error"] == {"type": "ValueError", "at": ["<string>:9 __del__"]}
    assert found["message"] == "an error that nothing could catch" and SECRET not in json.dumps(found)


def test_text_lines_leave_it_out_too() -> None:
    record = logging.LogRecord("celery.app.trace", logging.ERROR, "trace.py", 7, "raised: %r", (SECRET,), None)
    line = logs.TextFormatter().format(record)
    assert "celery.app.trace reports at trace.py:7" in line and "Ada" not in line and record.args == (SECRET,)


def test_configuring_changes_no_filter_of_this_process() -> None:
    """The tests' own hooks stay as they were: `configure` is for processes alone."""
    assert warnings.showwarning is not logs._warned
