"""Versions of policies: a change applies to the version that its author saw, or not at all.

An entity tag names the policy's version, not its balances, which jobs move all the time.
"""

from __future__ import annotations

from core.errors import PreconditionFailed, PreconditionRequired


def tag_of(version: int | str) -> str:
    """The entity tag of a policy's version.

    >>> tag_of(3)
    '"3"'
    """
    return f'"{version}"'


def require_match(sent: str | None, version: int | str) -> None:
    """Checks that a change is for the current version.

    Raises:
        PreconditionRequired: no If-Match was sent (428).
        PreconditionFailed: the policy has changed since (412).
    """
    if sent is None:
        raise PreconditionRequired(
            "send `If-Match` with the `ETag` of what you have seen, or `*`: somebody else may have changed it since"
        )
    if sent.strip() != "*" and tag_of(version) not in [each.strip() for each in sent.split(",")]:
        raise PreconditionFailed("this was changed since you looked at it: look again, then send its new `ETag`")
