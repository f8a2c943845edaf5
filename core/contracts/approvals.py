"""What needs two persons where a data set's owner asks for that: the acts, and the persons by their keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from core.contracts.base import NO_NUL, Document

FEWEST = 2
PersonName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=NO_NUL)]
KeyId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^key_[a-z0-9]+$")]


class Persons(Document):
    """The persons who decide together, each with all of his or her keys.

    A key belongs to one person, so that nobody agrees twice under two keys. Empty: nothing needs two persons.

    >>> Persons(persons={"Ada": ("key_a", "key_b"), "Ben": ("key_c",)}).by_key()
    {'key_a': 'Ada', 'key_b': 'Ada', 'key_c': 'Ben'}
    """

    persons: Annotated[
        dict[PersonName, Annotated[tuple[KeyId, ...], Field(min_length=1, max_length=20)]], Field(max_length=20)
    ] = Field(description="By a person's name, the ids of that person's keys: owners' or admins'.")

    @model_validator(mode="after")
    def _apart(self) -> Persons:
        keys = [key for each in self.persons.values() for key in each]
        if len(set(keys)) < len(keys):
            raise ValueError("a key is listed twice: each key belongs to one person")
        if len(self.persons) == 1:
            raise ValueError("name at least two persons, or none")
        return self

    def by_key(self) -> dict[str, str]:
        """The person of each key."""
        return {key: person for person, keys in self.persons.items() for key in keys}


class CapRaise(Document):
    """A larger cap. `version`: of the cap that it replaces."""

    kind: Literal["cap"] = "cap"
    epsilon: float
    reason: str
    version: str


class EgressOfJob(Document):
    """A job's files leave, for a recipient."""

    kind: Literal["egress"] = "egress"
    egress: str
    job: str
    recipient: str


class PersonsChange(Document):
    """Other persons decide from then on."""

    kind: Literal["persons"] = "persons"
    persons: Persons


Act = Annotated[CapRaise | EgressOfJob | PersonsChange, Field(discriminator="kind")]
