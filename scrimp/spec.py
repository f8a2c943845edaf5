"""What every typed specification in `scrimp.specs` shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

TAGS = ("kind", "strategy")  # they say which member of a union a document is

# Members with the one value that they still have, by document.
STORED = {"Clipping": {"engine": "bookkeeping"}}


class Spec(BaseModel):
    """A document of the REST contract. Refuses unknown members, NaN and ∞. Instances never change.

    Only members that were given are sent: the service fills in its own defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_releases(cls, members: Any) -> Any:
        """Leaves out what stored specifications name, and no request any more."""
        stored = STORED.get(cls.__name__)
        if stored is None or not isinstance(members, Mapping):
            return members
        return {name: value for name, value in members.items() if stored.get(name) != value}

    def model_post_init(self, _context: object) -> None:
        """Marks the member that names the kind as given, so that it is sent."""
        self.__pydantic_fields_set__.update(each for each in TAGS if each in type(self).model_fields)

    def document(self) -> dict[str, Any]:
        """The specification as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True)


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
