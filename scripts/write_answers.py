"""Writes scrimp/models: the client's answers, from the schemas of the service's answers. `write_specs.py` runs it.

An answer is open: a newer service may add members, kinds and states. Members keep the order of their declaration.
What answers can do beside holding members stands in scrimp/behaviour.py, in a class of the same name.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH = 105  # of a method's docstring
CLIENT = Path(__file__).resolve().parents[1] / "scrimp"
Schema = dict[str, Any]
# The client's classes by file, with the schemas that they show; several where a route answers with one of several. A
# schema that is not in this table is a dict to the client.
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "data": {
        "Account": ("AccountView",),
        "Approval": ("ApprovalView",),
        "BlockBalance": ("BlockBalance",),
        "Budget": ("BudgetView",),
        "BudgetPart": ("BudgetPart",),
        "BudgetRequest": ("BudgetRequestView",),
        "Charge": ("ChargeView",),
        "CheckedDataset": ("CheckedDataset",),
        "DataBlock": ("BlockView", "RetiredBlock", "AppendedBlock", "ReadingBlock"),
        "Dataset": ("DatasetView", "ReadingDataset"),
        "Epsilon": ("Epsilon",),
        "ErasureNote": ("ErasureNote",),
        "Grant": ("GrantView", "NewGrant"),
        "GrantTerms": ("GrantRequest",),
        "KeySpending": ("KeySpending",),
        "Ledger": ("LedgerView",),
        "LedgerEntry": ("EntryView",),
        "PartSlots": ("PartSlots",),
        "Persons": ("PersonsView",),
        "Read": ("Read",),
        "Reading": ("Reading",),
        "ReadingProgress": ("ReadingProgress",),
        "RedeclaredDataset": ("RedeclaredDataset",),
        "RegisteredDataset": ("RegisteredDataset", "ReadingDataset"),
        "Shape": ("Shape",),
        "Slots": ("Slots",),
        "Spending": ("SpendingView",),
        "SpentPart": ("SpentPart",),
        "Upload": ("UploadView",),
        "Verification": ("VerificationView",),
    },
    "jobs": {
        "Artifact": ("ArtifactView",),
        "Charged": ("ChargedView",),
        "Choice": ("Choice",),
        "Egress": ("EgressView",),
        "Event": ("EventView",),
        "Fit": ("FitView",),
        "Forecast": ("Forecast",),
        "Histogram": ("ReleasedHistogram",),
        "Job": ("JobView",),
        "Line": ("Line",),
        "Memory": ("MemoryEstimate",),
        "Metric": ("MetricView",),
        "Numerics": ("Numerics",),
        "Outcome": ("Outcome",),
        "Outlook": ("Outlook",),
        "Part": ("Part",),
        "Progress": ("Progress",),
        "Quote": ("Quote",),
        "ReadBlock": ("ReadBlock",),
        "Resolved": ("Resolved",),
        "ScoreNoise": ("ScoreNoise",),
        "Start": ("Start",),
        "Study": ("StudyView",),
        "Sweep": ("SweepView",),
        "SweepPoint": ("SweepPoint",),
        "Trial": ("TrialView",),
        "Trials": ("TrialList",),
    },
    "service": {
        "AuditEntry": ("AuditEntryView",),
        "AuditVerification": ("AuditVerification",),
        "Checkpoint": ("CheckpointView",),
        "Delivery": ("DeliveryView",),
        "Graph": ("GraphView",),
        "Key": ("KeyView",),
        "NewKey": ("NewKey",),
        "NewSecret": ("NewSecret",),
        "Optimizer": ("OptimizerView",),
        "Proof": ("ProofView",),
        "SignedCertificate": ("CertificateDocument",),
        "SignatureDate": ("SignatureDate",),
        "SigningHistory": ("SigningHistory",),
        "SigningKey": ("SigningKeyView",),
        "Webhook": ("WebhookView",),
        "Safeguard": ("Safeguard",),
        "UsageRow": ("UsageRow",),
        "Worker": ("WorkerView",),
    },
}
ANSWERS = {name: schemas for classes in FILES.values() for name, schemas in classes.items()}
# A class that has all members of another one extends it.
EXTENDS = {"RegisteredDataset": "Dataset", "RedeclaredDataset": "RegisteredDataset"}
# Members whose type differs from their schema's.
TYPES = {
    ("CheckedDataset", "shape"): "dict[str, Any]",
    ("Forecast", "per_job"): "dict[str, int]",
    # Of a file that is being read it is null: scrimp/behaviour.py fills in zeros.
    ("DataBlock", "shape"): "Shape",
    ("Dataset", "shape"): "Shape",
    ("RegisteredDataset", "shape"): "Shape",
    ("RedeclaredDataset", "shape"): "Shape",
}
# Read, not imported: the client may not load before its answers are written.
BEHAVIOUR = {
    each.name
    for each in ast.parse((CLIENT / "behaviour.py").read_text(encoding="utf-8")).body
    if isinstance(each, ast.ClassDef)
}
RENAMED = {"schema": "json_schema"}  # `schema` is a method of pydantic's models
NAMES = {schema: name for name, schemas in reversed(ANSWERS.items()) for schema in schemas}
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
SAYS = {
    "data": "Answers about data sets, ledgers, budgets and charges.",
    "jobs": "Answers about jobs, prices and studies.",
    "service": "Answers about keys, webhooks, workers, optimizers and signed documents.",
}
HEAD = '''"""The service's answers, typed. Members of a newer service are kept, so that an older client still works.

Written by scripts/write_specs.py from the service's schemas.
"""

from __future__ import annotations

from scrimp.behaviour import FINAL, OF_AUC, Kind, Resource
'''
# Lists that a part of the client asks for in its own way.
BY_HAND = frozenset({"list_jobs", "list_metrics", "list_blocks"})
# The client's methods that are one plain call, by the part of the client; lists of `Lists` are all there.
CALLS: dict[str, dict[str, str]] = {
    "Lists": {
        "agree_approval": "agree",
        "ask_egress": "ask_egress",
        "cancel_job": "cancel",
        "change_key": "change_key",
        "change_webhook": "change_webhook",
        "delete_artifacts": "delete_artifacts",
        "delete_content": "delete_content",
        "delete_webhook": "delete_webhook",
        "delete_graph": "delete_graph",
        "deny_approval": "deny",
        "join_ledger": "join_ledger",
        "label_job": "label",
        "list_entries": "ledger_entries",
        "list_graphs": "graphs",
        "list_hpo_strategies": "strategies",
        "list_trials": "trials",
        "pause_job": "pause",
        "remove_grant": "remove_grant",
        "resume_job": "resume",
        "retire_dataset": "retire_dataset",
        "revoke_key": "revoke_key",
        "rotate_webhook_secret": "rotate_webhook_secret",
        "show_approval": "approval",
        "show_erasure_note": "erasure_note",
        "show_job": "job",
        "show_ledger": "ledger",
        "show_own_key": "own_key",
        "show_persons": "persons",
        "show_signature_date": "signature_date",
        "show_signing_history": "signing_history",
        "show_spending": "spending",
        "show_usage": "usage",
        "show_webhook": "webhook",
        "test_webhook": "test_webhook",
        "verify_audit": "verify_audit",
    },
    "BlockCalls": {"retire_block": "retire"},
    "BudgetCalls": {
        "deny_budget_request": "deny",
        "list_budget_requests": "requests",
        "list_budgets": "__call__",
        "show_budget": "get",
    },
    "ChargeCalls": {
        "list_charges": "__call__",
        "post_charge": "post",
        "show_charge": "get",
        "void_charge": "void",
    },
}
PART_OF = {operation: part for part, calls in CALLS.items() for operation in calls}
NOTHING: Schema = {"type": "null"}
PARAMETERS = {"dataset_id": "dataset", "budget": "name"}  # what the client calls them
LISTS = '''"""Calls of the service that send what they are given: lists, page by page, and plain calls.

Written by scripts/write_specs.py from the routes.
"""

from __future__ import annotations

from typing import Any

from scrimp.models import {names}
from scrimp.rows import Pages
from scrimp.wire import {wire}
'''
CONSTANTS, WITH_IT = ["FINAL", "OF_AUC"], ["Kind", "MetricPoint", "Resource"]


def files(document: Schema) -> dict[str, str]:
    """The files' names within the client and contents, not formatted, of a service that describes itself so."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    ordered = _ordered(schemas)
    texts = {part: _file(part, [name for name in ordered if name in FILES[part]], schemas) for part in FILES}
    imports = [f"from scrimp.models.{part} import {name}\n" for part in FILES for name in FILES[part]]
    # Once a job's last values had another class than the list of all values.
    listed = ", ".join(f'"{name}"' for name in [*CONSTANTS, *sorted([*ANSWERS, *WITH_IT])])
    texts["__init__"] = f"{HEAD}{''.join(imports)}\nMetricPoint = Metric\n\n__all__ = [{listed}]\n"
    return {f"models/{part}.py": text for part, text in texts.items()} | {"lists.py": _lists(document)}


def _lists(document: Schema) -> str:
    """A method for each GET that answers with items, and for each route in CALLS."""
    schemas = document["components"]["schemas"]
    methods: dict[str, dict[str, str]] = {part: {} for part in CALLS}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = operation["operationId"]
            items = _items(operation, schemas) if method == "get" and name not in BY_HAND else None
            if items is None and name not in PART_OF:
                continue
            part = PART_OF.get(name, "Lists")
            called = CALLS[part].get(name, name.removeprefix("list_"))
            answer = next((each for each in _types(_answer(operation), schemas) if each in ANSWERS), None)
            items = None if answer else items  # a list with members of its own has a class
            kinds = [answer] if answer else [] if items is None else _types(items, schemas)
            kind = next((each for each in kinds if each in ANSWERS), "None" if items is None else "Kind")
            if kind == "None" and _answer(operation) != NOTHING:
                raise LookupError(f"the answer of {name} has no class of the client: name it in FILES")
            call = _Call(called, method.upper(), path, operation, _body(operation, schemas))
            methods[part][called] = call.text(kind, is_list=items is not None)
    used = {each for text in methods.values() for found in text.values() for each in re.findall(r"\w+", found)}
    names = ", ".join(sorted(used & {*ANSWERS, "Kind"}))
    parts = [_part(part, calls) for part, calls in methods.items()]
    plain = any("given(" in text for calls in methods.values() for text in calls.values())
    wire = ", ".join(["Part", "Wire", *(["given"] if plain else []), "in_path"])
    return LISTS.format(names=names, wire=wire) + "".join(parts)


def _part(part: str, methods: dict[str, str]) -> str:
    base, said = (
        ("Wire", "`Client`") if part == "Lists" else ("Part", f"`client.{part.removesuffix('Calls').lower()}s`")
    )
    body = "".join(methods[name] for name in sorted(methods))
    return f'\n\nclass {part}({base}):\n    """A part of {said}."""\n{body}'


def _items(operation: Schema, schemas: dict[str, Schema]) -> Schema | None:
    answer = operation.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
    schema = schemas.get(answer.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
    items: Schema | None = schema.get("properties", {}).get("items", {}).get("items")
    return items


def _answer(operation: Schema) -> Schema:
    """The schema of a call's success; of several one after the other."""
    answers = [each for status, each in operation["responses"].items() if status.startswith("2")]
    content = answers[0].get("content", {}).get("application/json", {})
    schema: Schema = content.get("schema", NOTHING)
    return schema


def _body(operation: Schema, schemas: dict[str, Schema]) -> Schema:
    """The schema of a call's body, with its properties; {} without one."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema: Schema = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
    return schema


@dataclass(frozen=True)
class _Call:
    name: str
    method: str
    path: str
    operation: Schema
    body: Schema

    def text(self, kind: str, *, is_list: bool) -> str:
        """The method: it returns an answer of this kind, or pages of them."""
        arguments, path, filters = ["self"], self.path, ""
        for parameter in self.operation.get("parameters", ()):
            called = PARAMETERS.get(parameter["name"], parameter["name"])
            if parameter["in"] == "path":
                arguments.append(f"{called}: str")
                path = path.replace(f"{{{parameter['name']}}}", f"{{in_path({called})}}")
            elif parameter["in"] == "query" and called not in ("after", "limit"):
                arguments.append(f"{called}: {_optional(parameter['schema'])} = None")
                filters += f", {called}={called}"
        sent = self._sent(arguments)
        mark = "f" if "{" in path else ""
        first = " ".join(self.operation["description"].split("\n\n")[0].split())
        said = textwrap.fill(first, WIDTH, subsequent_indent=" " * 8, break_on_hyphens=False)
        sent += f", params=given({filters.removeprefix(', ')})" if filters else ""
        call = f'self.json("{self.method}", {mark}"{path}"{sent})'
        if is_list:
            answer, line = f"Pages[{kind}]", f'return self.pages({mark}"{path}", {kind}{filters})'
        elif kind == "None":
            answer, line = "None", call
        else:
            answer, line = kind, f"return {kind}.model_validate({call})"
        head = f"    def {self.name}({', '.join(arguments)}) -> {answer}:\n"
        return f'\n{head}        """{said}"""\n        {line}\n'

    def _sent(self, arguments: list[str]) -> str:
        """What the call sends; adds its arguments. A change sends what is named alone."""
        properties = self.body.get("properties", {})
        if self.method == "PATCH":
            arguments.append("**changes: Any")
            return ", json=changes"
        for name, schema in properties.items():
            required = name in self.body.get("required", ())
            arguments.append(f"{name}: {_types(schema, {})[0]}" if required else f"{name}: {_optional(schema)} = None")
        pairs = ", ".join(f'"{name}": {name}' for name in properties)
        return f", json={{{pairs}}}" if pairs else ""


def _optional(schema: Schema) -> str:
    return " | ".join(dict.fromkeys([*_types(schema, {}), "None"]))


def _file(part: str, names: list[str], schemas: dict[str, Schema]) -> str:
    """One file with these classes; what they refer to elsewhere is imported."""
    body = "".join(_class(name, schemas) for name in names)
    elsewhere = {NAMES[each] for name in names for each in _refs(ANSWERS[name], schemas)} - FILES[part].keys()
    lines = [f'"""{SAYS[part]} Written by scripts/write_specs.py."""\n\nfrom __future__ import annotations\n\n']
    lines += ["from typing import Any\n\n"] if "Any]" in body else []
    lines += ["from pydantic import Field\n\n"] if "Field(" in body else []
    lines += ["from scrimp import behaviour\n"] if "behaviour." in body else []
    lines += ["from scrimp.behaviour import Resource\n"]
    lines += [f"from scrimp.models.{_home(each)} import {each}\n" for each in sorted(elsewhere)]
    return "".join([*lines, body])


def _home(name: str) -> str:
    return next(part for part, classes in FILES.items() if name in classes)


def _ordered(schemas: dict[str, Schema]) -> list[str]:
    """The classes, each after those that it refers to."""
    ordered: list[str] = []

    def add(name: str) -> None:
        base = [EXTENDS[name]] if name in EXTENDS else []
        for other in [*base, *sorted({NAMES[each] for each in _refs(ANSWERS[name], schemas)})]:
            if other not in ordered and other != name:
                add(other)
        if name not in ordered:
            ordered.append(name)

    for name in ANSWERS:
        add(name)
    return ordered


def _refs(names: tuple[str, ...], schemas: dict[str, Schema]) -> Iterator[str]:
    """The schemas of the table that these refer to, also by way of schemas that are dicts to the client."""
    for name in names:
        for target in _targets(schemas[name].get("properties", {})):
            yield from [target] if target in NAMES else _refs((target,), schemas)


def _targets(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _targets(part)


def _class(name: str, schemas: dict[str, Schema]) -> str:
    parent = EXTENDS.get(name)
    inherited = _members(parent, schemas) if parent else {}
    bases = [parent] if parent else []
    bases += [f"behaviour.{name}"] if name in BEHAVIOUR else []
    lines = "".join(line for member, line in _members(name, schemas).items() if line != inherited.get(member))
    said = schemas[ANSWERS[name][0]]["description"].replace("\n", "\n    ").replace("\n    \n", "\n\n")
    end = "\n    " if "\n" in said else ""
    return f'\n\nclass {name}({", ".join(bases) or "Resource"}):\n    """{said}{end}"""\n\n{lines}'


def _members(name: str, schemas: dict[str, Schema]) -> dict[str, str]:
    """The members of a class, as lines, in the order of their declaration."""
    versions = [schemas[each] for each in ANSWERS[name]]
    members = dict.fromkeys(member for each in versions for member in each["properties"])
    lines = {member: _member(name, member, versions, schemas) for member in members}
    return {member: line for member, line in lines.items() if not line.endswith(": None = None\n")}


def _member(name: str, member: str, versions: list[Schema], schemas: dict[str, Schema]) -> str:
    """A member as a line: it may be missing where a version lacks it, and null where a version allows it."""
    properties = [each["properties"].get(member, {"type": "null"}) for each in versions]
    kinds = list(dict.fromkeys(kind for each in properties for kind in _types(each, schemas)))
    if (name, member) in TYPES:
        return f"    {member}: {TYPES[name, member]}\n"
    if "None" in kinds:
        return f"    {member}: {' | '.join([*(each for each in kinds if each != 'None'), 'None'])} = None\n"
    kind = " | ".join(kinds)
    if member in RENAMED:
        return f'    {RENAMED[member]}: {kind} = Field(alias="{member}")\n'
    # Versions that differ leave the service no choice but to send it. A list that is not sent is empty.
    missing = len(versions) == 1 and member not in versions[0].get("required", ())
    default = f" = {properties[0].get('default')!r}" if missing else " = []" if kind.startswith("list[") else ""
    return f"    {member}: {kind}{default}\n"


def _types(schema: Schema, schemas: dict[str, Schema]) -> list[str]:
    """A schema as Python types, of which a value has one. Bounds and lists of words may change: they are left out."""
    if "$ref" in schema:
        target = schema["$ref"].rpartition("/")[2]
        named = [NAMES[target] if target in NAMES else _dict(schemas[target], schemas)]
        return _types(schemas[target], schemas) if "enum" in schemas[target] else named
    if "anyOf" in schema:
        return [kind for each in schema["anyOf"] for kind in _types(each, schemas)]
    if "oneOf" in schema:
        return ["dict[str, Any]"]
    if schema.get("type") == "array":
        return [f"list[{' | '.join(_types(schema['items'], schemas))}]"]
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return [f"dict[str, {' | '.join(_types(values, schemas)) if isinstance(values, dict) else 'Any'}]"]
    return [PLAIN[schema["type"]]] if "type" in schema else ["Any"]


def _dict(schema: Schema, schemas: dict[str, Schema]) -> str:
    """A schema without a class: a dict; by name of answers of one class, if it has nothing else."""
    kinds = {kind for each in schema.get("properties", {}).values() for kind in _types(each, schemas)} - {"None"}
    return f"dict[str, {kinds.pop()} | None]" if len(kinds) == 1 and kinds <= ANSWERS.keys() else "dict[str, Any]"
