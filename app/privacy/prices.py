"""What the pricing process answers, as frozen documents. Their JSON form is on the pipe, in the cache of prices and in
the stored quotes."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from app.contracts.base import AccountName, Document, Epsilon
from app.privacy.events import AccountEvents
from app.privacy.mechanism import MechanismConfig


def _is_none(value: object) -> bool:
    return value is None


class Units(Document):
    """An amount on each account, in units of the data set's filter."""

    train: int
    holdout: int

    def of(self, account: AccountName) -> int:
        return self.train if account == "train" else self.holdout

    def covers(self, other: Units) -> bool:
        return other.train <= self.train and other.holdout <= self.holdout


class Charge(Units):
    """What something is charged; `unit` names the filter's unit, and is None on public data, which have no account."""

    unit: str | None

    @classmethod
    def nothing(cls) -> Charge:
        return cls(train=0, holdout=0, unit=None)


class Line(Document):
    """A line of the bill. `count`, in a study's: of how many runs."""

    what: str
    account: AccountName
    count: int | None = Field(default=None, exclude_if=_is_none)
    epsilon: Epsilon
    charge: int


class Comparison(Document):
    """What three accountants say of the account that costs most; None where one cannot."""

    gdp: float | None
    rdp: float
    pld: float


class Bill(Document):
    """What a job costs: ε by the accountant of record, and the charge with its lines."""

    epsilon: Epsilon | None
    comparison: Comparison | None
    charge: Charge
    lines: tuple[Line, ...]

    def free(self) -> Self:
        """The same on public data, which have no account."""
        lines = tuple(line.model_copy(update={"charge": 0}) for line in self.lines)
        return self.model_copy(update={"charge": Charge.nothing(), "lines": lines})


class Price(Bill):
    """The price of a job that trains once, and the mechanism that will run; None without privacy."""

    mechanism: MechanismConfig | None

    @classmethod
    def nothing(cls) -> Price:
        """Of a job without privacy on public data."""
        return cls(mechanism=None, epsilon=None, comparison=None, charge=Charge.nothing(), lines=())


class PricedRun(Document):
    """A run's part of a study's total.

    Attributes:
        share: units of its training.
        charge: units by account, with its releases.
        mu: of its training; under Poisson sampling the μ of its ε, for the fit alone. None without privacy.
        epsilon: of its training.
        noise_multiplier: where it is fixed already.
        epsilon_with_scores: of all that it does to the training part; None where nobody asked.
    """

    share: int
    mu: float | None
    epsilon: float | None
    noise_multiplier: float | None
    charge: Units
    epsilon_with_scores: float | None = None

    @classmethod
    def unpriced(cls) -> PricedRun:
        """A run without privacy."""
        nothing = Units(train=0, holdout=0)
        return cls(share=0, mu=None, epsilon=None, noise_multiplier=None, charge=nothing)


class StudyPrice(Bill):
    """The price of a whole study: of each run, and what all of it does to each account."""

    runs: tuple[PricedRun, ...]
    events: AccountEvents | None

    def free(self) -> Self:
        nothing = Units(train=0, holdout=0)
        runs = tuple(run.model_copy(update={"charge": nothing}) for run in self.runs)
        return super().free().model_copy(update={"runs": runs})


class Largest(Document):
    """The largest target ε that fits, None where none does; of a job's, the account that binds."""

    epsilon: float | None
    account: AccountName | None = None


class FinalRun(Document):
    """The ε and μ of a study's final run by itself. Where there is no such study both are None, `reason` says why, and
    `smallest_total_epsilon` what total would do, where one would."""

    epsilon: float | None
    mu: float | None
    smallest_total_epsilon: float | None
    reason: str | None


class Compared(Document):
    """What the accountants that are not enforced say of one account's jobs together."""

    basic: float
    rdp_best_order: float
    pld_if_fixed_in_advance: float


class ChosenOrder(Document):
    """α* of an `rdp` filter."""

    order: float


class Warmed(Document):
    """The libraries are loaded."""
