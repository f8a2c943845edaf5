"""A change of a data set's cap, with all its open blocks; a raise may have to wait for two persons."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from app.approvals import service
from app.audit import record as audit
from app.db.database import Database
from app.db.models import Approval
from app.keys.service import Caller
from app.ledger import accounts, behind, block_accounts, repository
from app.ledger.entries import cap_version
from app.ledger.schemas import CapChange
from app.ledger.transparency.heads import Head, Heads
from core.contracts.approvals import CapRaise
from core.contracts.versions import require_match
from core.errors import Conflict

Recorded = Mapping[str, Head | None]


def recorded_heads(db: Database, heads: Heads, dataset_id: str) -> Recorded:
    """The heads that are kept outside the database, of a data set and its blocks: read before a transaction writes."""
    with db.read() as session:
        members = block_accounts.family_of(session, dataset_id)
    return {each: behind.read_recorded(heads, each) for each in members}


def change(
    session: Session, caller: Caller, dataset_id: str, body: CapChange, recorded: Recorded, if_match: str | None
) -> Approval | None:
    """Changes the cap, or stores a raise that two persons must agree to.

    Returns:
        The approval that a raise waits for; None if the cap is changed.

    Raises:
        Conflict, InvalidRequest: as `accounts.change_cap`.
        PreconditionRequired, PreconditionFailed: If-Match is missing, or the cap has changed.
    """
    members = _current_members(session, dataset_id, recorded)
    lead = block_accounts.lead(session, dataset_id)
    require_match(if_match, cap_version(lead))
    if body.epsilon > lead.cap_epsilon and service.persons_of(session, dataset_id):
        accounts.budget_of_cap(lead, body.epsilon)  # refused now, not once two persons have agreed
        act = CapRaise(epsilon=body.epsilon, reason=body.reason, version=cap_version(lead))
        return service.ask(session, caller, dataset_id, act)
    _write(session, caller, dataset_id, members, body)
    return None


def carry_out(session: Session, caller: Caller, approval: Approval, act: CapRaise, recorded: Recorded) -> None:
    """Raises the cap to which two persons have agreed.

    Raises:
        Conflict: as `accounts.change_cap`; `wrong-state`: the cap is another one than the persons were asked about.
    """
    members = _current_members(session, approval.dataset_id, recorded)
    if cap_version(block_accounts.lead(session, approval.dataset_id)) != act.version:
        raise Conflict("wrong-state", "the cap has changed since this was asked for: deny it, and ask again")
    _write(session, caller, approval.dataset_id, members, CapChange(epsilon=act.epsilon, reason=act.reason))


def _current_members(session: Session, dataset_id: str, recorded: Recorded) -> list[str]:
    dataset, _account = repository.dataset_with_account(session, dataset_id)
    members = block_accounts.lock_family(session, dataset.id)
    for member_id in members:
        behind.require_current(session, recorded.get(member_id), member_id)
    return members


def _write(session: Session, caller: Caller, dataset_id: str, members: list[str], body: CapChange) -> None:
    for member_id in block_accounts.open_ones(session, members) or [dataset_id]:
        accounts.change_cap(
            session, dataset_id=member_id, cap_epsilon=body.epsilon, actor=caller.id, reason=body.reason
        )
    audit.record(session, "dataset.cap_changed", dataset_id, epsilon=body.epsilon)
