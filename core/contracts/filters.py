"""The privacy filters that a data set can be registered with: names, and what admission must know of each.

A new filter needs its name and its rule here, and a class with its theorem (core.privacy.filters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard, assert_never, get_args

from core.contracts.base import AccountantName

FilterName = Literal["rdp", "gdp"]
FILTERS: tuple[FilterName, ...] = get_args(FilterName)


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


def is_filter(name: str) -> TypeGuard[FilterName]:
    """Returns True for the name of a filter, for example one that the database holds."""
    return name in FILTERS
