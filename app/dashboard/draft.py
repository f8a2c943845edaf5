"""A document in the making: its text, the form that shows it, and what is wrong with it, at its place.

A draft is JSON: what a person is still writing is no document of the contract yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.dashboard.fields import Control, SchemaForm
from app.web import strict_json
from app.web.problems import errors_of, validation_errors
from core.errors import InvalidRequest, ServiceError

M = TypeVar("M", bound=BaseModel)
PLACE = re.compile(r"/\d+/")  # of an object in a list


@dataclass(frozen=True)
class Section:
    """A part of the form: what is asked at once, and what is folded away."""

    title: str
    asked: tuple[Control, ...]
    more: tuple[Control, ...]

    @property
    def controls(self) -> tuple[Control, ...]:
        """All of them."""
        return (*self.asked, *self.more)


@dataclass(frozen=True)
class Problem:
    """Something to change. `at`: the control that shows it; None if only the JSON does."""

    pointer: str
    said: str
    at: Control | None


@dataclass(frozen=True)
class Layout:
    """How a form is divided.

    Attributes:
        sections: title → members of the document. Every member is in one section.
        asked: the pointers of controls that are shown at once, of lists those of its first object; so are those that
            must be filled in.
    """

    sections: Mapping[str, tuple[str, ...]]
    asked: frozenset[str]


@dataclass
class Draft:
    """A document that somebody is composing.

    Attributes:
        document: it, as far as it is known.
        text: the document as JSON, or what was typed in its place if that is none.
        errors: what is wrong, by JSON pointer; "" holds what has no place of its own.
        has_form: False where the JSON cannot be read: a form would show another document.
    """

    document: dict[str, Any]
    text: str = ""
    errors: dict[str, list[str]] = field(default_factory=dict)
    has_form: bool = True

    def __post_init__(self) -> None:
        self.text = self.text or json.dumps(self.document, indent=2, ensure_ascii=False)

    def validated(self, model: type[M], max_nodes: int = strict_json.MAX_NODES) -> M | None:
        """The document as its contract reads it; None if it is not valid, with `errors` filled."""
        if self.errors:
            return None
        try:
            strict_json.check(self.text.encode(), max_nodes)
            return model.model_validate_json(self.text)
        except ValidationError as error:
            self.refused(InvalidRequest("", validation_errors(errors_of(error), self.document, model)))
        except ServiceError as error:
            self.refused(error)
        return None

    def refused(self, error: ServiceError) -> None:
        """Notes why the service refused it, at the members that it names."""
        for problem in error.members.get("errors") or [{"pointer": "", "detail": error.message}]:
            texts = self.errors.setdefault(problem["pointer"], [])
            if problem["detail"] not in texts:
                texts.append(problem["detail"])

    def sections(
        self, form: SchemaForm, layout: Layout, fitted: Callable[[Control], Control] = lambda control: control
    ) -> list[Section]:
        """The form. `fitted` changes controls, by what is known besides the schema."""
        sections_of: list[Section] = []
        if not self.has_form:
            return sections_of
        for title, members in layout.sections.items():
            controls = [fitted(each) for each in form.show(self.document, members)]
            # A list of objects is JSON to a person: the page has something better, or it is rare.
            sections_wanted = tuple(
                each
                for each in controls
                if PLACE.sub("/0/", each.pointer) in layout.asked or (each.required and not each.is_json)
            )
            sections_of.append(
                Section(title, sections_wanted, tuple(each for each in controls if each not in sections_wanted))
            )
        return sections_of

    def problems(self, sections: list[Section]) -> list[Problem]:
        """What is wrong, each with the control that shows it; what concerns an object stands at its first control."""
        controls = [each for section in sections for each in section.controls]
        lines = []
        for pointer, details in self.errors.items():
            near = [each for each in controls if each.pointer == pointer]
            near += [each for each in controls if pointer and each.pointer.startswith(f"{pointer}/")]
            # A control shows several members (a pair, a list) whose own pointers are longer.
            near += [each for each in controls if pointer.startswith(f"{each.pointer}/")]
            lines.append(Problem(pointer, "; ".join(details).replace("`", ""), near[0] if near else None))
        return lines


def placed(problems: list[Problem]) -> dict[str, str]:
    """What is said at each control, by its pointer."""
    controls_by_pointer: dict[str, str] = {}
    for problem in problems:
        if problem.at is not None:
            controls_by_pointer[problem.at.pointer] = "; ".join(
                filter(None, [controls_by_pointer.get(problem.at.pointer), problem.said])
            )
    return controls_by_pointer


def sent_draft(sent: Mapping[str, str], form: SchemaForm, max_nodes: int = strict_json.MAX_NODES) -> Draft:
    """The draft that a sent form says; its JSON says it if `source` is `json`.

    Args:
        max_nodes: the most values that the document may hold.
    """
    text = sent.get("json", "")
    unread = Draft({}, text, has_form=False)
    try:
        document = _read(text, max_nodes)
    except ServiceError as error:
        unread.refused(error)
        return unread
    if sent.get("source") == "json":
        return Draft(document, text)
    earlier = Draft(document, text)
    try:
        document_read = form.read(sent, document)
        return Draft(_read(json.dumps(document_read), max_nodes))
    except (AttributeError, KeyError, TypeError):  # the JSON has a shape that no form shows
        return earlier
    except RecursionError:
        earlier.refused(InvalidRequest.at("", "a field has too many levels"))
    except ServiceError as error:
        earlier.refused(error)
    return earlier


def _read(text: str, max_nodes: int) -> dict[str, Any]:
    """The JSON object of a text, which is small enough in every respect to be shown as a form.

    Raises:
        InvalidRequest, TooLarge: it is none.
    """
    strict_json.check(text.encode(errors="surrogatepass"), max_nodes)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest.at("", f"this is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest.at("", "this is not a JSON object")
    return document
