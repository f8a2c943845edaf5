"""What ledger entries state beside their amounts: one document for each kind of move, and `Memo`, which reads all.

An entry's hash covers its memo, so members keep their names for ever. Balances after the move are added to each
(app.ledger.entries).
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field

from core.contracts.base import AccountName, Document, Epsilon, is_none

Amount = Annotated[int, Field(strict=True)]


class Balance(Document):
    """One account, in the filter's units."""

    budget: Amount
    spent: Amount
    held: Amount


class Balances(Document):
    """Both accounts after an entry."""

    train: Balance
    holdout: Balance

    def of(self, account: AccountName) -> Balance:
        """Returns one account's balance."""
        return self.train if account == "train" else self.holdout


class CarriedWithin(Document):
    """What a sub-account of this ledger takes over of the closed one's: no more than its own budget."""

    budget: str
    train: Amount
    holdout: Amount


class Memo(Document):
    """What is read from an entry's memo, of whatever kind and age; other members are left out.

    Attributes:
        study: the number of trials, in the hold of a study.
        hold: the study on whose hold a trial's entry draws.
        budget: the sub-account that a hold was taken from.
        joined_into: closes the ledger.
        within: what sub-accounts take over from a ledger that moved to this one.
    """

    model_config = ConfigDict(extra="ignore")

    balance: Balances | None = None
    filter: str | None = None
    order: float | None = None
    cap_epsilon: float | None = None
    cap_delta: float | None = None
    reason: str | None = None
    joined_into: str | None = None
    study: int | None = None
    hold: str | None = None
    budget: str | None = None
    within: tuple[CarriedWithin, ...] = ()

    @classmethod
    def of(cls, column: object) -> Self:
        """Reads an entry's column.

        Raises:
            ValidationError: a member is not what entries state.
        """
        return cls.model_validate(column)

    @property
    def balances(self) -> Balances:
        """The balances after the entry.

        Raises:
            ValueError: it does not state them.
        """
        if self.balance is None:
            raise ValueError("the entry does not state its balances")
        return self.balance

    @property
    def cap(self) -> float:
        """The ε of the cap that the entry sets.

        Raises:
            ValueError: it sets none.
        """
        if self.cap_epsilon is None:
            raise ValueError("the entry does not state its cap")
        return self.cap_epsilon


class Nothing(Document):
    """Nothing but the balances."""


class Opened(Document):
    """The terms of a ledger. `unit` names the filter's unit. `whole_delta`: the δ of the data set's cap, of which each
    of two filters has a part."""

    filter: str
    order: float | None
    unit: str
    cap_epsilon: float
    cap_delta: float
    whole_delta: float | None = Field(default=None, exclude_if=is_none)


class CapSet(Document):
    """A new cap, or the last one of a ledger that closes."""

    cap_epsilon: float
    cap_delta: float
    reason: str
    joined_into: str | None = Field(default=None, exclude_if=is_none)


class HeldFor(Document):
    """A job's planned ε; for a study also its number of trials."""

    epsilon: Epsilon | None
    study: int | None = Field(default=None, exclude_if=is_none)


class Settled(Document):
    """How a job ended."""

    outcome: str


class Voided(Document):
    """Why a charge was taken back."""

    reason: str


class Drawn(Document):
    """The study on whose hold a trial's entry draws."""

    hold: str


class Joined(Document):
    """The closed ledger whose spending this one takes over. `within`: after a move, by sub-account."""

    joined: str
    within: tuple[CarriedWithin, ...] = Field(default=(), exclude_if=lambda within: not within)


class Recorded(Document):
    """An entry that was recorded outside the database."""

    seq: int
    head: str


class Restored(Document):
    """Spending that the database had lost: up to which recorded entry, and why it is posted."""

    reason: str
    recorded: Recorded
