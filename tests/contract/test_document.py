"""The OpenAPI document says of every route what it may answer, and its examples are what they show."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openapi_python_client.config import Config, ConfigFile, MetaType
from openapi_python_client.parser import GeneratorData
from pydantic import BaseModel

from app.budgets.schemas import BudgetDecision, BudgetRequestBody, BudgetSetting
from app.charges.schemas import ChargeRequest, VoidRequest
from app.grants.routes import GrantRequest
from app.keys.routes import KeyChange, KeyRequest, Rotation
from app.ledger.schemas import CapChange, Join
from app.web import examples, openapi
from app.web.route_operation import MEMBERS, OPERATIONS, TAGS
from app.webhooks.schemas import WebhookChange, WebhookRequest
from core import errors
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PROBLEM_JSON = "application/problem+json"


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_it_is_an_openapi_document(document: Json) -> None:
    from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

    assert document["openapi"].startswith("3.1.")
    OPENAPI_31_VALIDATOR.validate(document)
    references = re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(document))
    assert set(references) <= set(document["components"]["schemas"])


def test_every_operation_is_described(document: Json) -> None:
    names = [operation["operationId"] for _path, _method, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert set(names) == set(OPERATIONS)
    known = openapi.kinds()
    for each in OPERATIONS.values():
        assert set(each.problems) <= set(known)
    tagged = {tag for _path, _method, operation in operations(document) for tag in operation["tags"]}
    assert tagged == set(TAGS)


def test_every_operation_says_who_may_and_what_can_go_wrong(document: Json) -> None:
    for path, method, operation in operations(document):
        answers = operation["responses"]
        for status, answer in answers.items():
            if int(status) >= 400:
                assert PROBLEM_JSON in answer["content"], (method, path, status)
                assert "HTTPValidationError" not in str(answer)
            assert answer["description"] not in ("Successful Response", "Validation Error"), (path, status)
        assert any(int(status) < 300 for status in answers)
        if path not in ("/healthz", "/readyz"):
            assert operation["security"], path
            assert {"400", "401", "500", "503"} <= set(answers), path
        if "{" in path:
            assert {"404", "422"} <= set(answers), path
        if "requestBody" in operation:
            assert {"408", "413", "422"} <= set(answers), path
            for content in operation["requestBody"]["content"].values():
                assert content["examples"], path
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (path, parameter["name"])


def test_the_idempotency_key_is_required_and_what_is_made_has_an_address(document: Json) -> None:
    submit = document["paths"]["/v1/jobs"]["post"]
    header = next(each for each in submit["parameters"] if each["name"] == "Idempotency-Key")
    assert header["required"] and header["schema"]["type"] == "string"
    for path in ("/v1/jobs", "/v1/datasets"):
        assert document["paths"][path]["post"]["responses"]["201"]["headers"]["Location"]["required"]


def test_every_kind_of_problem_has_a_schema_and_every_conflict_a_name(document: Json) -> None:
    known = openapi.kinds()
    assert set(get_args(errors.ConflictCode)) == set(errors.CONFLICTS) <= set(known)
    for kind in known.values():
        assert kind.schema_name in document["components"]["schemas"]
    assert set(MEMBERS) | set(examples.PROBLEMS) <= set(known)
    assert {"Problem", "InvalidRequestProblem", "BudgetExceededProblem"} <= set(document["components"]["schemas"])


def test_every_example_is_what_it_shows(document: Json) -> None:
    shown, validators = 0, {}
    for path, _method, operation in operations(document):
        contents = [*operation.get("requestBody", {}).get("content", {}).items()]
        for answer in operation["responses"].values():
            contents += answer.get("content", {}).items()
        for media_type, content in contents:
            values = [each["value"] for each in content.get("examples", {}).values()]
            values += [content["example"]] if "example" in content else []
            name = json.dumps(content["schema"])
            if values and name not in validators:  # each reads all components
                schema = content["schema"] | {"components": document["components"]}
                validators[name] = jsonschema_rs.validator_for(schema)
            for value in values:
                faults = list(validators[name].iter_errors(value))
                assert not faults, (path, media_type, faults[0].message)
                shown += 1
    assert shown > 100


def test_a_generator_of_clients_makes_every_operation(document: Json) -> None:
    """openapi-python-client left out four operations, whose schemas had objects as defaults."""
    config = Config.from_sources(ConfigFile(), MetaType.NONE, ROOT / "docs" / "openapi.json", "utf-8", False, None)
    made = GeneratorData.from_dict(copy.deepcopy(document), config=config)
    assert isinstance(made, GeneratorData), made
    collections = made.endpoint_collections_by_tag.values()
    faults = [*made.errors, *(fault for each in collections for fault in each.parse_errors)]
    assert [(fault.header, fault.detail) for fault in faults] == []
    assert sum(len(each.endpoints) for each in collections) == len(list(operations(document)))


def test_a_route_without_a_declaration_is_no_operation() -> None:
    app = FastAPI(generate_unique_id_function=openapi.operation_id)

    @app.get("/v1/planted")
    def planted(limit: int) -> None: ...

    with pytest.raises(TypeError, match="GET /v1/planted says nothing of itself"):
        openapi.document(app)()


MODELS: list[tuple[type[BaseModel], Json]] = [
    *((JobSpec, spec) for spec in examples.JOB_SPECS.values()),
    *((DatasetSpec, spec) for spec in (examples.DATASET_SPECS | examples.SPECS_WITHOUT_FILE).values()),
    *((KeyRequest, body) for body in OPERATIONS["create_key"].requests.values()),
    *((GrantRequest, body) for body in OPERATIONS["set_grant"].requests.values()),
    *((KeyChange, body) for body in OPERATIONS["change_key"].requests.values()),
    *((Rotation, body) for body in OPERATIONS["rotate_key"].requests.values()),
    *((WebhookRequest, body) for body in OPERATIONS["create_webhook"].requests.values()),
    *((WebhookChange, body) for body in OPERATIONS["change_webhook"].requests.values()),
    *((ChargeRequest, body) for body in OPERATIONS["reserve_charge"].requests.values()),
    *((VoidRequest, body) for body in OPERATIONS["void_charge"].requests.values()),
    *((BudgetSetting, body) for body in OPERATIONS["set_budget"].requests.values()),
    *((BudgetRequestBody, body) for body in OPERATIONS["request_budget"].requests.values()),
    *((BudgetDecision, body) for body in OPERATIONS["approve_budget_request"].requests.values()),
    *((CapChange, body) for body in OPERATIONS["change_cap"].requests.values()),
    *((Join, body) for body in OPERATIONS["join_ledger"].requests.values()),
]


@pytest.mark.parametrize(("model", "body"), MODELS, ids=lambda each: getattr(each, "__name__", ""))
def test_every_request_shown_is_one_that_is_taken(model: type[BaseModel], body: Json) -> None:
    model.model_validate(body)


def test_every_problem_of_the_running_service_fits_its_schema(client: TestClient, document: Json, whole: Any) -> None:
    scene, ids = whole
    headers = {"Authorization": f"Bearer {scene.analyst.token}"}
    spec = examples.JOB_SPECS["a target ε, full batch"] | {"dataset": ids.reviews, "privacy": {"target_epsilon": 3.99}}
    answers = {
        "budget-exceeded": client.post("/v1/jobs", json=spec, headers=headers | {"Idempotency-Key": "x"}),
        "invalid-request": client.post("/v1/jobs", json=spec, headers=headers),
        "unauthenticated": client.get("/v1/jobs"),
        "forbidden": client.get("/v1/keys", headers=headers),
        "not-found": client.get("/v1/jobs/job_x", headers=headers),
        "wrong-state": client.post(f"/v1/jobs/{ids.failed}/cancel", headers=headers),
        "unknown-host": client.get("/v1/jobs", headers={"Host": "evil.example"}),
        "too-large": client.post("/v1/quotes", content=b"x" * 2**21, headers=headers),
    }
    kinds = openapi.kinds()
    for code, answer in answers.items():
        assert answer.headers["content-type"] == PROBLEM_JSON, code
        assert answer.json()["type"] == f"/problems/{code}"
        schema = document["components"]["schemas"][kinds[code].schema_name] | {"components": document["components"]}
        jsonschema_rs.validate(schema, answer.json())


def test_the_committed_document_is_this_one(document: Json) -> None:
    committed = (ROOT / "docs" / "openapi.json").read_text()
    assert committed == openapi.as_text(document), "run `make openapi`"
