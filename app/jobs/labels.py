"""A job's tags and notes: what people write down about it. They are no part of the job's mechanism or certificate.

Who may cancel a job may label it. Whoever sees the job reads them.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, field_validator
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.grants.service import require_job
from app.jobs.steering import may_cancel
from app.keys.service import Caller
from app.lifecycle.states import get_job
from core.contracts.base import NO_NUL, Document
from core.errors import Forbidden

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, directions of writing, ends of lines
MOST_TAGS, LONGEST_TAG, LONGEST_NOTES = 10, 40, 4000
# Stored between commas, ",a,b,"; triggers write a row of job_tags for each.


def _plain(tag: str) -> str:
    """A tag in lower case, which may be longer; without characters that cannot be seen."""
    lower = tag.lower()
    if len(lower) > LONGEST_TAG or any(unicodedata.category(each) in UNSEEN for each in lower):
        raise ValueError(f"a tag has at most {LONGEST_TAG} characters in lower case, all of which can be seen")
    return lower


Tag = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_TAG, pattern=r"^[^,\x00-\x1f\x7f]+$"),
    AfterValidator(_plain),
]


class JobLabels(Document):
    """What a PATCH changes; what is left out stays. Tags are kept in lower case, each once."""

    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] | None = None
    notes: Annotated[str, StringConstraints(max_length=LONGEST_NOTES, pattern=NO_NUL)] | None = None

    @field_validator("tags")
    @classmethod
    def _once(cls, tags: list[str] | None) -> list[str] | None:
        return None if tags is None else list(dict.fromkeys(tags))


def stored(tags: list[str]) -> str:
    """The column's text."""
    return f",{','.join(tags)}," if tags else ""


def edit(session: Session, caller: Caller, job_id: str, labels: JobLabels) -> None:
    """Changes a job's tags and notes.

    Raises:
        NotFound: there is no such job, or the key may not see its data set.
        Forbidden: the key may not cancel it either.
    """
    if not may_cancel(session, caller, require_job(session, caller, job_id)):
        raise Forbidden("only the key that submitted this job, the data set's owner or an admin may label it")
    job = get_job(session, job_id, lock=True)
    if labels.tags is not None:
        job.tags = stored(labels.tags)
    if labels.notes is not None:
        job.notes = labels.notes
    audit.record(session, "job.labelled", job.id)
