"""What every typed specification in `scrimp.specs` shares."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

TAGS = ("kind", "strategy")  # they say which member of a union a document is

# Members with the one value that they still have, by document.
STORED = {"Clipping": {"engine": "bookkeeping"}}


class Spec(BaseModel):
    """A document of the REST contract. Refuses unknown members, NaN and ∞. Instances never change.

    Only members that were given are sent: the service fills in its own defaults.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Leaves out what stored specifications name and no request any more, and refuses a member that there is not.

        Raises:
            ValueError: there is no such member; it names the one that is probably meant.
        """
        if not isinstance(given, Mapping):
            return given
        stored = STORED.get(cls.__name__, {})
        members = {name: value for name, value in given.items() if name not in stored or stored[name] != value}
        fields = {name for each, field in cls.model_fields.items() for name in (each, field.alias) if name is not None}
        for name in members:
            if name not in fields:
                raise ValueError(f"{cls.__name__} has no `{name}`{_meant(str(name), cls, sorted(fields))}")
        return members

    def model_post_init(self, _context: object) -> None:
        """Marks the member that names the kind as given, so that it is sent."""
        fields = type(self).model_fields
        tags = (each for each in TAGS if each in fields and len(get_args(fields[each].annotation)) == 1)
        self.__pydantic_fields_set__.update(tags)  # a kind with a default, as a job's, is sent if it was given

    def document(self) -> dict[str, Any]:
        """The specification as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


def _meant(name: str, spec: type[Spec], fields: list[str]) -> str:
    """The member that is probably meant: of the specification itself, or of one of its parts."""
    likely = get_close_matches(name, fields, n=1)
    if likely:
        return f": did you mean `{likely[0]}`?"
    parts = {part: _parts(field.annotation) for part, field in spec.model_fields.items()}
    inside = [part for part, kinds in parts.items() if any(name in kind.model_fields for kind in kinds)]
    if inside:
        return f": it belongs into `{inside[0]}`"
    within = {member: part for part, kinds in parts.items() for kind in kinds for member in kind.model_fields}
    near = get_close_matches(name, within, n=1)
    return f": did you mean `{near[0]}` in `{within[near[0]]}`?" if near else f"; it has {', '.join(fields)}"


def _parts(annotation: Any) -> list[type[Spec]]:
    """The specifications that a member may be."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Spec) else []
    return [each for one in get_args(annotation) for each in _parts(one)]


def document(spec: Spec | Mapping[str, Any]) -> dict[str, Any]:
    """A specification as JSON values, whether typed or not; typed parts may stand inside a dict."""
    if isinstance(spec, Spec):
        return spec.document()
    return {name: _plain(each) for name, each in spec.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.document()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
