"""A job's tags and notes: for who may cancel it, within limits, found by the list, and no part of anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.db.models import AuditEntry, Certificate, Job
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import XSS, Key, Scene


@pytest.fixture
def job(scene: Scene) -> str:
    return scene.succeeded(scene.dataset("mine"), "a job", [0.8], privacy={"target_epsilon": 0.5})


@pytest.fixture
def ask(visit: Callable[[], Browser]) -> Callable[..., Any]:
    client = visit().client
    return lambda key, method, path, **more: client.request(
        method, path, headers={"Authorization": f"Bearer {key.token}"}, **more
    )


Ask = Callable[..., Any]


def test_tags_and_notes_are_kept_apart_from_the_mechanism(scene: Scene, job: str, ask: Ask) -> None:
    with scene.db.read() as session:
        before = session.get_one(Job, job)
        body = session.get_one(Certificate, job).body
    sent = {"tags": ["Baseline ", "baseline", "for the paper: §3"], "notes": "η too large?\nTry 10."}
    answer = ask(scene.analyst, "PATCH", f"/v1/jobs/{job}", json=sent)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["tags"], answer.json()["notes"]) == (["baseline", "for the paper: §3"], sent["notes"])
    assert ask(scene.analyst, "PATCH", f"/v1/jobs/{job}", json={"tags": []}).json()["notes"] == sent["notes"]
    ask(scene.analyst, "PATCH", f"/v1/jobs/{job}", json={"tags": ["x"]})
    with scene.db.read() as session:
        after = session.get_one(Job, job)
        assert (after.spec, after.mechanism, after.quote, after.events) == (
            before.spec,
            before.mechanism,
            before.quote,
            before.events,
        )
        assert session.get_one(Certificate, job).body == body
        recorded = session.query(AuditEntry).filter_by(action="job.labelled", target=job).all()
    assert [entry.details for entry in recorded] == [{}] * 3, "the texts are not in the log"
    assert ask(scene.analyst, "GET", f"/v1/jobs/{job}").json()["tags"] == ["x"]


@pytest.mark.parametrize(
    "sent",
    [
        {"tags": ["a" * 41]},
        {"tags": [""]},
        {"tags": ["a,b"]},
        {"tags": ["a\nb"]},
        {"tags": [str(k) for k in range(11)]},
        {"notes": "x" * 4001},
        {"notes": "a\x00b"},
        {"name": "new"},
    ],
)
def test_what_is_too_much_is_refused(scene: Scene, job: str, ask: Ask, sent: dict[str, Any]) -> None:
    assert ask(scene.analyst, "PATCH", f"/v1/jobs/{job}", json=sent).status_code == 422
    assert ask(scene.analyst, "GET", f"/v1/jobs/{job}").json()["tags"] == []


def test_who_may_cancel_a_job_may_label_it(scene: Scene, job: str, ask: Ask) -> None:
    looker = scene.key("analyst")
    dataset = ask(scene.owner, "GET", f"/v1/jobs/{job}").json()["dataset"]
    assert ask(looker, "PATCH", f"/v1/jobs/{job}", json={"tags": ["a"]}).status_code == 404
    granted = ask(scene.owner, "PUT", f"/v1/datasets/{dataset}/grants/{looker.id}", json={"access": "train"})
    assert granted.status_code == 200, granted.text
    assert ask(looker, "PATCH", f"/v1/jobs/{job}", json={"tags": ["a"]}).status_code == 403
    for key in (scene.analyst, scene.owner, scene.admin):
        assert ask(key, "PATCH", f"/v1/jobs/{job}", json={"tags": [key.role]}).json()["tags"] == [key.role]


def test_the_list_finds_whole_tags_in_any_case(scene: Scene, job: str, ask: Ask) -> None:
    ask(scene.analyst, "PATCH", f"/v1/jobs/{job}", json={"tags": ["base", "100%", "a_b"]})

    def found(tag: str) -> bool:
        items = ask(scene.analyst, "GET", "/v1/jobs", params={"tag": tag}).json()["items"]
        return [each["id"] for each in items] == [job]

    assert [found(each) for each in ("base", "BASE", "100%", "a_b")] == [True] * 4
    assert [found(each) for each in ("bas", "10%", "acb", "base,100%x", "x")] == [False] * 5


def test_a_person_labels_a_job_on_its_page(scene: Scene, job: str, visit: Callable[[], Browser]) -> None:
    browser = visit()
    browser.sign_in(scene.analyst)
    csrf = token_of(browser.get(f"/dashboard/jobs/{job}"))
    form = {"csrf": csrf, "tags": f"Paper, {XSS[:30]}", "notes": XSS}
    assert browser.client.post(f"/dashboard/jobs/{job}/labels", data=form).status_code == 303
    page = browser.get(f"/dashboard/jobs/{job}").text
    assert 'href="/dashboard?tag=paper"' in page and XSS not in page
    assert f'<tr id="{job}">' in browser.get("/dashboard?tag=Paper").text
    assert "No job matches" in browser.get("/dashboard?tag=pap").text
    assert browser.client.post(f"/dashboard/jobs/{job}/labels", data=form | {"tags": "a" * 41}).status_code == 422
    assert browser.client.post(f"/dashboard/jobs/{job}/labels", data=form | {"csrf": "0" * 64}).status_code == 403


def test_a_viewer_reads_labels_and_has_no_form(scene: Scene, job: str, ask: Ask, visit: Callable[[], Browser]) -> None:
    viewer: Key = scene.key("viewer")
    dataset = ask(scene.owner, "GET", f"/v1/jobs/{job}").json()["dataset"]
    ask(scene.owner, "PUT", f"/v1/datasets/{dataset}/grants/{viewer.id}", json={"access": "view"})
    ask(scene.analyst, "PATCH", f"/v1/jobs/{job}", json={"notes": "for all to read"})
    browser = visit()
    browser.sign_in(viewer)
    page = browser.get(f"/dashboard/jobs/{job}").text
    assert "for all to read" in page and "Edit tags and notes" not in page
