from __future__ import annotations

import pytest

from tests.conftest import BACKINGS
from tests.lifecycle.conftest import submit

__all__ = ["backing", "submit"]


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)
