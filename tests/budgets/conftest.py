from __future__ import annotations

import pytest

from tests.conftest import BACKINGS


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    """Sub-accounts hold on both databases."""
    return str(request.param)
