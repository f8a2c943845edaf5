"""Scrimp from Python: `scrimp.Client` speaks to a service; the `scrimp` command is built on it."""

from __future__ import annotations

from scrimp.client import Client
from scrimp.errors import ApiError, BudgetRefused, InvalidRequest, ScrimpError, ServiceUnreachable, WaitTimeout

__all__ = ["ApiError", "BudgetRefused", "Client", "InvalidRequest", "ScrimpError", "ServiceUnreachable", "WaitTimeout"]
