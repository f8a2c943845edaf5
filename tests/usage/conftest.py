from __future__ import annotations

from tests.datasets.conftest import api, make_api

__all__ = ["api", "make_api"]
