"""JSON exists at the edges and nowhere between: prices, plans and events are frozen documents."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TYPED = ("app", "worker")
# file: how many types of it are JSON, and what that is. A number only falls.
EDGES = {
    "app/audit/audit_chain.py": (1, "an entry's canonical JSON, over which the chain's hashes are made"),
    "app/audit/record.py": (3, "the column of an audit entry's details"),
    "app/audit/routes.py": (1, "an audit entry's details, as the REST contract shows them"),
    "app/budgets/budget_requests.py": (1, "the body of a webhook"),
    "app/catalogue/optimizer_kinds.py": (1, "a JSON Schema"),
    "app/catalogue/routes.py": (3, "JSON Schemas"),
    "app/chain.py": (1, "canonical JSON"),
    "core/contracts/architectures.py": (2, "a model folder's config.json"),
    "core/contracts/job_spec.py": (1, "a request as its caller wrote it"),
    "app/dashboard/chart.py": (1, "what a chart's script reads"),
    "app/dashboard/draft.py": (2, "a draft: a request that a person is still writing"),
    "app/dashboard/fields.py": (31, "a JSON Schema, and the drafts that its form reads and writes"),
    "app/dashboard/job_draft.py": (4, "a draft"),
    "app/dashboard/name_choice.py": (2, "a draft, whose name it may be"),
    "app/dashboard/numbers.py": (1, "filters of templates, by name"),
    "app/dashboard/page.py": (1, "the query of an address"),
    "app/dashboard/job_list.py": (1, "a template's variables"),
    "app/dashboard/job_pages.py": (1, "a template's variables"),
    "app/dashboard/whatif.py": (1, "a draft"),
    "app/datasets/readings.py": (2, "a problem document, as it is stored"),
    "app/datasets/reading_routes.py": (1, "the OpenAPI document"),
    "app/datasets/schemas.py": (10, "a declaration as it is stored, which the REST contract shows as it is"),
    "app/db/audit_tables.py": (1, "columns"),
    "app/db/table_base.py": (4, "the type of JSON columns"),
    "app/db/charge_table.py": (1, "columns"),
    "app/db/models.py": (
        14,
        "columns: their readers are JobSpec, DatasetSpec, MechanismConfig, Quoted, StoredStudy, Memo, Signed",
    ),
    "app/db/predictions.py": (5, "columns"),
    "app/db/trip.py": (1, "the parameters of a statement"),
    "app/db/statement_batch.py": (2, "the parameters of a statement"),
    "app/db/webhook_tables.py": (3, "columns"),
    "app/db/worker_table.py": (3, "columns"),
    "app/identity/provider_requests.py": (3, "an identity provider's answers, which provider.py reads"),
    "app/identity/provider.py": (5, "the documents and claims of an identity provider, on their way to an `Identity`"),
    "app/egress/crate.py": (16, "the RO-Crate's JSON-LD"),
    "core/errors.py": (2, "problem documents"),
    "core/parts/chat.py": (3, "a model folder's tokenizer_config.json"),
    "app/formats/faults.py": (1, "members of a problem document"),
    "core/parts/inputs.py": (1, "records that a caller sends"),
    "app/formats/jsonl_file.py": (3, "records of a JSON Lines file"),
    "core/parts/model_folder.py": (2, "a model folder's config.json"),
    "app/formats/parse.py": (2, "the pipe, on the side of the parsing process"),
    "app/formats/recount.py": (2, "the pipe, on the side of the parsing process"),
    "app/formats/row_faults.py": (3, "members of a problem document"),
    "app/pricing/service.py": (11, "the pipe, on the service's side, and the cache of prices in the database"),
    "app/db/row_view.py": (1, "a row's members, on their way to JSON text"),
    "app/admission/job_rows.py": (4, "the JSON columns of a new job"),
    "app/admission/quote.py": (1, "a quote's event tree, as the REST contract shows it"),
    "app/jobs/schemas.py": (3, "a job's columns and an event's, as the REST contract shows them"),
    "app/ledger/accounts.py": (1, "the row that a hold's statement writes"),
    "app/ledger/block_accounts.py": (2, "the arguments of a hold, by name"),
    "app/ledger/entries.py": (6, "an entry's canonical JSON, its row, and the arguments of a move, by name"),
    "app/ledger/schemas.py": (1, "an entry's memo, as the REST contract shows it"),
    "app/lifecycle/broker.py": (3, "options of Celery"),
    "app/lifecycle/spool.py": (3, "messages of Celery"),
    "app/logs.py": (1, "a line of a log"),
    "app/predictions/prediction_claims.py": (1, "the answers of a prediction, of the task's own shape"),
    "app/predictions/schemas.py": (1, "the answers of a prediction"),
    "core/privacy/pricing_server.py": (4, "the pipe, on the side of the pricing process"),
    "app/storage/s3.py": (1, "options of boto3"),
    "app/sandbox/limited.py": (10, "the pipe between the service and its helper processes"),
    "app/web/examples.py": (17, "examples of the OpenAPI document"),
    "app/web/body_limits.py": (1, "a message of ASGI"),
    "app/web/openapi.py": (14, "the OpenAPI document"),
    "app/web/route_operation.py": (4, "the OpenAPI document"),
    "app/web/problems.py": (3, "problem documents, and the bodies that they are about"),
    "app/web/ratelimit.py": (1, "options of the limiter"),
    "app/web/strict_json.py": (1, "a request's body"),
    "app/web/suggest.py": (1, "an error of pydantic"),
    "app/webhooks/delivery.py": (1, "the values of a statement"),
    "app/webhooks/alerts.py": (1, "the body of a webhook"),
    "app/webhooks/forms.py": (2, "the body of a webhook, in words"),
    "app/webhooks/mail.py": (2, "the body of a webhook, in words"),
    "app/webhooks/service.py": (6, "the body of a webhook"),
    "worker/attempt/auditor.py": (1, "what a report prints"),
    "worker/clipping/bookkeeping.py": (1, "arguments of torch modules"),
    "worker/clipping/own.py": (1, "arguments of torch modules"),
    "worker/extractors/encoder.py": (1, "a model folder's config.json"),
    "worker/messages.py": (1, "the answers of a prediction"),
    "worker/models/base.py": (1, "a model's card"),
    "worker/models/model_files.py": (1, "a model's card"),
    "worker/models/graph_module.py": (20, "arguments of torch operations"),
    "worker/models/hf/tuned_files.py": (1, "a model's card, and config.json"),
    "worker/models/hf/lora.py": (1, "adapter_config.json"),
    "worker/models/linear.py": (1, "a model's card"),
    "worker/models/matrix_factorization.py": (1, "a model's card"),
    "worker/models/modules.py": (1, "a model's card"),
    "worker/predicting/language.py": (1, "the answers of a prediction"),
    "worker/predicting/loaded.py": (4, "a model's card"),
    "worker/predicting/predict.py": (1, "the answers of a prediction"),
    "worker/predicting/supervise.py": (2, "the answers of a prediction"),
}
# JSON columns. Whoever needs a member reads the whole as a document.
COLUMNS = {"spec", "quote", "mechanism", "memo", "study"}
ROWS = (
    "app/lifecycle",
    "app/ledger",
    "app/admission",
    "app/jobs",
    "app/datasets",
    "app/charges",
    "app/budgets",
    "worker/attempt",
)


def untyped(tree: ast.AST) -> Iterator[str]:
    """Types without members: objects of anything by name, under whatever name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("dict", "Mapping", "MutableMapping", "Dict"):
            arguments = ast.unparse(node.slice).strip("()").split(", ")
            if arguments[0] == "str" and arguments[-1] in ("Any", "object"):
                yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Name | ast.alias):
            name = node.id if isinstance(node, ast.Name) else node.name
            if name in ("TypedDict", "Json", "JSON"):
                yield f"{node.lineno}: {name}"


@pytest.mark.parametrize(
    "code",
    [
        "def f(x: dict[str, Any]): ...",
        "def f() -> list[Mapping[str, object]]: ...",
        "Json = int",
        "from typing import TypedDict",
        "x: dict[str, object] = {}",
    ],
)
def test_the_test_sees_what_is_untyped(code: str) -> None:
    assert list(untyped(ast.parse(code)))


def files(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_json_is_at_the_edges_alone() -> None:
    """A new type without members is a new edge: say here what of the file is JSON, or make it a document."""
    found = {name: said for name, tree in files(*TYPED) if (said := list(untyped(tree)))}
    assert {name: said for name, said in found.items() if len(said) > EDGES.get(name, (0, ""))[0]} == {}


def members_by_name(tree: ast.AST) -> Iterator[str]:
    """`row.spec["privacy"]`, and `row.spec.get("privacy")`: a misspelt name is not an error of mypy's."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(value=of, attr=name), slice=ast.Constant(value=str())):
                pass
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=of, attr=name), attr="get"), args=[ast.Constant(), *_]
            ):
                pass
            case _:
                continue
        if name in COLUMNS and not ast.unparse(of)[:1].isupper():  # Job.spec["runtime"] is SQL
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "code", ['job.spec["privacy"]', 'row.quote.get("charge")', 'session.get_one(Job, a).memo["x"]']
)
def test_the_test_sees_members_by_name(code: str) -> None:
    assert list(members_by_name(ast.parse(code))) and not list(members_by_name(ast.parse('Job.spec["runtime"]')))


def test_no_member_of_a_column_is_read_by_name() -> None:
    assert {name: said for name, tree in files(*ROWS) if (said := list(members_by_name(tree)))} == {}
