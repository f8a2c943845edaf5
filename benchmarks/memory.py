"""Resident memory of this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def peak_mib(step: Callable[[], object], steps: int = 2) -> float:
    """Measures in MiB the largest resident memory in some steps beyond the memory held now."""
    forget_peak()
    before = resident_mib("VmRSS")
    for _ in range(steps):
        step()
    return resident_mib("VmHWM") - before


def forget_peak() -> None:
    """Begins the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def resident_mib(name: str) -> float:
    """Returns VmRSS, the memory held now, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name + ":"))
