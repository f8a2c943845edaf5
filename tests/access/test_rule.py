"""One access rule: whoever asks it, in one statement or several, gets the same answer."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import ApiKey, Dataset, Job
from app.grants import service as grants
from app.grants.service import Access
from app.jobs.polling import job_of, news_of
from app.keys.service import Caller
from core.errors import NotFound
from tests.access.world import World

# The rule, written out: the level of each role, by its grant, for the data set's owner and for others.
LEVELS = {
    ("admin", None): ("own", "own"),
    ("admin", "view"): ("own", "own"),
    ("admin", "train"): ("own", "own"),
    ("admin", "charge"): ("own", "own"),
    ("owner", None): ("own", None),
    ("owner", "view"): ("own", "view"),
    ("owner", "train"): ("own", "train"),
    ("owner", "charge"): ("own", "charge"),
    ("analyst", None): (None, None),
    ("analyst", "view"): ("view", "view"),
    ("analyst", "train"): ("train", "train"),
    ("analyst", "charge"): ("charge", "charge"),
    ("viewer", None): (None, None),
    ("viewer", "view"): ("view", "view"),
    ("viewer", "train"): ("view", "view"),
    ("viewer", "charge"): ("view", "view"),
}


def arrange(world: World, role: str, grant: str | None, *, owns: bool) -> Caller:
    """A key of this role with this grant; the owner of the data set's key is this one, or another (a demoted owner's
    data set keeps its key)."""
    with world.db.write() as session:
        session.get_one(ApiKey, world.ids["spare"]).role = role
        session.get_one(Dataset, world.mine.dataset).owner_key = world.ids["spare" if owns else "owner"]
    world.grant("spare", grant, 0.5 if grant == "train" else None)
    return world.caller("spare")


def answers(db: Database, caller: Caller, dataset: str, job_id: str) -> dict[str, Access | None]:
    """What each way to ask says."""
    with db.read() as session:
        found: dict[str, Access | None] = {"by id": grants.access_by_id(session, caller, dataset)}
        found["of a job"] = grants.access_to_job(session, caller, session.get_one(Job, job_id))
        try:
            found["found"] = grants.find(session, caller, dataset)[1]
        except NotFound:
            found["found"] = None
        listed = session.scalars(select(Dataset.id).where(grants.visible(caller))).all()
        jobs = session.scalars(select(Job.id).where(grants.visible(caller, Job.dataset_id))).all()
    assert (dataset in listed) is (job_id in jobs) is (found["found"] is not None), "lists show what may be seen"
    with db.quick_read() as connection:
        found["polled"] = job_of(connection, caller.id, job_id).access(caller)
        found["news"] = news_of(connection, caller.id, job_id, 0, 10).access(caller)
    return found


@pytest.mark.parametrize("owns", [True, False], ids=["own", "another's"])
def test_all_ways_to_ask_agree(world: World, owns: bool) -> None:
    for (role, grant), levels in LEVELS.items():
        caller = arrange(world, role, grant, owns=owns)
        level = levels[0 if owns else 1]
        wanted = level and Access(level, 0.5 if level == "train" else None)  # type: ignore[arg-type]
        said = answers(world.db, caller, world.mine.dataset, world.mine.job)
        assert said == dict.fromkeys(said, wanted), (role, grant)


def test_the_table_is_whole() -> None:
    roles, levels = ("admin", "owner", "analyst", "viewer"), (None, "view", "train", "charge")
    assert set(LEVELS) == set(itertools.product(roles, levels))


def test_a_polled_job_has_its_columns_by_name(world: World) -> None:
    key = world.ids["admin"]
    with world.db.quick_read() as connection:
        found = job_of(connection, key, world.mine.job)
        nobody, nothing = job_of(connection, "key_x", world.mine.job), job_of(connection, key, "job_x")
        news = news_of(connection, key, world.mine.job, 1, 2)
    assert found.key is not None and found.key.name == "admin"
    assert found.job is not None and found.job.name == "mine-job" and found.job.status == "succeeded"
    assert [each.name for each in found.details["metrics"]] == ["accuracy"] and found.details["attempts"]
    assert nobody.key is None and nobody.job is None and nothing.key is not None and nothing.job is None
    assert nothing.rows == [] and [each.seq for each in news.rows] == [2, 3]
