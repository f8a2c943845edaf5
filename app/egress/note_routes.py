"""GET /v1/datasets/{id}/erasure-note: which models were made with what was erased."""

from __future__ import annotations

from fastapi import APIRouter

from app.egress import erasure
from app.egress.erasure import ErasureNote
from app.grants.service import require
from app.keys.auth import CurrentKey
from app.ledger import repository
from app.web.deps import Db
from app.web.route_operation import Operation
from core import leaves

router = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["datasets"])


@router.get("/erasure-note")
@Operation(
    "The note.",
    audience="own",
    leaves=leaves.SHARES,
    command="datasets erasure-note",
    problems=("forbidden", "wrong-state", "not-ready"),
)
def show_erasure_note(dataset_id: str, db: Db, caller: CurrentKey) -> ErasureNote:
    """Says which models were made with deleted content or retired blocks, with their certificates and what ε means."""
    with db.read() as session:
        dataset, _account = repository.dataset_with_account(session, require(session, caller, dataset_id, "own").id)
        return erasure.note(session, dataset)
