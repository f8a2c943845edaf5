"""The API over a migrated home, without its background processes, and what is needed to register small data sets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.datasets import volume
from app.db.database import Database
from app.keys import service as keys
from app.main import create_app
from app.secrets import ensure_secrets, load_secret
from app.settings import Settings
from tests.factories import share

MIB = 2**20
GRAPH = {"kind": "nodes", "columns": ["a", "b"], "edges": {"undirected": True}}
CSV = "a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(60))


class Api:
    """Requests with a key of each role, from outside and from nobody."""

    def __init__(self, settings: Settings, db: Database) -> None:
        self.settings, self.db = settings, db
        # Not entered: the lifespan would start the pricing process, which these tests do not need.
        self.client = TestClient(create_app(settings), raise_server_exceptions=False)
        self.tokens: dict[str, str] = {}
        self.key_ids: dict[str, str] = {}
        pepper = load_secret(settings, "api_key_pepper")
        with db.write() as session:
            for name in ("admin", "owner", "other-owner", "analyst"):
                role: Any = name.removeprefix("other-")
                key, token = keys.create(session, pepper, name=name, role=role, created_by=None)
                self.tokens[name], self.key_ids[name] = token, key.id

    def headers(self, who: str | None) -> dict[str, str]:
        return {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}

    def get(self, path: str, who: str = "owner") -> Any:
        return self.client.get(path, headers=self.headers(who))

    def upload(
        self,
        spec: dict[str, Any] | str,
        file: str | bytes | Path | None = CSV,
        holdout_file: str | bytes | Path | None = None,
        who: str | None = "owner",
        edges_file: str | None = None,
    ) -> Any:
        text = spec if isinstance(spec, str) else json.dumps(spec)
        parts: dict[str, Any] = {"spec": (None, text, "application/json")}
        for name, content in (("file", file), ("holdout_file", holdout_file), ("edges_file", edges_file)):
            if content is not None:
                parts[name] = (name, content.read_bytes() if isinstance(content, Path) else content)
        return self.client.post("/v1/datasets", files=parts, headers=self.headers(who))

    def by_path(self, spec: dict[str, Any], who: str = "owner") -> Any:
        return self.client.post("/v1/datasets", json=spec, headers=self.headers(who))

    def share(self, dataset_id: str) -> None:
        """Grants it to the keys of other owners and of analysts."""
        with self.db.write() as session:
            share(session, dataset_id)

    def stored(self) -> set[str]:
        """Every file under the storage root, but for the name of its volume."""
        root, name = self.settings.storage_root, self.settings.arrivals_root / volume.NAME
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path != name}

    def count(self) -> int:
        return len(self.get("/v1/datasets?limit=200").json()["items"])

    def close(self) -> None:
        self.client.close()
        self.client.app.state.pricing.close()  # type: ignore[attr-defined]
        self.client.app.state.db.close()  # type: ignore[attr-defined]
        self.db.close()


MakeApi = Callable[..., Api]


def new_api(home: Path, database: Path, **changes: Any) -> Api:
    home.mkdir(mode=0o700)
    shutil.copy(database, home / "scrimp.db")
    fields: dict[str, Any] = {"home": home, "allowed_hosts": ["testserver"], "parse_memory_bytes": 1024 * MIB}
    settings = Settings(**fields | changes)
    ensure_secrets(settings)
    return Api(settings, Database.of(settings))


@pytest.fixture
def make_api(tmp_path: Path, migrated_database: Path) -> Iterator[MakeApi]:
    """Makes APIs with settings of their own."""
    made: list[Api] = []

    def make(**changes: Any) -> Api:
        made.append(new_api(tmp_path / f"home{len(made)}", migrated_database, **changes))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    return make_api()


@pytest.fixture(scope="module")
def refusing_api(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Api]:
    """One API for a table of refusals: nothing is left behind by any of them."""
    made = new_api(tmp_path_factory.mktemp("refusing") / "home", migrated_database)
    yield made
    assert made.count() == 0
    made.close()


def spec(name: str = "small", **changes: Any) -> dict[str, Any]:
    """Sixty records, private, with a hold-out of a fifth, under a `gdp` filter."""
    document: dict[str, Any] = {
        "name": name,
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": ["a", "b"]},
        "privacy": {"sensitivity": "private", "records": 60, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "gdp"},
        "holdout": {"kind": "split", "fraction": 0.2},
    }
    return document | changes


def private(**changes: Any) -> dict[str, Any]:
    return {"privacy": spec()["privacy"] | changes}


PUBLIC: dict[str, Any] = {"privacy": {"sensitivity": "public"}}
