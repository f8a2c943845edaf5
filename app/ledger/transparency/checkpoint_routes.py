"""/v1/ledger: signed checkpoints of ledgers, and proofs about them."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from app.db.models import LedgerCheckpoint, LedgerEntry
from app.grants.service import require
from app.keys.auth import CurrentKey
from app.keys.service import Caller
from app.ledger import repository
from app.ledger.schemas import CheckpointView, ProofView
from app.ledger.signed_terms import envelope_of
from app.ledger.transparency import checkpoints, notes
from app.ledger.transparency.attestations import Envelope
from app.web.deps import Db
from app.web.route_operation import Operation
from core import leaves
from core.errors import Conflict, InvalidRequest, NotFound

router = APIRouter(prefix="/v1/ledger", tags=["ledger"])
Dataset = Annotated[str, Query(min_length=1, max_length=100, description="The data set's id or name.")]
Size = Annotated[int | None, Query(ge=1, description="Entries of the tree; by default the newest checkpoint's.")]
Entry = Annotated[int | None, Query(ge=1, description="Prove that this entry is in the tree.")]
Since = Annotated[int | None, Query(ge=1, description="Prove that the tree begins with the tree of this size.")]


@router.get("/checkpoint")
@Operation(
    "The newest signed checkpoint.",
    audience="view",
    leaves=leaves.ENTRIES,
    command="ledger checkpoint",
    problems=("head-pending", "not-found", "not-ready"),
)
def show_checkpoint(dataset: Dataset, db: Db, caller: CurrentKey) -> CheckpointView:
    """Shows a ledger's newest signed checkpoint, some seconds after its entry. Keep it where nobody else writes."""
    with db.read() as session:
        checkpoint = _newest(session, caller, dataset)
        body, terms = notes.read(checkpoint.note), envelope_of(session, checkpoint.dataset_id)
    return CheckpointView(
        dataset=body.dataset,
        size=body.size,
        root=base64.b64encode(body.root).decode(),
        checkpoint=checkpoint.note,
        terms=None if terms is None else Envelope.model_validate_json(terms),
    )


@router.get("/proof")
@Operation(
    "The proof.",
    audience="view",
    leaves=leaves.ENTRIES,
    command="ledger proof",
    problems=("head-pending", "not-found", "not-ready"),
)
def show_proof(
    dataset: Dataset, db: Db, caller: CurrentKey, entry: Entry = None, since: Since = None, size: Size = None
) -> ProofView:
    """Proves that an entry is in a checkpoint's tree, or that the tree begins with an earlier checkpoint's entries."""
    if (entry is None) == (since is None):
        raise InvalidRequest.at("/entry", "ask for one proof: of `entry`, or of what follows `since`")
    with db.read() as session:
        newest = _newest(session, caller, dataset)
        size = newest.size if size is None else size
        if size > newest.size:
            raise InvalidRequest.at("/size", f"the newest checkpoint has {newest.size} entries: ask for at most these")
        if since is not None:
            path = checkpoints.consistency(session, newest.dataset_id, since, size)
            return ProofView(dataset=newest.dataset_id, size=size, since=since, path=path)
        row = session.get(LedgerEntry, (newest.dataset_id, entry)) if entry is not None and entry <= size else None
        if row is None:
            raise NotFound(f"the tree of {size} entries has no entry {entry}")
        proof = checkpoints.inclusion(session, newest.dataset_id, row.seq, size)
        return ProofView(dataset=newest.dataset_id, size=size, entry=row.seq, hash=row.hash, path=proof)


def _newest(session: Session, caller: Caller, dataset: str) -> LedgerCheckpoint:
    dataset_row, _account = repository.dataset_with_account(session, require(session, caller, dataset, "view").id)
    checkpoint = session.get(LedgerCheckpoint, dataset_row.id)
    if checkpoint is None:
        raise Conflict("head-pending", "no checkpoint is signed yet: ask again in a moment")
    return checkpoint
