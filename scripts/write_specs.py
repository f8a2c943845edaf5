"""Writes scrimp/specs and scrimp/models: the client's typed specifications and answers, from the service's schemas.

    python -m scripts.write_specs

The contracts in core/contracts are the single source of specifications, the routes' answers that of answers
(scripts/write_answers.py). tests/contract/test_specs.py compares the files and the schemas.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from scripts import write_answers, write_openapi

CLIENT = Path(__file__).resolve().parents[1] / "scrimp"
Schema = dict[str, Any]
BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
    "maxProperties": "max_length",
    "pattern": "pattern",
}
RENAMED = {"in": "one_of"}  # `in` is a word of Python's
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# The files, by the member of a JobSpec that they describe.
PARTS = {"models": "model", "optimizers": "optimizer", "studies": "hpo"}
FIRST_PARTY = 'lint.isort.known-first-party=["scrimp"]'  # also before the files are there
SAYS = {
    "models": "Models of a job.",
    "optimizers": "Optimizers of a job, with schedules and averages.",
    "studies": "Studies of a job: its `hpo` block.",
    "jobs": "A job: of training, statistics or synthetic rows.",
    "datasets": "What an owner declares about a data set.",
}
STUDY = '''

class StudySpec(JobSpec):
    """A private study: a training job with an `hpo` block."""

    hpo: {hpo}
'''


def references(schema: Any) -> set[str]:
    """The names of the documents that a schema refers to."""
    return set(_refs(schema))


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for each in schema.values():
            yield from _refs(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _refs(each)


def _ordered(names: Iterable[str], defs: dict[str, Schema], found: list[str]) -> list[str]:
    """The names and what they refer to, each after its own references."""
    for name in names:
        if name not in found:
            _ordered(sorted(set(_refs(defs[name]))), defs, found)
            found.append(name)
    return found


def _bounded(kind: str, schema: Schema) -> str:
    said = ", ".join(f"{name}={schema[key]!r}" for key, name in BOUNDS.items() if key in schema)
    return f"Annotated[{kind}, Field({said})]" if said else kind


def _type(schema: Schema) -> str:
    """A schema as a Python type."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "oneOf" in schema:
        union = " | ".join(map(_type, schema["oneOf"]))
        return f'Annotated[{union}, Field(discriminator="{schema["discriminator"]["propertyName"]}")]'
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema.get('enum') or [schema['const']]))}]"
    return _of_many(schema) if schema["type"] in ("array", "object") else _of_one(schema)


def _of_one(schema: Schema) -> str:
    return "date" if schema.get("format") == "date" else _bounded(PLAIN[schema["type"]], schema)


def _of_many(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"tuple[{', '.join(map(_type, schema['prefixItems']))}]"
    if schema["type"] == "array":
        return _bounded(f"list[{_type(schema['items'])}]", schema)
    ((pattern, value),) = schema["patternProperties"].items()
    return _bounded(f"dict[Annotated[str, Field(pattern={pattern!r})], {_type(value)}]", schema)


def _default(schema: Schema, defs: dict[str, Schema]) -> str:
    """The default of a member; of a document: its class, with what differs from its own defaults."""
    value = schema["default"]
    if not isinstance(value, dict):
        return repr(tuple(value) if "prefixItems" in schema else value)
    options = [schema] if "$ref" in schema else schema["oneOf"]
    if len(options) > 1:
        found = schema["discriminator"]
        options = [{"$ref": found["mapping"][value[found["propertyName"]]]}]
    name = _type(options[0])
    own = {member: each.get("default") for member, each in defs[name]["properties"].items()}
    others = ", ".join(f"{member}={each!r}" for member, each in value.items() if own[member] != each)
    return f"{name}({others})"


def _member(name: str, schema: Schema, defs: dict[str, Schema], *, required: bool) -> str:
    """A member. One that the service chooses if it is left out has a default that is never sent."""
    if not required and "default" not in schema:
        return f"    {name}: {_type(schema)} = Field(default_factory={_type(schema['oneOf'][0])})\n"
    if name in RENAMED:
        return f'    {RENAMED[name]}: {_type(schema)} = Field(default={_default(schema, defs)}, alias="{name}")\n'
    default = f" = {_default(schema, defs)}" if "default" in schema else ""
    return f"    {name}: {_type(schema)}{default}\n"


def _class(name: str, defs: dict[str, Schema]) -> str:
    schema = defs[name]
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    members = "".join(_member(name_, each, defs, required=name_ in required) for name_, each in properties.items())
    said = schema["description"]
    end = "\n    " if "\n" in said else ""
    indented = said.replace("\n", "\n    ").replace("\n    \n", "\n\n")
    return f'\n\nclass {name}(Spec):\n    """{indented}{end}"""\n\n{members}'


def _file(part: str, classes: list[str], defs: dict[str, Schema], home: dict[str, str]) -> str:
    """One file with these classes; what they refer to elsewhere is imported."""
    body = "".join(_class(name, defs) for name in classes)
    if part == "jobs":
        hpo = defs["JobSpec"]["properties"]["hpo"]["anyOf"][0]
        body += STUDY.format(hpo=_type(hpo))
    named = {each for name in classes for each in _refs(defs[name]) if home[each] != part}
    imports = [f"from scrimp.specs.{home[each]} import {each}\n" for each in sorted(named)]
    typing = [each for each in ("Annotated", "Literal") if f"{each}[" in body]
    lines = ["from __future__ import annotations\n\n"]
    lines += ["from datetime import date\n"] if "tuple[date" in body else []
    lines += [f"from typing import {', '.join(typing)}\n\n"] if typing else []
    lines += ["from pydantic import Field\n\n"] if "Field(" in body else []
    lines += [*imports, "from scrimp.spec import Spec\n"]
    return f'"""{SAYS[part]} Written by scripts/write_specs.py from core/contracts."""\n\n{"".join(lines)}{body}'


def schemas() -> tuple[dict[str, Schema], dict[str, str]]:
    """Every document's schema, and the file of the client that it belongs to."""
    defs: dict[str, Schema] = {}
    home: dict[str, str] = {}
    roots: tuple[type[BaseModel], ...] = (JobSpec, DatasetSpec)
    for root, part in zip(roots, ("jobs", "datasets"), strict=True):
        schema = root.model_json_schema()
        mine = {**schema.pop("$defs"), root.__name__: schema}
        for name, each in mine.items():
            if defs.setdefault(name, each) != each:
                raise ValueError(f"two documents are called {name}")
            home.setdefault(name, part)
    for part, member in PARTS.items():
        home |= dict.fromkeys(_ordered(_refs(defs["JobSpec"]["properties"][member]), defs, []), part)
    return defs, home


def files() -> dict[str, str]:
    """The files' names within the client, and their contents, formatted."""
    defs, home = schemas()
    order = _ordered(sorted(defs), defs, [])
    made = {part: _file(part, [name for name in order if home[name] == part], defs, home) for part in SAYS}
    names = sorted(home.items(), key=lambda each: (each[1], each[0]))
    exports = "".join(f"from scrimp.specs.{part} import {name}\n" for name, part in names)
    listed = ", ".join(f'"{name}"' for name in sorted([*home, "Spec", "StudySpec", "document"]))
    head = '"""Typed specifications: accepted wherever a dict is. Written by scripts/write_specs.py."""\n\n'
    head += "from __future__ import annotations\n\nfrom scrimp.spec import Spec, document\n"
    made["__init__"] = f"{head}{exports}from scrimp.specs.jobs import StudySpec\n\n__all__ = [{listed}]\n"
    texts = {f"specs/{part}.py": text for part, text in made.items()}
    texts |= write_answers.files(write_openapi.document())
    return {name: _formatted(text) for name, text in texts.items()}


def _formatted(text: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    at = ["--stdin-filename", str(CLIENT / "specs" / "written.py"), "-"]
    for line in (["check", "--fix-only", "--select", "I", "--config", FIRST_PARTY, "-q"], ["format", "-q"]):
        text = subprocess.run([ruff, *line, *at], input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    for name, text in files().items():
        (CLIENT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
