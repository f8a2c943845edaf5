"""The If-Match header of changes of a policy; core.contracts.versions checks it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=500,
        description="The `ETag` of the version that this change is for; `*` for whatever it is now.",
    ),
]
