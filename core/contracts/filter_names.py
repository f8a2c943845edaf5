"""The privacy filters that a data set can be registered with: names, and what admission must know of each.

A new filter needs its name and its rule here, and a class with its theorem (core.privacy.filters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard, assert_never, get_args

from core.contracts.base import AccountantName

FilterName = Literal["rdp", "gdp"]
FILTERS: tuple[FilterName, ...] = get_args(FilterName)
# Which jobs an owner expects of a data set, and so in which currency its ledger counts, and who may change that.
Plan = Literal["models mostly", "mixed", "any mechanism"]
PLANS: tuple[Plan, ...] = get_args(Plan)
# What each buys (decision 53 has the numbers); scrimp.declare says the same.
BUYS: dict[Plan, str] = {
    "models mostly": (
        "Full-batch jobs at their exact ε, some 5 % fewer of them than under gdp alone: in return you may declare "
        "mixed later."
    ),
    "mixed": (
        "The same, and the first job or charge that samples or is no Gaussian moves the ledger, for good: from then on "
        "anything is admitted, and some 15 % fewer jobs fit than under gdp alone."
    ),
    "any mechanism": (
        "Every job and charge from the first day, and some 10 % fewer full-batch jobs than under gdp alone; a single "
        "job's ε reads 2 to 8 times as large."
    ),
}


@dataclass(frozen=True)
class FilterRule:
    """What differs between filters before any number is computed.

    Attributes:
        has_order: an order is chosen or given at registration, and frozen.
        samples: jobs may sample their batches; else they take every record in every step.
        within_a_job: the accountant that gives the ε of one of its jobs.
    """

    has_order: bool
    samples: bool
    within_a_job: AccountantName


def rule_of(name: FilterName) -> FilterRule:
    """The rule of a filter.

    >>> rule_of("gdp").samples
    False
    """
    match name:
        case "rdp":
            return FilterRule(has_order=True, samples=True, within_a_job="pld")
        case "gdp":
            return FilterRule(has_order=False, samples=False, within_a_job="gdp")
        case _:
            assert_never(name)


def filter_of_plan(plan: Plan) -> FilterName:
    """The filter that a data set of this plan begins with."""
    return "rdp" if plan == "any mechanism" else "gdp"


def may_move(plan: Plan | None) -> bool:
    """True if a data set of this plan begins under `gdp` and may move to `rdp` (decision 53)."""
    return plan is not None and plan != "any mechanism"


def delta_of_each(plan: Plan | None, delta: float) -> float:
    """The δ of each filter of a plan: half of the cap's where there are two."""
    return delta / 2.0 if may_move(plan) else delta


def is_filter(name: str) -> TypeGuard[FilterName]:
    """Returns True for the name of a filter, for example one that the database holds."""
    return name in FILTERS
