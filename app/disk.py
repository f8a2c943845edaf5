"""Writes that survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def sync(folder: Path) -> None:
    """Returns once a folder's entries are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
