"""Names of jobs that nobody named: telling, and no other job's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrimp.jobs import Jobs

NUMBER = re.compile(r" #(\d+)$")
LONGEST = 200  # characters of a name


def telling(spec: Mapping[str, Any]) -> str:
    """What a job is, on which data set, at which ε.

    >>> telling({"model": {"kind": "linear"}, "dataset": "reviews", "privacy": {"target_epsilon": 1.0}})
    'linear on reviews, ε = 1'
    >>> telling({"dataset": "reviews", "privacy": {"target_epsilon": 1.0}})
    'reviews, ε = 1'
    """
    epsilon = (spec.get("privacy") or {}).get("target_epsilon")
    kind = (spec.get("model") or {}).get("kind")
    place = spec["dataset"] if kind is None else f"{kind} on {spec['dataset']}"
    return place + ("" if epsilon is None else f", ε = {epsilon:g}")


def unused(jobs: Jobs, name: str) -> str:
    """The name, or with the next number if a job that this key may see has it: `name #2`, `name #3`."""
    base = NUMBER.sub("", name)[: LONGEST - 10]
    taken = {each.name for each in jobs(q=base)}
    if base not in taken and name == base:
        return base
    numbers = [int(match[1]) for each in taken if each.startswith(base) and (match := NUMBER.search(each))]
    return f"{base} #{max([1, *numbers]) + 1}"
