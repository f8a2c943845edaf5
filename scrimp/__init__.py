"""Scrimp from Python: `scrimp.Client` speaks to a service; the `scrimp` command is built on it.

`scrimp.JobSpec`, `StudySpec` and `DatasetSpec` are typed specifications, with their parts in `scrimp.specs`.
`scrimp.load_model` loads a finished model from its files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrimp.client import Client
from scrimp.errors import (
    ApiError,
    BudgetRefused,
    InvalidRequest,
    MissingPackage,
    NotFound,
    ScrimpError,
    ServiceUnreachable,
    WaitTimeout,
)
from scrimp.graph_export import export_graph
from scrimp.jobs import JobHandle
from scrimp.loading import load_model

if TYPE_CHECKING:
    from scrimp.specs import DatasetSpec, JobSpec, StudySpec

__all__ = [
    "ApiError",
    "BudgetRefused",
    "Client",
    "DatasetSpec",
    "InvalidRequest",
    "JobHandle",
    "JobSpec",
    "MissingPackage",
    "NotFound",
    "ScrimpError",
    "ServiceUnreachable",
    "StudySpec",
    "WaitTimeout",
    "export_graph",
    "load_model",
]


def __getattr__(name: str) -> Any:
    """Loads the typed specifications when they are asked for: they take 0.15 s of processor time."""
    if name in ("DatasetSpec", "JobSpec", "StudySpec"):
        from scrimp import specs

        return getattr(specs, name)
    raise AttributeError(f"module 'scrimp' has no attribute {name!r}")
