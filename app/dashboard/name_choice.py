"""Names of jobs that nobody named, as scrimp/job_names.py gives them: telling, and no other job's of the data set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Job

NUMBER = re.compile(r" #(\d+)$")
LONGEST = 200  # characters of a name


def telling(spec: Mapping[str, Any], dataset: str) -> str:
    """What a job is, on the data set of this name, at which ε.

    >>> telling({"model": {"kind": "linear"}, "privacy": {"target_epsilon": 1.0}}, "reviews")
    'linear on reviews, ε = 1'
    """
    epsilon = (spec.get("privacy") or {}).get("target_epsilon")
    kind = (spec.get("model") or {}).get("kind")
    place = dataset if kind is None else f"{kind} on {dataset}"
    return place + ("" if epsilon is None else f", ε = {epsilon:g}")


def unused(session: Session, dataset_id: str, name: str) -> str:
    """The name, or with the next number if a job on the data set has it: `name #2`, `name #3`."""
    base = NUMBER.sub("", name)[: LONGEST - 10]
    similar = select(Job.name).where(Job.dataset_id == dataset_id, Job.name.startswith(base, autoescape=True))
    taken = set(session.scalars(similar.where(Job.parent_id.is_(None))))
    if base not in taken and name == base:
        return base
    numbers = [int(number[1]) for each in taken if (number := NUMBER.search(each))]
    return f"{base} #{max([1, *numbers]) + 1}"


def is_telling(name: str, spec: Mapping[str, Any], dataset: str) -> bool:
    """Returns True if a name is what `telling` and `unused` gave: with another ε it would tell something else."""
    return NUMBER.sub("", name) == telling(spec, dataset)
