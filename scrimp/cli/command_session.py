"""What every client command shares: --url, --key, --json, and the display of errors."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel
from rich.console import Console

from scrimp import local
from scrimp.cli import show
from scrimp.client import Client
from scrimp.errors import ApiError, BudgetRefused, MissingPackage, ScrimpError, Undecided

DONE, FAILED, USAGE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130
# docs/cli.md has the same table, word by word.
EXIT_CODES = {
    DONE: "done",
    FAILED: "refused or failed; also an invalid chain or signature, and a watched job that did not succeed",
    USAGE: "wrong usage, a file that is not a JSON object, or a certificate whose signer was not checked",
    REFUSED: "the privacy budget does not cover the request; nothing was charged",
    INTERRUPTED: "interrupted with Ctrl-C; a watched job continues",
}
# How data files begin.
FILES = {
    b"PK\x03\x04": "an npz or zip file",
    b"\x93NUMPY": "a NumPy file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "a gzip file",
}
# What only some commands need, and the extra that has it.
EXTRAS = {"cryptography": "verify", "numpy": "audit", "scipy": "attack"}
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Url = Annotated[str | None, typer.Option("--url", envvar="SCRIMP_URL", help="Where the service listens.")]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="SCRIMP_KEY", help="An API key; a local service's key is read from HOME/admin.key."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the service's response as JSON.")]


@dataclass(frozen=True)
class Session:
    """One command's client and terminal."""

    client: Client
    console: Console
    json: bool

    def job(self, name_or_id: str) -> str:
        """A job's id, for its id or its name; raises ScrimpError if none or several have this name."""
        return self.client.jobs.id_of(name_or_id)

    def result(self, answer: Any, render: Callable[[], Any]) -> None:
        """Prints a response: as JSON if requested, otherwise with `render`."""
        if self.json:
            print(json.dumps(plain(answer), indent=2, ensure_ascii=False))
        else:
            render()


def plain(answer: Any) -> Any:
    """A response as plain JSON values."""
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", by_alias=True)
    if isinstance(answer, list):
        return [plain(each) for each in answer]
    return answer


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function whose first argument is a Session; adds the connection's options to its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        options = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, default, annotation in (("url", None, Url), ("key", None, Key), ("as_json", False, Json))
        ]

        @functools.wraps(function)
        def run(*, url: str | None, key: str | None, as_json: bool, **arguments: Any) -> None:
            _run(function, url, key, as_json, arguments)

        parameters = [*list(signature.parameters.values())[1:], *options]
        # Typer reads this; set this way because functools.wraps has copied the wrapped function's own.
        vars(run)["__signature__"] = signature.replace(parameters=parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name)(run)
        return function

    return register


def _run(
    function: Callable[..., None], url: str | None, key: str | None, as_json: bool, arguments: dict[str, Any]
) -> None:
    try:
        url, key = connection(url, key)
        with Client(url, key) as client:
            function(Session(client, show.console(), as_json), **arguments)
    except ScrimpError as error:
        _tell(error, as_json)
        raise typer.Exit(_status_of(error)) from None
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        missing = MissingPackage("this command", str(error.name), f"scrimp-client[{extra}]")
        _tell(missing, as_json)
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:  # `scrimp … | head`
        sys.stderr.close()
        raise typer.Exit(FAILED) from None


def connection(url: str | None, key: str | None) -> tuple[str, str | None]:
    """Address and key: as given, or else the local home's. A home's admin key is sent to this machine only."""
    url = url or local.url()
    if key is None and urlsplit(url).hostname in LOOPBACK:
        try:
            key = local.admin_key_path().read_text().strip()
        except OSError:
            key = None
    return url, key


def _status_of(error: ScrimpError) -> int:
    return REFUSED if isinstance(error, BudgetRefused) else USAGE if isinstance(error, Undecided) else FAILED


def _tell(error: ScrimpError, as_json: bool) -> None:
    if as_json and isinstance(error, ApiError):
        print(json.dumps(error.problem, indent=2, ensure_ascii=False), file=sys.stderr)
    else:
        show.error(show.console(stderr=True), error)


def read_json(path: Path, others: str = "") -> dict[str, Any]:
    """Reads a JSON object from a file, or from standard input for `-`. A fault in it is a usage error.

    Args:
        others: what else the command reads, for the error about a data file.
    """
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        for magic, name in FILES.items():
            if content.startswith(magic):
                raise typer.BadParameter(f"{path} is {name}: this command reads JSON{others}")
        document = json.loads(content.decode())
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise typer.BadParameter(f"{path} is not a JSON object")
    return document


def written(path: Path, content: bytes) -> None:
    """Writes a file that an option names. A fault in its name is a usage error."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None


def first(items: Iterable[Any], limit: int) -> list[Any]:
    """Yields at most `limit` items; never requests further pages."""
    return [item for item, _ in zip(items, range(limit), strict=False)]
