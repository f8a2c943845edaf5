"""Two data sets with jobs on them, and a key for every way to be allowed or not."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fastapi.testclient import TestClient

from app.db.database import Database
from app.db.models import ApiKey, Grant, Prediction, SubAccount, SubAccountKey
from app.keys import service as keys
from app.keys.service import Caller
from app.main import create_app
from app.secrets import load_secret
from app.settings import Settings
from core.ids import new_id, now
from tests.dashboard.scene import Key, Scene
from tests.factories import add_dataset

# Who asks, and what they may do with the data set `mine`. Nobody but admins and `other-owner` sees `foreign`.
LEVELS: dict[str, str | None] = {
    "admin": "own",
    "owner": "own",
    "other-owner": None,
    "granted-owner": "train",
    "trainer": "train",
    "charger": "charge",
    "looker": "view",
    "stranger": None,
    "viewer": "view",
    "strange-viewer": None,
}
ROLES = {
    "admin": "admin",
    "owner": "owner",
    "other-owner": "owner",
    "granted-owner": "owner",
    "viewer": "viewer",
    "strange-viewer": "viewer",
}
DEAD = ("expired", "revoked", "unknown", "nobody")


@dataclass
class Target:
    """A data set, and a finished job on it with everything that a job can have."""

    dataset: str
    name: str
    job: str


def _client(settings: Settings) -> TestClient:
    return TestClient(create_app(settings), raise_server_exceptions=False, follow_redirects=False)


@dataclass
class World:
    settings: Settings
    db: Database
    tokens: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scene = Scene(self.db, self.settings)
        self.client = _client(self.settings)
        for who in (*LEVELS, "expired", "revoked", "spare", "doomed"):
            self.add_key(who, ROLES.get(who, "analyst"))
        with self.db.write() as session:
            session.get_one(ApiKey, self.ids["expired"]).expires_at = now() - timedelta(seconds=1)
            keys.revoke(session, self.ids["revoked"])
        self.tokens["unknown"] = "scrimp_key_nobody_" + "x" * 43
        self.mine = self.target("mine", "owner")
        self.foreign = self.target("foreign", "other-owner")
        for who, access in (("granted-owner", "train"), ("trainer", "train"), ("charger", "charge")):
            self.grant(who, access)
        for who, access in (("looker", "view"), ("viewer", "view")):
            self.grant(who, access)
        for dead in ("expired", "revoked"):
            self.grant(dead, "train")

    def copy(self, settings: Settings, db: Database) -> World:
        """The same keys and rows in a copy of the home and its database, behind an API of its own."""
        copied = copy(self)
        copied.settings, copied.db = settings, db
        copied.tokens, copied.ids = dict(self.tokens), dict(self.ids)
        copied.scene = self.scene.copy(db, settings)
        copied.client = _client(settings)
        return copied

    def add_key(self, who: str, role: Any, **options: Any) -> str:
        pepper = load_secret(self.settings, "api_key_pepper")
        with self.db.write() as session:
            key, token = keys.create(session, pepper, name=who, role=role, created_by=None, **options)
        self.ids[who], self.tokens[who] = key.id, token
        return key.id

    def target(self, name: str, owner: str) -> Target:
        dataset = add_dataset(self.db, owner=self.ids[owner], name=name, shared=False)
        by = Key(self.ids[owner], self.tokens[owner], "owner")
        evaluation = {"on": "holdout", "noise_mu": 0.05, "points": 1, "metrics": ["accuracy"]}
        job = self.scene.job(dataset, f"{name}-job", by=by, privacy={"target_epsilon": 0.5}, evaluation=evaluation)
        log = self.scene.start(job)
        self.scene.step(log, log.recorded()[0].steps)
        self.scene.release(log, log.recorded()[0].steps, 0.9)
        self.scene.finish(log)
        return Target(dataset, name, job)

    def queued_job(self, target: Target, who: str) -> str:
        by = Key(self.ids[who], self.tokens[who], "analyst")
        return self.scene.job(
            target.dataset, keys.secrets.token_hex(8), by=by, privacy={"target_epsilon": 0.01}, evaluation=None
        )

    def open_budget(self, target: Target) -> None:
        """The budget `team` of the key `spare`."""
        with self.db.write() as session:
            found = session.get(SubAccount, (target.dataset, "team")) or SubAccount(
                id=new_id("sub"),
                dataset_id=target.dataset,
                name="team",
                epsilon=1.0,
                train_budget=1,
                holdout_budget=1,
                version=1,
            )
            found.changed_at, found.changed_by, found.closed_at = now(), "test", None
            session.add(found)
            session.flush()
            session.merge(SubAccountKey(dataset_id=target.dataset, key_id=self.ids["spare"], name="team"))

    def open_prediction(self, target: Target) -> None:
        with self.db.write() as session:
            made = {"id": new_id("pred"), "job_id": target.job, "key_id": self.ids["admin"], "status": "queued"}
            times = {"created_at": now(), "expires_at": now() + timedelta(days=1)}
            session.add(Prediction(**made, **times, records=[1], top=1, attempt=0))

    def grant(
        self, who: str, access: str | None, max_epsilon: float | None = None, target: Target | None = None
    ) -> None:
        """Sets a grant; takes it back where `access` is None."""
        dataset = (target or self.mine).dataset
        with self.db.write() as session:
            found = session.get(Grant, (dataset, self.ids[who]))
            if found is not None:
                session.delete(found)
                session.flush()
            if access is not None:
                fields: dict[str, Any] = {"access": access, "max_epsilon_per_job": max_epsilon, "created_by": "test"}
                session.add(Grant(dataset_id=dataset, key_id=self.ids[who], created_at=now(), **fields))

    def caller(self, who: str) -> Caller:
        with self.db.read() as session:
            return keys.authenticate(session, load_secret(self.settings, "api_key_pepper"), self.tokens[who])

    def ask(self, who: str, method: str, path: str, **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if who != "nobody":
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        return self.client.request(method, path, headers=headers, **more)

    def close(self) -> None:
        self.client.app.state.pricing.close()  # type: ignore[attr-defined]
        self.client.app.state.db.close()  # type: ignore[attr-defined]
        self.db.close()
