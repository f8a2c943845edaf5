"""A service with something of everything."""

from __future__ import annotations

from tests.dashboard.conftest import first_whole, whole

__all__ = ["first_whole", "whole"]
