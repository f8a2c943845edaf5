"""What all privacy filters share (core.privacy.filters)."""

from __future__ import annotations

from typing import ClassVar

from core.contracts.filter_names import FilterName, FilterRule, rule_of
from core.errors import InvalidRequest

CAP = "/privacy/cap/epsilon"


class LedgerFilter:
    """What all filters share.

    Attributes:
        kind: its name.
        unit: what an account's integers count.
        order: α*, of filters that have one.
    """

    kind: ClassVar[FilterName]
    unit: ClassVar[str]

    @property
    def rule(self) -> FilterRule:
        """What admission knows of it."""
        return rule_of(self.kind)

    def carried(self, amount: int, to: LedgerFilter) -> int | None:
        """Converts `amount` of its units into units of another filter, rounded up; None if no bound is known."""
        return amount if self == to else None


def positive_budget(budget: int, order: float | None = None) -> int:
    """A cap's budget; raises InvalidRequest if it is not positive."""
    if budget <= 0:
        at_order = "" if order is None else f" at order {order:g}"
        raise InvalidRequest.at(CAP, f"this cap has no positive budget{at_order}: raise it, or choose another order")
    return budget
