"""GET /v1/datasets/{id}/statement: the signed evidence about all that a data set's ledgers admitted."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from app.db.database import Database
from app.grants.service import require
from app.keys.auth import CurrentKey
from app.keys.service import Caller
from app.ledger import evidence, repository
from app.ledger.schemas import StatementView
from app.web.deps import Db
from app.web.route_operation import Operation
from core import leaves

router = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["ledger"])


@router.get("/statement", response_model=StatementView)
@Operation(
    "The statement.",
    audience="view",
    leaves=leaves.ENTRIES,
    command="ledger statement",
    problems=("head-pending", "not-ready"),
    headers={"Content-Disposition": "The file's name."},
)
def show_statement(dataset_id: str, db: Db, caller: CurrentKey) -> StreamingResponse:
    """Sends the evidence about all that a data set's ledgers admitted: every entry of each block, retired ones
    included, under its signed checkpoint, with the signed terms.

    `scrimp ledger statement FILE` and `node verify.mjs FILE` check it on any machine.
    """
    return document(db, caller, dataset_id)


def document(db: Database, caller: Caller, dataset_id: str) -> StreamingResponse:
    """The statement as a file, a batch of entries at a time.

    Raises:
        NotFound: no such data set, or the caller may not see it, or it is public.
        Conflict: `head-pending`, as `evidence.of`.
    """
    with db.read() as session:
        dataset, _account = repository.dataset_with_account(session, require(session, caller, dataset_id, "view").id)
        stated = evidence.of(session, dataset)
    headers = {"Content-Disposition": f'attachment; filename="{dataset.name}-statement.json"'}
    return StreamingResponse(evidence.pieces(db, stated), media_type="application/json", headers=headers)
