"""The requests and responses of sub-accounts."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, cast

from pydantic import AwareDatetime, Field, StringConstraints

from app.db.models import Account, Dataset, SubAccount
from app.db.row_view import Column, Given, Page, RowView, Whole
from app.ledger.accounts import filter_for
from app.ledger.accounts import remaining_of as left_of_cap
from app.ledger.repository import unit_of
from app.ledger.schemas import COLLUSION, Balance
from app.ledger.sub_accounts import PARTS, with_own
from core import leaves
from core.contracts.base import NO_NUL, AccountantName, Deferred, Document, Epsilon, EpsilonValue

NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # in addresses and headers too
Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$")]
KeyId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000, pattern=NO_NUL)]
Status = Literal["open", "approved", "denied", "expired"]


class BudgetSetting(Document):
    """What the keys of a sub-account may use together.

    Attributes:
        epsilon: converted once into the filter's units at the cap's δ, which then add up.
        keys: the keys that share it. Left out: the same as now; for a new one, the key that it is named after.
    """

    epsilon: EpsilonValue
    keys: Annotated[list[KeyId], Field(min_length=1, max_length=100)] | None = None


class BudgetPart(Balance):
    """A sub-account's balances on one account, in the filter's units. `remaining` is bounded by the cap too."""

    share_of_cap: Annotated[float, leaves.SHARES]


class BudgetParts(Deferred):
    """A sub-account's balances; `holdout` is null without a private hold-out."""

    train: BudgetPart
    holdout: BudgetPart | None


class BudgetView(Deferred):
    """A sub-account: what some keys may use of a data set's cap. It bounds their jobs, studies and charges together.

    `id` names it in the ledger's entries (`memo.budget`), where every key that sees the data set reads it.
    `epsilon` is what the budget was made from; amounts of `unit` add up, ε's do not. Sub-accounts may exceed the cap
    together: the cap still bounds them all. `keys` is null for callers who are not the owner. `version` is in the
    `ETag` and counts changes by the owner, not spending. `closed`: no key uses it any more; what it spent stays.
    """

    dataset: str
    id: str
    name: str
    epsilon: Epsilon
    epsilon_spent: Epsilon
    unit: str
    accounts: BudgetParts
    keys: list[str] | None
    version: int
    changed_at: datetime
    changed_by: str
    closed: bool
    collusion: str = COLLUSION

    @classmethod
    def of(cls, dataset: Dataset, account: Account, share: SubAccount, keys: list[str] | None) -> BudgetView:
        """Shows a sub-account beside the account that it is a part of."""
        privacy_filter = filter_for(account.filter, account.order)
        spent = max(share.train_spent, share.holdout_spent)
        left = with_own(left_of_cap(account), share)
        parts = {part: _part(account, share, part, left[part]) for part in PARTS if getattr(account, f"{part}_budget")}
        return cls(
            dataset=dataset.id,
            id=share.id,
            name=share.name,
            epsilon=_epsilon(dataset, account, share.epsilon),
            epsilon_spent=_epsilon(
                dataset, account, privacy_filter.epsilon(spent, account.cap_delta) if spent else 0.0
            ),
            unit=privacy_filter.unit,
            accounts=BudgetParts(train=parts["train"], holdout=parts.get("holdout")),
            keys=keys,
            version=share.version,
            changed_at=share.changed_at,
            changed_by=share.changed_by,
            closed=share.closed_at is not None,
        )


class BudgetList(Whole[BudgetView]):
    """The sub-accounts of a data set that the caller may see."""


class BudgetRequestBody(Document):
    """A request for a sub-account, or for a larger one.

    Attributes:
        dataset: id or name.
        epsilon: what the sub-account should be made from; not what is added to it.
        expires_at: when the request ends by itself. Default: in 14 days; at most in a year.
    """

    dataset: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    epsilon: EpsilonValue
    reason: Text
    expires_at: AwareDatetime | None = None


class BudgetDecision(Document):
    """The owner's words for the key that asked."""

    answer: Text | None = None


class BudgetRequestView(RowView):
    """A request for a sub-account. `budget` is the one that it is about, and `budget_version` its version now (0: it
    does not exist yet). Both together are the `ETag`: `"{budget}.{budget_version}"`."""

    id: str
    dataset: Annotated[str, Column("dataset_id")]
    key: Annotated[str, Column("key_id")]
    epsilon: float
    reason: str
    status: Annotated[Status, Given()]
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    answer: str | None
    budget: Annotated[str, Given()]
    budget_version: Annotated[int, Given()]

    @property
    def tag(self) -> str:
        """The entity tag: which budget the request is about, and its version."""
        return f"{self.budget}.{self.budget_version}"


class BudgetRequestList(Page[BudgetRequestView]):
    """A page of requests, newest first; `next` is the cursor of the next page, null on the last."""


def _part(account: Account, share: SubAccount, part: str, left: int) -> BudgetPart:
    budget, spent, held_units = (getattr(share, f"{part}_{amount}") for amount in ("budget", "spent", "held"))
    return BudgetPart(
        budget=budget,
        spent=spent,
        held=held_units,
        remaining=max(0, left),
        share_of_cap=budget / getattr(account, f"{part}_budget"),
        share_spent=spent / budget if budget else 1.0,  # no units of its ε since a move: used up
        share_held=held_units / budget if budget else 0.0,
    )


def _epsilon(dataset: Dataset, account: Account, value: float) -> Epsilon:
    return Epsilon(
        value=value,
        delta=account.cap_delta,
        accountant=cast(AccountantName, account.filter),
        unit=unit_of(dataset),
    )
