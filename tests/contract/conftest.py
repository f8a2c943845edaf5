"""The API with something of everything in it, in this process and as a real server, and its document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from tests.dashboard.conftest import chromium, first_whole, scene, server, visit, whole
from tests.dashboard.scene import Everything, Scene

__all__ = ["chromium", "first_whole", "scene", "server", "visit", "whole"]


@pytest.fixture(scope="module")
def client(whole: tuple[Scene, Everything]) -> Iterator[TestClient]:
    with TestClient(create_app(whole[0].settings), follow_redirects=False, raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(scope="module")
def document(client: TestClient, whole: tuple[Scene, Everything]) -> dict[str, Any]:
    answer = client.get("/openapi.json", headers={"Authorization": f"Bearer {whole[0].analyst.token}"})
    assert answer.status_code == 200
    return dict(answer.json())
