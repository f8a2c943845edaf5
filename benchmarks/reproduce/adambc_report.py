"""The DP-AdamBC report."""
from __future__ import annotations
from typing import Any
def write(*a: Any) -> str:
    print(a[0]['moments'].summary(), a[0]['moments'].phi)
    return ""
