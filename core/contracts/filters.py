"""The privacy filters that a data set can be registered with: names, and what admission must know of each.

A new filter needs its name and its rule here, and a class with its theorem (core.privacy.filters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard, assert_never, get_args

from core.contracts.base import AccountantName

FilterName = Literal["rdp", "gdp"]
FILTERS: tuple[FilterName, ...] = get_args(FilterName)
# What an owner expects of a data set. A plan's shares never change: a data set keeps its plan for ever.
Plan = Literal["models mostly", "mixed", "any mechanism"]
PLANS: tuple[Plan, ...] = get_args(Plan)
SHARES: dict[Plan, float | None] = {"models mostly": 0.75, "mixed": 0.5, "any mechanism": None}  # of ε, for `gdp`


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


@dataclass(frozen=True)
class Divided:
    """A cap in two parts that add up to it exactly (decision 53): (ε, δ) of a `gdp` filter and of an `rdp` filter.

    Attributes:
        share: of ε, that `gdp` has.
    """

    share: float
    gdp: tuple[float, float]
    rdp: tuple[float, float]


def filter_of_plan(plan: Plan) -> FilterName:
    """The filter of a plan's first account: of its only one under "any mechanism"."""
    return "rdp" if plan == "any mechanism" else "gdp"


def divided(plan: Plan | None, epsilon: float, delta: float) -> Divided | None:
    """Divides a cap by a plan; None where one filter has all of it.

    >>> divided("models mostly", 4.0, 1e-5)
    Divided(share=0.75, gdp=(3.0, 5e-06), rdp=(1.0, 5e-06))
    """
    share = None if plan is None else SHARES[plan]
    if share is None:
        return None
    first = share * epsilon
    # ε - first is exact in floats, as first is at least ε/2 (Sterbenz): the parts add up to the cap.
    return Divided(share, (first, 0.5 * delta), (epsilon - first, 0.5 * delta))


def is_filter(name: str) -> TypeGuard[FilterName]:
    """Returns True for the name of a filter, for example one that the database holds."""
    return name in FILTERS
