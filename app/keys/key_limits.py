"""A key's own limits, as requests name them and as its row holds them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from core.contracts.base import Document

Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class OwnLimits(Document):
    """A key's own limits. Null: the setting's value; running jobs then have no limit, the weight is 1, and the largest
    priority is 10."""

    requests_per_minute: Count | None = None
    max_queued_jobs: Count | None = None
    max_running_jobs: Count | None = None
    max_job_s: Annotated[int, Field(strict=True, ge=1, le=100_000_000)] | None = None
    max_stored_bytes: Annotated[int, Field(strict=True, ge=1, le=2**53)] | None = None
    # How many turns its jobs have at the workers, compared with other keys' jobs on the same owner's data; an owner's
    # key compares all jobs on its data with those on other owners' data.
    weight: Annotated[int, Field(strict=True, ge=1, le=100)] | None = None
    # The highest `priority` of its jobs, which orders them among themselves.
    max_priority: Annotated[int, Field(strict=True, ge=-10, le=10)] | None = None
