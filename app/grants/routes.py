"""/v1/datasets/{id}/grants: which keys may see a data set, train on it, or charge it. For its owner and admins."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, cast

from fastapi import APIRouter, Response
from pydantic import Field

from app.audit import record as audit
from app.db.models import ApiKey, Grant
from app.db.row_view import Computed, Given, RowView, Whole
from app.grants import service
from app.keys.auth import CurrentKey
from app.web.deps import Db
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document, EpsilonValue, is_none
from core.contracts.governance import Terms

router = APIRouter(prefix="/v1/datasets/{dataset_id}/grants", tags=["grants"])


class GrantRequest(Terms):
    """Replaces the key's earlier grant with all its terms.

    `max_epsilon_per_job`: the owner's policy for this key; a job that costs more is refused (409 `policy-exceeded`),
    and nothing is consumed. It bounds each job, not their sum. Null: the cap alone. From `ends_at` on the grant gives
    nothing. `purpose` and `permit`, of `train`, are filled into every job under it, which may name no others. `persons`
    use the key.
    """

    access: service.Granted
    max_epsilon_per_job: EpsilonValue | None = None

    @property
    def terms(self) -> Terms:
        """What the grant is for."""
        return Terms(**{name: getattr(self, name) for name in Terms.model_fields})

    @classmethod
    def of(cls, policy: service.Policy) -> GrantRequest:
        """What was asked for."""
        return cls(access=policy.access, max_epsilon_per_job=policy.max_epsilon, **dict(policy.terms))


class GrantView(Document, RowView):
    """A grant, with the name and role of its key."""

    dataset_id: str
    key_id: str
    key_name: Annotated[str, Given()]
    key_role: Annotated[str, Given()]
    access: service.Granted
    max_epsilon_per_job: float | None
    ends_at: datetime | None = None
    purpose: str | None = None
    permit: str | None = None
    persons: Annotated[tuple[str, ...], Computed(lambda row: tuple(row.persons or ()), "persons")] = ()
    created_at: datetime
    created_by: str


def shown(grant: Grant, key: ApiKey) -> GrantView:
    """Shows a grant with its key's name and role."""
    return GrantView.of(grant, key_name=key.name, key_role=key.role)


class NewGrant(GrantView):
    """A grant that was made. `replaced`: what the key's earlier grant said, all of which has ended."""

    replaced: Annotated[GrantRequest | None, Given()] = Field(default=None, exclude_if=is_none)


class GrantList(Document, Whole[GrantView]):
    """Every grant on a data set."""


@router.get("")
@Operation(
    "All grants on the data set.",
    audience="own",
    leaves=leaves.NO_DATA,
    command="grants list",
    problems=("forbidden", "not-ready"),
)
def list_grants(dataset_id: str, db: Db, caller: CurrentKey) -> GrantList:
    """Lists every grant on a data set, oldest first."""
    with db.read() as session:
        grants = service.list_grants(session, caller, dataset_id)
        return GrantList(items=[shown(grant, key) for grant, key in grants])


@router.put("/{key_id}")
@Operation(
    "The grant.",
    audience="own",
    leaves=leaves.NO_DATA,
    command="grants set",
    audit="grant.set",
    problems=("forbidden", "not-ready"),
    requests={
        "to train, within a policy": {"access": "train", "max_epsilon_per_job": 0.5},
        "under a permit": {
            **{"access": "train", "purpose": "care research", "permit": "17/2026"},
            **{"ends_at": "2099-12-31T00:00:00Z", "persons": ["A. Analyst"]},
        },
    },
)
def set_grant(dataset_id: str, key_id: str, body: GrantRequest, db: Db, caller: CurrentKey) -> NewGrant:
    """Grants a key `view`, `train` or `charge`; replaces its earlier grant, with all its terms."""
    with db.write() as session:
        epsilon, terms = body.max_epsilon_per_job, body.terms
        grant = service.give(session, caller, dataset_id, key_id, body.access, epsilon, terms)
        details: audit.Details = {"key": key_id, "access": body.access, "epsilon": epsilon}
        details |= cast(audit.Details, terms.model_dump(mode="json", exclude_defaults=True))
        audit.record(session, "grant.set", grant.grant.dataset_id, **details)
        replaced = GrantRequest.of(grant.replaced) if grant.replaced is not None else None
        return NewGrant(**dict(shown(grant.grant, grant.key)), replaced=replaced)


@router.delete("/{key_id}", status_code=204)
@Operation(
    "The grant has ended.",
    audience="own",
    leaves=leaves.OWNERS_ACTIONS,
    command="grants remove",
    audit="grant.removed",
    problems=("forbidden", "not-ready"),
)
def remove_grant(dataset_id: str, key_id: str, db: Db, caller: CurrentKey) -> Response:
    """Ends a grant, at once. Jobs that were admitted under it continue."""
    with db.write() as session:
        dataset = service.take_back(session, caller, dataset_id, key_id)
        audit.record(session, "grant.removed", dataset.id, key=key_id)
    return Response(status_code=204)
