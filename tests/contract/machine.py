"""Requests that schemathesis makes up from the OpenAPI document, sent to a running service; what is wrong with answers.

Made up once and sent under one role after the other: the document is the same for all, what a role may do is not. The
ids of real jobs, data sets and keys are put into most requests, so that they reach what is behind the lookup. Prices
are kept cheap: nearly all plans are full batch, as a Poisson plan costs seconds of numerics that are not tested here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from app.web.headers import API_POLICY, EVERYWHERE

Json = dict[str, Any]
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TIMEOUT_S = 300.0


@dataclass
class Ids:
    """What is in the service: as many of each as SIZES says. `keys` may be revoked."""

    jobs: list[str]
    finished_jobs: list[str]
    datasets: list[str]
    keys: list[str]
    webhooks: list[str]


SIZES = {"jobs": 6, "finished_jobs": 3, "datasets": 3, "keys": 3, "webhooks": 3}
PLACES = {"job_id": "jobs", "dataset_id": "datasets", "key_id": "keys", "webhook_id": "webhooks"}


@dataclass
class Drawn:
    """A request, and where in it an id of what is there goes: (a part of it, a member's name, of `Ids`, which one)."""

    case: Any
    slots: list[tuple[Json, str, str, int]] = field(default_factory=list)

    def fill(self, ids: Ids) -> Any:
        for part, name, kind, number in self.slots:
            part[name] = getattr(ids, kind)[number]
        return self.case


@dataclass
class Report:
    """What was sent and what came back."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())


def draw_requests(document: Json, *, count: int, seed: int, both: bool = True) -> list[Drawn]:
    """Makes up `count` requests or a few more, evenly over all operations: half as the document says, half not.

    They hold no id of any service: what they are filled with before they are sent, so that each role is sent them all,
    and they are made up once. In rounds, as one may find fewer than it was asked for. An operation without parameters
    is asked once a round.

    Args:
        both: each operation is sent requests as the document says and others; False: it is sent one kind, in turn.
    """
    made: list[Drawn] = []
    # The key is ours to send: a made-up one would only ever see the first line of every route.
    config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
    schema = schemathesis.openapi.from_dict(document, config=config)
    strategies = []
    for number, operation in enumerate(found.ok() for found in schema.get_all_operations()):
        described = document["paths"][operation.path][operation.method]
        plain = not ({"parameters", "requestBody"} & set(described))
        modes = [GenerationMode.POSITIVE, *([] if _takes_anything(described) else [GenerationMode.NEGATIVE])]
        if not both:
            modes = [modes[number % len(modes)]]
        strategies += [(_real(operation.as_strategy(generation_mode=mode)), plain) for mode in modes]
    varied = sum(not plain for _strategy, plain in strategies)
    while (missing := count - len(made)) > 0:
        for strategy, plain in strategies:
            _run(strategy, made.append, 1 if plain else ceil(missing / varied), seed)
        seed += 1
    return made


def explore(drawn: list[Drawn], url: str, token: str, ids: Ids) -> Report:
    """Sends all of them with a key."""
    report = Report()
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {token}"
        send = _sender(session, url, report)
        for each in drawn:
            send(each.fill(ids))
    return report


def _takes_anything(described: Json) -> bool:
    """Whether nothing wrong can be sent: there are no parameters, or texts in the path alone. Trying takes long."""
    free = [
        each["in"] == "path" and {"type"} == set(each["schema"]) - {"title", "description"}
        for each in described.get("parameters", ())
    ]
    return "requestBody" not in described and all(free)


def _run(strategy: Any, take: Callable[[Drawn], None], count: int, seed: int) -> None:
    """Draws up to `count` requests."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(drawn=strategy)
    def run(drawn: Drawn) -> None:
        take(drawn)

    run()


@st.composite
def _real(draw: st.DrawFn, strategy: Any) -> Drawn:
    """A request with ids of what is there, mostly."""
    case = draw(strategy)
    drawn = Drawn(case)

    def slot(part: Json, name: str, kind: str) -> None:
        drawn.slots.append((part, name, kind, draw(st.integers(0, SIZES[kind] - 1))))

    for name in case.path_parameters or {}:
        if name in {*PLACES, "name"} and draw(st.integers(0, 9)) < 8:
            if name == "name":
                case.path_parameters[name] = "model.safetensors"
            else:
                slot(case.path_parameters, name, PLACES[name])
    if isinstance(case.body, dict):
        if "dataset" in case.body and draw(st.integers(0, 9)) < 8:
            slot(case.body, "dataset", "datasets")
        if isinstance(case.body.get("sampling"), dict) and draw(st.integers(0, 19)) > 0:
            case.body["sampling"] = {"kind": "full_batch"}
    if draw(st.integers(0, 19)) == 0:
        case.headers["Authorization"] = draw(st.sampled_from(["Bearer scrimp_key_a_b", "Basic eDp5", "Bearer"]))
    if case.path.endswith("/events") and draw(st.booleans()):
        if "job_id" in case.path_parameters:
            slot(case.path_parameters, "job_id", "finished_jobs")
        case.headers["Accept"] = "text/event-stream"
    return drawn


def _sender(session: requests.Session, url: str, report: Report) -> Callable[[Any], None]:
    def send(case: Any) -> None:
        response = case.call(base_url=url, session=session, timeout=TIMEOUT_S)
        report.statuses[f"{case.method} {case.path}", response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
            _check_ours(response)
        except Exception as error:  # the report is to have them all
            place = f"{case.method} {case.path} -> {response.status_code}"
            report.findings.append(f"{place}\n{error}\n{case.as_curl_command()[:2000]}")

    return send


def _check_ours(response: Any) -> None:
    """What the document does not say: the headers of every answer, problems in the form of problems."""
    headers = {name.lower(): values[0] for name, values in response.headers.items()}
    for name, value in (EVERYWHERE | {"Content-Security-Policy": API_POLICY}).items():
        if headers.get(name.lower()) != value:
            raise AssertionError(f"{name} is {headers.get(name.lower())!r}")
    if response.status_code >= 400:
        if headers.get("content-type") != "application/problem+json":
            raise AssertionError(f"a problem came as {headers.get('content-type')}")
        if response.json()["status"] != response.status_code:
            raise AssertionError("the problem's status is not the answer's")
