"""The ledger of a data set that has grown: the worst block's spending, and what is left on the block with the most.

A unit lies in one block, so what is known of it was spent on that block's ledger: the largest of the blocks' ε's is the
data set's, and they do not add up. A job leaves out blocks that are closed or cannot pay. So what may still be admitted
is what is left on one block: the accounts and `epsilon_remaining` are that block's.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Account, Dataset
from app.ledger import block_accounts
from app.ledger.schemas import BlockBalance, LedgerView
from core.contracts.base import Epsilon

SPENT = ("epsilon_spent", "epsilon_spent_and_held", "epsilon_filter")  # the worst block's are the data set's


def with_blocks(first: Dataset, view: LedgerView, grown_blocks: list[tuple[Dataset, LedgerView]]) -> LedgerView:
    """A data set's ledger with those of its other blocks.

    Args:
        first, own: its own block and that one's ledger.
        grown_blocks: the blocks that were appended to it, with their ledgers, in the order of their arrival.
    """
    members = [(first, view), *grown_blocks]
    views = [view for _, view in members]
    still = [view for view in views if not view.closed] or [min(views, key=lambda view: view.cap.value)]
    lead = still[0]  # as app.ledger.block_accounts.lead
    open_blocks = [each for each in members if each[0].content_deleted_at is None and not each[1].closed]
    richest, largest = max(open_blocks or members, key=lambda member: member[1].epsilon_remaining.value)
    worst = {name: _largest([getattr(view, name) for view in views]) for name in SPENT}
    return view.model_copy(
        update=worst
        | {
            "cap": lead.cap,
            "cap_version": lead.cap_version,
            "largest_cap": _largest([view.largest_cap for view in views]),
            "accounts": largest.accounts,
            "epsilon_remaining": largest.epsilon_remaining,
            "remaining_block": block_accounts.label_of(richest),
            "closed": all(view.closed for view in views),
            "comparison": None,
            "blocks": [_balance(*each) for each in members],
        }
    )


def appended(session: Session, dataset_id: str) -> list[tuple[Dataset, Account]]:
    """The ledgers beside a data set's own (`blocks.beside`), in the order of their arrival."""
    rows = select(Dataset, Account).join(Account).where(block_accounts.beside(dataset_id))
    return [(block, account) for block, account in session.execute(rows.order_by(Dataset.created_at, Dataset.id))]


def _largest(epsilons: list[Epsilon]) -> Epsilon:
    return max(epsilons, key=lambda epsilon: epsilon.value)


def _balance(block: Dataset, view: LedgerView) -> BlockBalance:
    accounts = [each for each in (view.accounts.train, view.accounts.holdout) if each is not None]
    return BlockBalance(
        label=block_accounts.label_of(block),
        id=block.id,
        epsilon_spent=view.epsilon_spent.value,
        share_spent=max(each.share_spent for each in accounts),
        share_held=max(each.share_held for each in accounts),
        closed=view.closed,
    )
