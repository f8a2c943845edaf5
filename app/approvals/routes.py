"""/v1/approvals: acts that two persons must agree to; and /v1/datasets/{id}/persons: who these persons are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.approvals import caps, kept, service
from app.approvals.schemas import ApprovalList, ApprovalView, PersonsView
from app.grants.service import require
from app.keys.auth import CurrentKey
from app.web.deps import Db, RecordedHeads
from app.web.pagination import After, Limit, cut, decode_row
from app.web.responses import as_json
from app.web.route_operation import Operation
from core import leaves
from core.contracts.approvals import CapRaise, Persons
from core.privacy.filters import load_numerics

router = APIRouter(prefix="/v1", tags=["approvals"])
NAMED = {"persons": {"A. Meier": ["key_aaaaaaaaaaaaaaaaaaaaa"], "B. Kaya": ["key_bbbbbbbbbbbbbbbbbbbbb"]}}


@router.get("/datasets/{dataset_id}/persons")
@Operation(
    "Its persons.",
    audience="own",
    leaves=leaves.SHARES,
    command="approvals persons",
    problems=("forbidden", "not-ready"),
    answer=NAMED,
)
def show_persons(dataset_id: str, db: Db, caller: CurrentKey) -> PersonsView:
    """Shows the persons of whom two decide together on a data set; none: one person is enough."""
    with db.read() as session:
        persons = service.persons_of(session, require(session, caller, dataset_id, "own").id)
    return PersonsView(**service.named(persons).model_dump())


@router.put(
    "/datasets/{dataset_id}/persons",
    response_model=PersonsView,
    responses={202: {"model": ApprovalView, "description": "The approval that the change waits for."}},
)
@Operation(
    "Its persons, from now on.",
    audience="own",
    leaves=leaves.SHARES,
    command="approvals name",
    audit="persons.set",
    problems=("forbidden", "not-ready", "ledger-behind"),
    requests={"two persons": NAMED},
    answer=NAMED,
)
def set_persons(dataset_id: str, body: Persons, db: Db, caller: CurrentKey, heads: RecordedHeads) -> Response:
    """Names the persons of whom two must agree to a larger cap, and before files of a job leave.

    Each person is named with all of his or her keys: nobody agrees twice. Once persons are named, two of them must
    agree to another list, or to none: 202, with the approval.
    """
    with db.read() as session:
        own_id = require(session, caller, dataset_id, "own").id
    kept.current(db, heads, own_id)
    with db.write() as session:
        waiting = service.set_persons(session, caller, own_id, body)
        approval = None if waiting is None else service.shown(session, waiting)
    kept.keep(db, heads, own_id)
    return as_json(PersonsView(**body.model_dump())) if approval is None else waits_for(approval)


@router.get("/approvals")
@Operation(
    "A page of approvals.",
    audience="every key",
    leaves=leaves.SHARES,
    command="approvals list",
    problems=("not-found", "not-ready"),
)
def list_approvals(
    db: Db,
    caller: CurrentKey,
    dataset: Annotated[str | None, Query(max_length=100)] = None,
    after: After = None,
    limit: Limit = 50,
) -> ApprovalList:
    """Lists what this key asked for, may decide on, or owns, newest first."""
    cursor = decode_row(after)
    with db.read() as session:
        dataset_id = None if dataset is None else require(session, caller, dataset, "view").id
        approvals = service.page(session, caller, dataset=dataset_id, after=cursor, limit=limit)
        approvals, following = cut(approvals, limit)
        return ApprovalList(items=[service.shown(session, each) for each in approvals], next=following)


@router.get("/approvals/{approval_id}")
@Operation("The approval.", audience="every key", leaves=leaves.SHARES, command="approvals show")
def show_approval(approval_id: str, db: Db, caller: CurrentKey) -> ApprovalView:
    """Shows an act that two persons must agree to, and who has."""
    with db.read() as session:
        return service.shown(session, service.find(session, caller, approval_id))


@router.post("/approvals/{approval_id}/agree")
@Operation(
    "The approval, with this person's word.",
    audience="every key",
    leaves=leaves.SHARES,
    command="approvals agree",
    audit="approval.agreed",
    problems=("forbidden", "wrong-state", "cap-too-low", "ledger-behind", "not-ready"),
)
def agree_approval(approval_id: str, db: Db, caller: CurrentKey, heads: RecordedHeads) -> ApprovalView:
    """Agrees, as the person to whom this key belongs. With the second person's word the act takes effect."""
    with db.read() as session:
        dataset_id = service.find(session, caller, approval_id).dataset_id
    kept.current(db, heads, dataset_id)
    recorded = caps.recorded_heads(db, heads, dataset_id)
    load_numerics()
    with db.write() as session:
        approval = service.agree(session, caller, approval_id)
        if approval.status == "agreed" and isinstance(approval.act, CapRaise):
            caps.carry_out(session, caller, approval, approval.act, recorded)
        answer = service.shown(session, approval)
    kept.keep(db, heads, dataset_id)
    return answer


@router.post("/approvals/{approval_id}/deny")
@Operation(
    "The approval, denied.",
    audience="every key",
    leaves=leaves.SHARES,
    command="approvals deny",
    audit="approval.denied",
    problems=("forbidden", "wrong-state"),
)
def deny_approval(approval_id: str, db: Db, caller: CurrentKey) -> ApprovalView:
    """Denies an act, or withdraws one's own: for the persons, the data set's owner, and who asked."""
    with db.write() as session:
        return service.shown(session, service.deny(session, caller, approval_id))


def waits_for(approval: ApprovalView) -> Response:
    """Answers that a change waits for two persons."""
    return as_json(approval, 202, {"Location": f"/v1/approvals/{approval.id}"})
