"""Requests that schemathesis makes up from the OpenAPI document, sent to a running service; what is wrong with answers.

One role at a time: the document is the same for all, what a role may do is not. The ids of real jobs, data sets and
keys are put into most requests, so that they reach what is behind the lookup. Prices are kept cheap: nearly all plans
are full batch, as a Poisson plan costs seconds of numerics that are not tested here.
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
TIMEOUT_S = 60


@dataclass
class Ids:
    """What is in the service. `keys` may be revoked."""

    jobs: list[str]
    finished_jobs: list[str]
    datasets: list[str]
    keys: list[str]
    webhooks: list[str]


@dataclass
class Report:
    """What was sent and what came back."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())


def explore(document: Json, url: str, token: str, ids: Ids, *, count: int, seed: int) -> Report:
    """Sends `count` requests or a few more, evenly over all operations: half as the document says, half not.

    In rounds, as one may find fewer than it was asked for. An operation without parameters is asked once a round.
    """
    report = Report()
    # The key is ours to send: a made-up one would only ever see the first line of every route.
    config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
    schema = schemathesis.openapi.from_dict(document, config=config)
    strategies = []
    for operation in (found.ok() for found in schema.get_all_operations()):
        described = document["paths"][operation.path][operation.method]
        plain = not ({"parameters", "requestBody"} & set(described))  # nothing wrong can be sent
        modes = [GenerationMode.POSITIVE] if plain else [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
        strategies += [(_real(operation.as_strategy(generation_mode=mode), ids), plain) for mode in modes]
    varied = sum(not plain for _strategy, plain in strategies)
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {token}"
        send = _sender(session, url, report)
        while (missing := count - report.requests) > 0:
            for each in list(strategies):
                strategy, plain = each
                if not _run(strategy, send, 1 if plain else ceil(missing / varied), seed):
                    strategies.remove(each)
            seed += 1
    return report


def _run(strategy: Any, send: Callable[[Any], None], count: int, seed: int) -> bool:
    """Sends up to `count` cases. False where there are none: nothing is wrong in a path that takes any text."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def run(case: Any) -> None:
        send(case)

    try:
        run()
    except hypothesis.errors.Unsatisfiable:
        return False
    return True


@st.composite
def _real(draw: st.DrawFn, strategy: Any, ids: Ids) -> Any:
    """A case with ids of what is there, mostly."""
    case = draw(strategy)
    known = {
        "job_id": ids.jobs,
        "dataset_id": ids.datasets,
        "key_id": ids.keys,
        "webhook_id": ids.webhooks,
        "name": ["model.safetensors"],
    }
    for name in case.path_parameters or {}:
        if name in known and draw(st.integers(0, 9)) < 8:
            case.path_parameters[name] = draw(st.sampled_from(known[name]))
    if isinstance(case.body, dict):
        if "dataset" in case.body and draw(st.integers(0, 9)) < 8:
            case.body["dataset"] = draw(st.sampled_from(ids.datasets))
        if isinstance(case.body.get("sampling"), dict) and draw(st.integers(0, 19)) > 0:
            case.body["sampling"] = {"kind": "full_batch"}
    if draw(st.integers(0, 19)) == 0:
        case.headers["Authorization"] = draw(st.sampled_from(["Bearer scrimp_key_a_b", "Basic eDp5", "Bearer"]))
    if case.path.endswith("/events") and draw(st.booleans()):
        case.path_parameters["job_id"] = draw(st.sampled_from(ids.finished_jobs))
        case.headers["Accept"] = "text/event-stream"
    return case


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
