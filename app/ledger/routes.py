"""/v1/datasets/{id}/ledger: balances, entries, verification, joined ledgers. Its cap: app.approvals.cap_routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.audit import record as audit
from app.grants.service import require
from app.keys.auth import AdminKey, CurrentKey
from app.ledger import behind, joining, repository, summary, verifications
from app.ledger.schemas import EntryList, EntryView, Join, LedgerView
from app.ledger.verifications import VerificationView
from app.web import examples
from app.web.deps import Db, RecordedHeads, of_state
from app.web.pagination import After, Limit, decode_cursor, encode_cursor
from app.web.responses import as_json
from app.web.route_operation import CAP_TAG, NOTHING, Operation
from core import leaves
from core.contracts.versions import tag_of
from core.privacy.filters import load_numerics

router = APIRouter(prefix="/v1/datasets/{dataset_id}/ledger", tags=["ledger"])
Pricing = Annotated[summary.Comparer, of_state("pricing")]


@router.get("", response_model=LedgerView)
@Operation(
    "The ledger.",
    audience="view",
    leaves=leaves.ENTRIES,
    command="ledger show",
    problems=("not-ready",),
    headers=CAP_TAG,
    answer=examples.LEDGER,
)
def show_ledger(dataset_id: str, db: Db, pricing: Pricing, caller: CurrentKey) -> Response:
    """Shows what is enforced and what was spent, and other accountants' figures. Public data have no ledger: 404."""
    with db.read() as session:
        dataset = require(session, caller, dataset_id, "view")
    return _answer(summary.overview(db, pricing, dataset.id))


@router.get("/entries")
@Operation(
    "A page of entries.", audience="view", leaves=leaves.ENTRIES, command="ledger entries", problems=("not-ready",)
)
def list_entries(
    dataset_id: str,
    db: Db,
    caller: CurrentKey,
    after: After = None,
    limit: Limit = 50,
    job: Annotated[str | None, Query(max_length=100, description="Only the entries of this job.")] = None,
) -> EntryList:
    """Lists the ledger's entries, oldest first."""
    seq = decode_cursor(after, int)[0] if after is not None else 0
    with db.read() as session:
        dataset, _account = repository.dataset_with_account(session, require(session, caller, dataset_id, "view").id)
        entries = repository.page_of_entries(session, dataset.id, after=seq, job=job, limit=limit)
        has_more, entries = len(entries) > limit, entries[:limit]
        return EntryList(
            items=[EntryView.of(entry) for entry in entries], next=encode_cursor(entries[-1].seq) if has_more else None
        )


@router.get("/verify")
@Operation(
    "The last verification of the ledger against its entries.",
    audience="view",
    leaves=leaves.ENTRIES,
    command="ledger verify",
    problems=("not-ready",),
    answer=examples.CHECK,
)
def show_verification(dataset_id: str, db: Db, caller: CurrentKey) -> VerificationView:
    """Shows the last verification: hash chain and balances recomputed from the entries, and the first entry that does
    not fit. The relay makes one in full each day.

    Every head and checkpoint that a certificate or the relay has signed, and those recorded outside the database, must
    be in the chain. `stale` is true if the ledger has changed since.
    """
    with db.read() as session:
        dataset, _account = repository.dataset_with_account(session, require(session, caller, dataset_id, "view").id)
        return verifications.last_check(session, dataset.id)


@router.post("/verify", status_code=202)
@Operation(
    "The last verification; a new one is queued.",
    audience="own",
    leaves=leaves.ENTRIES,
    command="ledger verify",
    audit=NOTHING,
    problems=("forbidden", "not-ready"),
    answer=examples.CHECK | {"queued": True},
)
def verify_ledger(dataset_id: str, db: Db, caller: CurrentKey) -> VerificationView:
    """Asks the relay for a new verification, one ledger at a time; `queued` is true until it begins. For the data set's
    owner and admins.

    It goes on from the entries that the relay has verified before, which it reads again once a day.
    `scrimp ledger verify` recomputes them all on the caller's machine.
    """
    with db.write() as session:
        dataset, _account = repository.dataset_with_account(
            session, require(session, caller, dataset_id, "own", blocks=True).id
        )
        verifications.request(session, dataset.id)
        return verifications.last_check(session, dataset.id)


@router.post("/join")
@Operation(
    "The ledger that stays open.",
    audience="admins",
    leaves=leaves.ENTRIES,
    command="ledger join",
    audit="ledger.joined",
    problems=("forbidden", "wrong-state", "cap-too-low", "ledger-behind", "not-ready"),
    requests={"the same records twice": {"into": "imdb-reviews", "reason": "Two owners registered the reviews."}},
)
def join_ledger(
    dataset_id: str, body: Join, db: Db, pricing: Pricing, caller: AdminKey, heads: RecordedHeads
) -> LedgerView:
    """Joins data sets with the same records: closes this ledger and charges all that it spent to another's, which it
    returns. For admins; it cannot be undone."""
    with db.read() as session:
        closed, stays = (
            repository.dataset_with_account(session, require(session, caller, name, "own").id)[0].id
            for name in (dataset_id, body.into)
        )
    recorded = {each: behind.read_recorded(heads, each) for each in (closed, stays)}
    load_numerics()
    with db.write() as session:
        for locked_id, head in recorded.items():
            behind.require_current(session, head, require(session, caller, locked_id, "own").id)
        joining.join(session, dataset_id=closed, into=stays, actor=caller.id, reason=body.reason)
        audit.record(session, "ledger.joined", closed, dataset=stays)
    for locked_id in (stays, closed):  # a reader who finds the one closed also finds the other charged
        behind.record_soon(db, heads, locked_id)
    return summary.overview(db, pricing, stays)


def _answer(view: LedgerView) -> Response:
    return as_json(view, 200, {"ETag": tag_of(view.cap_version)})
