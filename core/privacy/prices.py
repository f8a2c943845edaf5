"""Answers of the pricing process, as frozen documents. Their JSON form is used on the pipe, in the price cache and in
stored quotes."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from core import leaves
from core.contracts.base import AccountName, Document, Epsilon, is_none
from core.privacy.events import AccountEvents
from core.privacy.mechanism import MechanismConfig


@leaves.TRIAL_CHARGES
class Units(Document):
    """An amount on each account, in units of the data set's filter."""

    train: int
    holdout: int

    def of(self, account: AccountName) -> int:
        """Returns the units on one account."""
        return self.train if account == "train" else self.holdout

    def covers(self, other: Units) -> bool:
        """Returns True if `other` fits on both accounts."""
        return other.train <= self.train and other.holdout <= self.holdout

    def holds(self, charge: Units) -> int | None:
        """Returns how many charges of this size fit on both accounts: exactly, as charges add up. None if it is
        nothing."""
        amounts = ((self.train, charge.train), (self.holdout, charge.holdout))
        return min((max(left, 0) // each for left, each in amounts if each > 0), default=None)


NO_UNITS = Units(train=0, holdout=0)


@leaves.PLANNED
class Charge(Units):
    """A charge. `unit` names the filter's unit; it is None on public data, which have no account."""

    unit: str | None

    @classmethod
    def nothing(cls) -> Charge:
        """Returns an empty charge."""
        return cls(train=0, holdout=0, unit=None)


class Line(Document):
    """A line of the bill. In a study's bill `count` is the number of releases or trainings that it sums."""

    what: str
    account: AccountName
    count: int | None = Field(default=None, exclude_if=is_none)
    epsilon: Epsilon
    charge: int


class Comparison(Document):
    """Three accountants' ε for the account that costs most; None if an accountant does not apply."""

    gdp: float | None
    rdp: float
    pld: float


class Bill(Document):
    """A job's cost: ε by the accountant of record, and the charge with its lines."""

    epsilon: Epsilon | None
    comparison: Comparison | None
    charge: Charge
    lines: tuple[Line, ...]

    def free(self) -> Self:
        """Returns the same bill on public data, which have no account."""
        lines = tuple(line.model_copy(update={"charge": 0}) for line in self.lines)
        return self.model_copy(update={"charge": Charge.nothing(), "lines": lines})


class Price(Bill):
    """The price of a job that trains once, and the mechanism that will run; None without privacy."""

    mechanism: MechanismConfig | None

    @classmethod
    def nothing(cls) -> Price:
        """Returns the price of a job without privacy on public data."""
        return cls(mechanism=None, epsilon=None, comparison=None, charge=Charge.nothing(), lines=())


class RunCost(Document):
    """What a trial costs.

    Attributes:
        mu: its training's μ; under Poisson sampling the μ of its ε, used only for the fit. None without privacy.
        noise_multiplier: σ, if it is fixed already.
        charge: units by account, its releases included.
    """

    mu: float | None
    noise_multiplier: float | None
    charge: Units


class PricedRun(RunCost):
    """A trial's part of a study's total.

    Attributes:
        share: units for its training.
        epsilon: its training's ε.
        epsilon_with_scores: ε of all its events on the training part; None if it was not computed.
    """

    share: int
    epsilon: float | None
    epsilon_with_scores: float | None = None

    @classmethod
    def unpriced(cls) -> PricedRun:
        """Returns the part of a trial without privacy."""
        nothing = Units(train=0, holdout=0)
        return cls(share=0, mu=None, epsilon=None, noise_multiplier=None, charge=nothing)


class StudyPrice(Bill):
    """The price of a whole study: each trial's part, and the study's events on each account."""

    runs: tuple[PricedRun, ...]
    events: AccountEvents | None

    @property
    def mechanism(self) -> None:
        """None: each trial has its own."""
        return None

    def free(self) -> Self:
        nothing = Units(train=0, holdout=0)
        runs = tuple(run.model_copy(update={"charge": nothing}) for run in self.runs)
        return super().free().model_copy(update={"runs": runs})


class Largest(Document):
    """The largest target ε that fits, None if none does; for a job also the account that binds."""

    epsilon: float | None
    account: AccountName | None = None


class FinalRun(Document):
    """The ε and μ of a study's final trial by itself. If the study is not possible, both are None, `reason` explains
    it, and `smallest_total_epsilon` is the least total that works, if there is one."""

    epsilon: float | None
    mu: float | None
    smallest_total_epsilon: float | None
    reason: str | None


class Compared(Document):
    """ε of one account's jobs together, by the accountants that no filter enforces."""

    rdp_best_order: float
    pld_if_fixed_in_advance: float


class BasicSum(Document):
    """ε of one account's jobs together by basic composition: each job's own ε at its share of δ."""

    epsilon: float


class ChosenOrder(Document):
    """The order α* chosen for an `rdp` filter."""

    order: float


class Warmed(Document):
    """Confirms that the libraries are loaded."""
