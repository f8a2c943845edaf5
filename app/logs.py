"""The logs of the service's processes: lines for people, or JSON objects for machines (`log_format`).

Every line names what it is about: its request, job, attempt or prediction, as far as they are known. Of an exception
only its type and places are logged, because its text may quote a record; so a library's own message about an exception
is left out too. Libraries log warnings alone: their finer lines quote headers, queries and values. What a library warns
of is logged as it is: an attempt's process on private data, and one that predicts, log nothing (worker.attempt.child).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType, TracebackType
from typing import Literal, TextIO

from core.errors import ServiceError

TEXT = "%(asctime)s %(levelname)s %(about)s %(name)s: %(message)s"
NOTHING = "-"
# The loggers that follow `log_level`; all others log warnings.
OURS = ("__main__", "app", "core", "worker", "scrimp", "scrimp_server", "uvicorn", "celery")
# uvicorn's access line holds queries; Celery's task lines know neither job nor attempt, and say "succeeded" of every
# attempt that did not raise.
MUTED = ("uvicorn.access", "celery.app.trace", "celery.worker.strategy")
# These write their own messages, which quote no exception's text. All others' give way to the exception's type.
OWN = frozenset({"__main__", "app", "core", "worker", "scrimp", "scrimp_server"})
# Their messages quote exceptions and values even where no exception comes with them.
QUOTING = ("asyncio", "celery.app.trace")
FRAMES = 12  # the innermost places of an exception

Kind = Literal["request", "job", "attempt", "prediction", "trace"]
ABOUT: ContextVar[Mapping[Kind, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def about(ids: Mapping[Kind, str]) -> Iterator[None]:
    """Lines within this block, and from threads started with its context, name `ids`, besides those of outer blocks."""
    token = ABOUT.set({**ABOUT.get(), **ids})
    try:
        yield
    finally:
        ABOUT.reset(token)


class TextFormatter(logging.Formatter):
    """One line, then the places of an exception."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """The line; `about` is REQUEST, JOB, JOB/ATTEMPT, or "-"."""
        ids = ABOUT.get()
        job = "/".join(ids[kind] for kind in ("job", "attempt") if kind in ids)
        parts = [ids.get("request", ""), job, ids.get("prediction", "")]
        line = copy(record)  # other handlers, such as the tests', see the record as it is
        line.msg, line.args = said(record), None
        line.about = " ".join(filter(None, parts)) or NOTHING
        line.exc_text = None  # another handler's, which may have the exception's own text
        return super().format(line)

    def formatException(self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | object) -> str:  # noqa: N802
        """The type and places of an exception, without its text."""
        error = ei[1] if isinstance(ei, tuple) else None
        if not isinstance(error, BaseException):
            return ""
        return "\n".join([f"  {kind_of(error)}", *(f"    at {place}" for place in places(error))])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process, logger, message, the ids that are known, and an exception's type
    and places."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": at,
            "level": record.levelname,
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": said(record),
        }
        line.update({str(name): value for name, value in ABOUT.get().items()})
        line.update(getattr(record, "fields", {}))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["error"] = {"type": kind_of(error), "at": places(error)}
        return json.dumps(line, default=str)


def said(record: logging.LogRecord) -> str:
    """A record's message. A library's message with an exception, and any of QUOTING, gives way to a fixed text."""
    if record.name.partition(".")[0] in OWN:
        return record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        return f"{kind_of(error)}, as {record.name} reports at {_place(record)}"
    if record.name.startswith(QUOTING):
        return f"{record.name} reports at {_place(record)}; its text is left out, as it may quote a value"
    return record.getMessage()


def _place(record: logging.LogRecord) -> str:
    return f"{record.filename}:{record.lineno} {record.funcName}"


def kind_of(error: BaseException) -> str:
    """An exception's type, with what is public about it: our own errors' text, and the system's name of an error."""
    name = type(error).__name__
    if isinstance(error, ServiceError):
        return f"{name}: {error.message}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {error.strerror}"
    return name


def places(error: BaseException) -> list[str]:
    """Where an exception was raised, innermost last: file, line and function, without source or values."""
    frames = extract_tb(error.__traceback__)[-FRAMES:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def configure(process: str, log_format: str, log_level: str) -> None:
    """Sets up the logs of this process, once, at its start.

    Args:
        process: its name in each JSON line: api, relay, worker or attempt.
        log_format: "text" or "json".
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[log_level.upper()]
    root.setLevel(max(level, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    for name in MUTED:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a failing handler would print the arguments of its message
    warnings.showwarning = _warned
    sys.excepthook = _ended
    threading.excepthook = _thread_ended
    sys.unraisablehook = _unraisable


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Logs a warning's type and place: its text may quote a value."""
    logging.getLogger("app.logs").warning("%s at %s:%d", category.__name__, Path(filename).name, lineno)


def _ended(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("app.logs").critical("this process ends: %s", kind_of(error), exc_info=error)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None:
        logging.getLogger("app.logs").critical("a thread ends", exc_info=ended.exc_value)


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Logs an error that no caller can catch, as in `__del__`, without the text of the object that it happened in."""
    logging.getLogger("app.logs").error("an error that nothing could catch", exc_info=unraisable.exc_value)
