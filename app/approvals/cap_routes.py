"""POST /v1/datasets/{id}/ledger/cap: a change of the cap; a raise may wait for a second person."""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.approvals import caps, kept
from app.approvals import service as approvals
from app.approvals.routes import waits_for
from app.approvals.schemas import ApprovalView
from app.grants.service import require
from app.keys.auth import CurrentKey
from app.ledger import repository, summary
from app.ledger.routes import Pricing
from app.ledger.schemas import CapChange, LedgerView
from app.web.conditions import IfMatch
from app.web.deps import Db, RecordedHeads
from app.web.responses import as_json
from app.web.route_operation import CAP_TAG, VERSIONED, Operation
from core import leaves
from core.contracts.versions import tag_of
from core.privacy.filters import load_numerics

router = APIRouter(prefix="/v1/datasets/{dataset_id}/ledger", tags=["ledger"])


@router.post(
    "/cap",
    response_model=LedgerView,
    responses={202: {"model": ApprovalView, "description": "The approval that the raise waits for."}},
)
@Operation(
    "The ledger with its new cap.",
    audience="own",
    leaves=leaves.SHARES,
    command="ledger cap",
    audit="dataset.cap_changed",
    problems=("forbidden", "cap-too-low", "ledger-behind", "not-ready", "wrong-state", *VERSIONED),
    headers=CAP_TAG,
    requests={"a raise": {"epsilon": 6.0, "reason": "A second year of studies, approved on 2026-02-27."}},
)
def change_cap(
    dataset_id: str,
    body: CapChange,
    db: Db,
    pricing: Pricing,
    caller: CurrentKey,
    heads: RecordedHeads,
    if_match: IfMatch = None,
) -> Response:
    """Raises or lowers the cap, with a reason, as an entry of the ledger. It cannot go below what is spent and held.

    `If-Match` names the cap that this replaces: the `ETag` of the ledger, which is its `cap_version`. Where the owner
    has named persons, a raise waits for two of them: 202, with the approval.
    """
    with db.read() as session:
        row, _account = repository.dataset_with_account(session, require(session, caller, dataset_id, "own").id)
    kept.current(db, heads, row.id)
    recorded = caps.recorded_heads(db, heads, row.id)
    load_numerics()
    with db.write() as session:
        require(session, caller, row.id, "own")
        waiting = caps.change(session, caller, row.id, body, recorded, if_match)
        approval = None if waiting is None else approvals.shown(session, waiting)
    if approval is not None:
        return waits_for(approval)
    view = summary.overview(db, pricing, row.id)
    return as_json(view, 200, {"ETag": tag_of(view.cap_version)})
