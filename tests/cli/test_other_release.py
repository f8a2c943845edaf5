"""A service of another release: what the client cannot read is said in one line, not in a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from scrimp import Client
from scrimp.cli import app
from scrimp.errors import ScrimpError, UnexpectedAnswer
from scrimp.models import Ledger
from tests import servers
from tests.factories import job_answer

JOB = json.loads(json.dumps(job_answer({}), default=str))


@contextmanager
def service(answer: dict[str, Any]) -> Iterator[str]:
    """The address of a service that gives one answer to every question."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with servers.answering(ThreadingHTTPServer(("127.0.0.1", 0), Other)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(
    ("answer", "member"),
    [
        (JOB | {"progress": None}, "progress"),
        (JOB | {"progress": {"steps": 5}}, "progress.step"),
        ({name: value for name, value in JOB.items() if name != "status"}, "status"),
    ],
    ids=["null", "missing in a part", "missing"],
)
def test_an_answer_that_lacks_a_member_is_told_in_one_line(answer: dict[str, Any], member: str) -> None:
    with service(answer) as url:
        with Client(url, "key") as client, pytest.raises(UnexpectedAnswer) as error:
            client.job("job_a")
        shown = CliRunner().invoke(app, ["jobs", "show", "job_a", "--url", url, "--key", "key"])
    assert (error.value.answer, error.value.member) == ("Job", member)
    assert isinstance(error.value, ScrimpError)
    assert shown.exit_code == 1 and isinstance(shown.exception, SystemExit)
    (line,) = shown.stderr.splitlines()
    assert f"no Job that this client knows ({member}: " in line and "of different releases" in line


def test_a_list_s_item_that_lacks_a_member_is_told_so() -> None:
    with (
        service({"items": [JOB | {"id": None}], "next": None}) as url,
        Client(url, "key") as client,
        pytest.raises(UnexpectedAnswer, match=r"\(id: "),
    ):
        list(client.jobs())


def test_a_member_of_a_member_is_named_by_its_path() -> None:
    with pytest.raises(UnexpectedAnswer, match=r"no Ledger that this client knows \(cap\.value: "):
        Ledger.model_validate({"cap": {"value": None, "delta": 1e-5, "accountant": "gdp"}})
