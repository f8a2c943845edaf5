"""Keys come from the system; tests repeat, so here they come from a seed."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fixed keys, and torch's own seed."""
    source = random.Random(7)
    monkeypatch.setattr(secrets, "token_bytes", lambda count=32: source.randbytes(count))
    torch.manual_seed(0)
    yield
