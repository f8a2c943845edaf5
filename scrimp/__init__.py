"""Scrimp from Python: `scrimp.Client` speaks to a service; the `scrimp` command is built on it.

`scrimp.load_model` loads a finished model from its files.
"""

from __future__ import annotations

from scrimp.client import Client
from scrimp.errors import ApiError, BudgetRefused, InvalidRequest, ScrimpError, ServiceUnreachable, WaitTimeout
from scrimp.loading import load_model

__all__ = [
    "ApiError",
    "BudgetRefused",
    "Client",
    "InvalidRequest",
    "ScrimpError",
    "ServiceUnreachable",
    "WaitTimeout",
    "load_model",
]
