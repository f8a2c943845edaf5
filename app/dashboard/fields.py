"""A form made from a JSON schema: the controls of a document, and the document that a sent form says.

Options, bounds and defaults come from the schema that the API validates with. A control's name is the JSON pointer of
its member, as in the API's errors. An empty control leaves its member out, so that the schema's default applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.web import strict_json

MISSING = object()
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LEADING_ZERO = re.compile(r"0\d+")
TAGS = ("kind", "strategy")
# Admission fills these in: nobody is asked for them.
FILLED_IN = re.compile(
    r"/model/(sha256|architecture|parameters|trained|vocabulary|patches|pass_numbers)"
    r"|/model/extractor/(sha256|features|length)"
)
# Lists of objects that a person writes one by one: a list has a control more than objects, to add one.
ROWS = {"/queries": ("query", "kind"), "/where": ("filter", "column")}  # what one is called, and its first member
# How a member without a value reads, where "default" would say too little.
UNSET = {
    "/privacy": "none: no privacy is claimed",
    "/evaluation": "by the task with optimizer auto, else none",
    "/hpo": "none: one run",
}
UNSET |= {"/privacy/cap": "none: public data", "/holdout": "none", "/csv": "commas, and points in numbers"}
UNSET |= {"/augmentation": "none: each record as it is"}
# Members that admission chooses if they are left out: they have no default in the schema.
CHOSEN = {"/model": "auto: by the task", "/optimizer": "auto: with all numbers and scores that are left out"}
UNSET |= CHOSEN
CALLED = {
    "/dataset": "data set",
    "/hpo": "what do you want",
    "/privacy/target_epsilon": "target ε",
    "/privacy/target_delta": "target δ",
}
# Bounds beyond these guard arithmetic, and tell a person nothing.
SMALLEST_SAID, LARGEST_SAID = 1e-5, 1e5


@dataclass(frozen=True)
class Control:
    """One input of the form.

    Attributes:
        pointer: the member's JSON pointer; the input's name.
        options: (value, text) of a choice; empty for an input of text.
        placeholder: the default that applies where it is empty.
        hint: the bounds.
        is_json: written as JSON, over several lines.
    """

    pointer: str
    label: str
    value: str
    options: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""
    hint: str = ""
    required: bool = False
    is_json: bool = False

    @property
    def id(self) -> str:
        """The input's id in the page."""
        return id_of(self.pointer)


def id_of(pointer: str) -> str:
    """The id of the input at a pointer."""
    return "f" + pointer.replace("/", "-")


class SchemaForm:
    """Reads and shows documents of one schema.

    Args:
        schema: as pydantic writes it, with `$defs`.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self._defs: dict[str, Any] = schema.get("$defs", {})

    def show(self, document: dict[str, Any], members: tuple[str, ...]) -> list[Control]:
        """The controls of some members of a document."""
        controls: list[Control] = []
        for name in members:
            required = name in self.schema.get("required", ())
            controls += self._show(self.schema["properties"][name], f"/{name}", document.get(name, MISSING), required)
        return controls

    def read(self, form: Mapping[str, str], document: dict[str, Any]) -> dict[str, Any]:
        """The document with what the form says. Members that the form does not show stay, if they still apply."""
        return self.pruned(self._read_object(self.schema, "", document, form))

    def pruned(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document without what its defaults say."""
        return self._prune_object(self.schema, document)

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema behind its reference, with the default that stands beside the reference."""
        while "$ref" in schema:
            overrides = {name: value for name, value in schema.items() if name != "$ref"}
            schema = self._defs[schema["$ref"].rpartition("/")[2]] | overrides
        return schema

    def _alternatives(self, schema: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
        """What a value may be, null apart; and if it may be null."""
        choices = [self._resolved(each) for each in schema.get("anyOf", [schema])]
        return [each for each in choices if each.get("type") != "null"], len(choices) > 1 and any(
            each.get("type") == "null" for each in choices
        )

    def _members(self, schema: dict[str, Any], value: object) -> tuple[str, dict[str, Any]] | None:
        """The tag's name, and the schema that the value's tag chooses, in a union that has one."""
        if "discriminator" not in schema:
            return None
        tag: str = schema["discriminator"]["propertyName"]
        mapping: dict[str, str] = schema["discriminator"]["mapping"]
        kind = value.get(tag) if isinstance(value, dict) else None
        default = schema.get("default")
        if not isinstance(kind, str) or kind not in mapping:
            kind = default.get(tag) if isinstance(default, dict) else next(iter(mapping))
        return tag, self._resolved({"$ref": mapping[str(kind)]})

    def _show(self, schema: dict[str, Any], pointer: str, value: object, required: bool) -> list[Control]:
        schema = self._resolved(schema)
        alternatives, nullable = self._alternatives(schema)
        first = alternatives[0]
        if "const" in schema or FILLED_IN.fullmatch(pointer):
            return []
        if len(alternatives) == 1 and ("discriminator" in first or "properties" in first):
            return self._show_object(first | {"default": schema.get("default")}, pointer, value, nullable)
        if pointer in ROWS and (rows := _rows(value)) is not None:
            return self._show_rows(self._resolved(first["items"]), pointer, rows)
        return [_scalar(alternatives, schema.get("default", MISSING), pointer, value, required)]

    def _show_rows(self, items: dict[str, Any], pointer: str, rows: list[object]) -> list[Control]:
        """The controls of each object of a list, and the first one of another object."""
        called, first = ROWS[pointer]
        controls: list[Control] = []
        for number, row in enumerate([*rows, None]):
            at = f"{pointer}/{number}"
            row_controls = self._show_object(
                items, at, MISSING if row is None else row, nullable="discriminator" in items
            )
            visible = (
                row_controls if row is not None else [each for each in row_controls if each.pointer == f"{at}/{first}"]
            )
            empty = (("", f"add a {called}" if row is None else f"leave this {called} out"),)
            for control in visible:
                options = (
                    (*empty, *(one for one in control.options if one[0]))
                    if control.pointer == f"{at}/{first}"
                    else control.options
                )
                required = control.required and row is not None
                controls.append(replace(control, options=options if control.options else (), required=required))
        return controls

    def _read_rows(self, items: dict[str, Any], pointer: str, rows: list[object], form: Mapping[str, str]) -> Any:
        """The objects of a list, without those whose first member was emptied; MISSING if none is left."""
        first, rows_read = ROWS[pointer][1], list[Any]()
        for number, row in enumerate([*rows, None]):
            at = f"{pointer}/{number}"
            sent = form.get(f"{at}/{first}")
            if sent == "" or (sent is None and row is None):
                continue
            if sent is None:
                rows_read.append(row)
            elif "discriminator" in items:
                rows_read.append(self._read_tagged(items, at, row or {}, sent, form))
            else:
                rows_read.append(self._read_object(items, at, row, form))
        return rows_read or MISSING

    def _show_object(self, schema: dict[str, Any], pointer: str, value: object, nullable: bool) -> list[Control]:
        """A control for which kind of object it is, or if there is one, before those of its members."""
        within = value if isinstance(value, dict) else None
        nullable = nullable or pointer in CHOSEN
        unset = (("", UNSET.get(pointer, "default")),) if nullable else ()
        tagged, member, controls = self._members(schema, value), schema, []
        if tagged is not None:
            tag, member = tagged
            options = (*unset, *((kind, kind) for kind in schema["discriminator"]["mapping"]))
            kind = "" if nullable and within is None else str(member["properties"][tag]["const"])
            controls.append(Control(f"{pointer}/{tag}", _label(pointer), kind, options))
        elif nullable:
            options = (*unset, ("on", "as set here"))
            controls.append(Control(pointer, _label(pointer), "" if within is None else "on", options))
        if nullable and within is None:
            return controls
        for name, property_schema in member["properties"].items():
            inner = (within or {}).get(name, MISSING)
            controls += self._show(property_schema, f"{pointer}/{name}", inner, name in member.get("required", ()))
        return controls

    def _read_object(
        self, schema: dict[str, Any], pointer: str, value: object, form: Mapping[str, str]
    ) -> dict[str, Any]:
        old = value if isinstance(value, dict) else {}
        document: dict[str, Any] = {}
        for name, property_schema in schema["properties"].items():
            member = self._read(property_schema, f"{pointer}/{name}", old.get(name, MISSING), form)
            if member is not MISSING:
                document[name] = member
        # A member that the schema does not know stays, so that its error is seen.
        return document | {name: each for name, each in old.items() if name not in schema["properties"]}

    def _read(self, schema: dict[str, Any], pointer: str, value: Any, form: Mapping[str, str]) -> Any:
        schema = self._resolved(schema)
        alternatives, nullable = self._alternatives(schema)
        first = alternatives[0]
        if len(alternatives) != 1 or ("discriminator" not in first and "properties" not in first):
            return self._read_plain(alternatives, pointer, value, form)
        tag = first["discriminator"]["propertyName"] if "discriminator" in first else None
        sent = form.get(f"{pointer}/{tag}" if tag else pointer)
        if pointer in CHOSEN and sent == "":
            return MISSING
        if nullable and sent == "":
            return None
        if nullable and sent is None and not isinstance(value, dict):
            return value
        if tag is None:
            return self._read_object(first, pointer, value, form) or (MISSING if value is MISSING else {})
        return self._read_tagged(first | {"default": schema.get("default")}, pointer, value, sent, form)

    def _read_plain(self, alternatives: list[dict[str, Any]], pointer: str, value: Any, form: Mapping[str, str]) -> Any:
        """A member that is no object: what its control says, or the objects of its list."""
        rows = _rows(value) if pointer in ROWS else None
        if rows is not None:
            return self._read_rows(self._resolved(alternatives[0]["items"]), pointer, rows, form)
        return value if pointer not in form else _parsed(form[pointer], alternatives)

    def _read_tagged(
        self, schema: dict[str, Any], pointer: str, value: Any, sent: str | None, form: Mapping[str, str]
    ) -> Any:
        if sent is None and not isinstance(value, dict):
            return value
        tag = schema["discriminator"]["propertyName"]
        valid_tag = sent if sent in schema["discriminator"]["mapping"] else None
        old = value if isinstance(value, dict) else {}
        wanted = valid_tag or old.get(tag)
        if valid_tag is not None and old.get(tag) != valid_tag:
            member = self._resolved({"$ref": schema["discriminator"]["mapping"][valid_tag]})
            old = {name: each for name, each in old.items() if name in member["properties"]} | {tag: valid_tag}
        alternative = self._members(schema, old)
        if alternative is None or not isinstance(wanted, str) or wanted not in schema["discriminator"]["mapping"]:
            return value
        return {tag: wanted} | self._read_object(alternative[1], pointer, old, form)

    def _prune_object(self, schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        pruned: dict[str, Any] = {}
        for name, value in document.items():
            property_schema = self._resolved(schema["properties"].get(name, {}))
            if name not in TAGS and "default" in property_schema and property_schema["default"] == value:
                continue
            alternatives, _ = self._alternatives(property_schema)
            if isinstance(value, dict) and len(alternatives) == 1:
                tagged = self._members(alternatives[0] | {"default": property_schema.get("default")}, value)
                member = tagged[1] if tagged else alternatives[0]
                pruned[name] = self._prune_object(member, value) if "properties" in member else value
            else:
                pruned[name] = value
        return pruned


def _rows(value: object) -> list[object] | None:
    """The objects of a list; None of what is none."""
    if value is MISSING or value is None:
        return []
    return list(value) if isinstance(value, list | tuple) and all(isinstance(each, dict) for each in value) else None


def _label(pointer: str) -> str:
    """What a control is called under its section's heading: `schedule: warmup`."""
    if pointer in CALLED:
        return CALLED[pointer]
    parts = pointer.split("/")[1:]
    if f"/{parts[0]}" in ROWS and len(parts) > 1:
        called = f"{ROWS[f'/{parts[0]}'][0]} {int(parts[1]) + 1}"
        return ": ".join([called, *parts[2:]] if parts[2:] != ["kind"] else [called])
    return ": ".join(parts[1:] or parts).replace("_", " ")


def _scalar(
    alternatives: list[dict[str, Any]], default: object, pointer: str, value: object, required: bool
) -> Control:
    """The control of a member without members of its own in the form."""
    first, label = alternatives[0], _label(pointer)
    placeholder = "" if default in (MISSING, None) else _said(default)
    if _needs_json(first):
        text = "" if value in (MISSING, None) else json.dumps(value, indent=1, ensure_ascii=False)
        return Control(pointer, label, text, hint="as JSON", required=required, is_json=True)
    if first.get("type") == "boolean" or "enum" in first:
        names = ["true", "false"] if "enum" not in first else [str(each) for each in first["enum"]]
        labels = {"true": "yes", "false": "no"}
        unset = f"default ({labels.get(placeholder, placeholder) or 'automatic'})"
        options = (*(() if required else (("", unset),)), *((name, labels.get(name, name)) for name in names))
        return Control(pointer, label, _said(value), options, required=required)
    words = [str(each["const"]) for each in alternatives if "const" in each]
    numbers = next((each for each in alternatives if each.get("type") in ("number", "integer", "array")), first)
    hint = " or ".join(
        filter(None, [_bounds(numbers) or ("a number" if words else ""), *(f"“{word}”" for word in words)])
    )
    if default is None and not placeholder:
        placeholder = "not set"
    return Control(pointer, label, _said(value), (), placeholder, hint, required)


def _needs_json(schema: dict[str, Any]) -> bool:
    """Returns True if a value has members: names that are free, or a list of objects."""
    items = schema.get("items", {})
    return schema.get("type") == "object" or "$ref" in items or "oneOf" in items


def _bounds(schema: dict[str, Any]) -> str:
    """The bounds of a number, in words."""
    if schema.get("type") == "array":
        return "separated by commas"
    if schema.get("type") not in ("number", "integer"):
        return ""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    words = [f"from {_said(low)}"] if low is not None and low >= SMALLEST_SAID else []
    words += [f"to {_said(high)}"] if high is not None and high <= LARGEST_SAID else []
    return " ".join(words)


def _said(value: object) -> str:
    """A value as it is typed: 0.001, true, 32, 16."""
    if value is MISSING or value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(json.dumps(each) if _looks_different(each) else _said(each) for each in value)
    if isinstance(value, float) and not isinstance(value, bool):
        return repr(value).removesuffix(".0")
    return json.dumps(value)


def _parsed(text: str, alternatives: list[dict[str, Any]]) -> Any:
    """What an input says. Text that is no number stays text: the schema refuses it at its place."""
    text = text.strip()
    if text and _needs_json(alternatives[0]):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    kinds = {each.get("type") for each in alternatives}
    if not text:
        return MISSING
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    if "array" in kinds and not any(text == each.get("const") for each in alternatives):
        return _listed(text)
    return _number(text) if kinds & {"number", "integer"} else text


def _looks_different(item: object) -> bool:
    """Returns True for a text that a list would read as something else."""
    return isinstance(item, str) and (bool(NUMBER.fullmatch(item)) or item != item.strip(' "') or "," in item)


def _listed(text: str) -> list[Any]:
    """The items of a list: JSON's, or words and numbers between commas. 0042 is a word: a code."""
    try:
        items: list[Any] = json.loads(f"[{text}]")
    except (ValueError, RecursionError):
        words = filter(None, map(str.strip, text.strip("[]").split(",")))
        return [word if LEADING_ZERO.fullmatch(word) else _number(word) for word in words]
    return items


def _number(text: str) -> Any:
    if not NUMBER.fullmatch(text):
        return text.strip('"')
    is_whole = re.fullmatch(r"[+-]?\d{1,19}", text) is not None and int(text) in strict_json.INTEGERS
    return int(text) if is_whole else float(text)
