"""Governance: who answers for a data set, what it may be used for, and what a job says of its use.

All of it is declared and public. It stands in certificates, statements and pages, and is signed there.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StringConstraints

from core.contracts.base import NO_NUL, Document

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=NO_NUL)]
Purpose = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=NO_NUL)]
Permit = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=NO_NUL)]
Required = Literal["purpose", "permit"]


class Use(Document):
    """What a job is for: a purpose of the data set's, and the number of the permit under which it runs."""

    purpose: Purpose | None = None
    permit: Permit | None = None


class Terms(Document):
    """What a grant is for.

    Attributes:
        ends_at: from then on it gives nothing; jobs that were admitted under it continue.
        purpose, permit: of every job under it: admission fills them in, and refuses others.
        persons: who may use the key, by name; for people who read, nothing checks it.
    """

    ends_at: AwareDatetime | None = None
    purpose: Purpose | None = None
    permit: Permit | None = None
    persons: Annotated[tuple[Purpose, ...], Field(max_length=50)] = ()


class Governance(Document):
    """Who answers for a data set, and what it may be used for.

    Attributes:
        controller: the organisation that decides on the data.
        purposes: what jobs may be for; a job that names another is refused.
        legal_basis, region, retention, contact: in words.
        requires: what every job must say of its use.
    """

    controller: Words
    purposes: Annotated[tuple[Purpose, ...], Field(max_length=50)] = ()
    legal_basis: Words | None = None
    region: Words | None = None
    retention: Words | None = None
    contact: Words | None = None
    requires: Annotated[tuple[Required, ...], Field(max_length=2)] = ()

    def fault_of(self, use: Use) -> tuple[str, str] | None:
        """What the owner does not accept of a job's use: a pointer into the job, and words; None if nothing.

        >>> rules = Governance(controller="A hospital", purposes=("care research",), requires=("purpose", "permit"))
        >>> rules.fault_of(Use(purpose="care reserch"))
        ('/use/purpose', "the data set's owner allows: care research; did you mean 'care research'?")
        >>> rules.fault_of(Use(purpose="care research"))[0]
        '/use/permit'
        """
        for name in self.requires:
            if getattr(use, name) is None:
                allowed = f": one of {'; '.join(self.purposes)}" if name == "purpose" and self.purposes else ""
                return f"/use/{name}", f"the data set's owner requires a {name} of every job{allowed}"
        fault = None if use.purpose is None else self.purpose_fault(use.purpose)
        return None if fault is None else ("/use/purpose", fault)

    def purpose_fault(self, purpose: str) -> str | None:
        """What is wrong with a purpose, in words; None if the owner allows it."""
        if not self.purposes or purpose in self.purposes:
            return None
        near = difflib.get_close_matches(purpose, self.purposes, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return f"the data set's owner allows: {'; '.join(self.purposes)}{meant}"
