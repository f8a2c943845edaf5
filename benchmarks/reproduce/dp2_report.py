"""The DP² report."""
from __future__ import annotations
from typing import Any
def write(*a: Any) -> str:
    return ""
