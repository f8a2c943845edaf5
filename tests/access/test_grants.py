"""What a grant gives, what its end takes away, and that nothing of what is not granted shines through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from app.db.models import ApiKey, Worker
from app.jobs import event_stream
from app.keys import service as keys
from core.ids import now
from tests.access.world import World
from tests.factories import job_spec

UNSEEN = ("stranger", "strange-viewer", "other-owner")


def grants_path(world: World, who: str = "") -> str:
    path = f"/v1/datasets/{world.mine.dataset}/grants"
    return f"{path}/{world.ids[who]}" if who else path


def cheap(world: World, epsilon: float = 0.01, **changes: Any) -> dict[str, Any]:
    return job_spec(world.mine.dataset, privacy={"target_epsilon": epsilon}, evaluation=None, **changes)


def submit(world: World, who: str, spec: dict[str, Any], once: str = "once") -> Any:
    return world.ask(who, "POST", "/v1/jobs", json=spec, headers={"Idempotency-Key": once})


def test_lists_show_what_is_granted_and_no_more(shared_world: World) -> None:
    world = shared_world
    for path in (
        "/v1/datasets",
        "/v1/jobs",
        "/v1/jobs?status=succeeded",
        "/metrics",
        "/dashboard",
        "/dashboard/live/jobs",
        "/dashboard/datasets",
    ):
        for who in ("trainer", "looker", "viewer", "granted-owner", "owner", *UNSEEN):
            text = world.ask(who, "GET", path).text
            seen = who not in UNSEEN
            for word in (world.mine.dataset, world.mine.job, world.mine.name + '"'):
                if word in world.ask("admin", "GET", path).text:
                    assert (word in text) == seen, (who, path, word)
            if who != "other-owner":
                assert world.foreign.dataset not in text and world.foreign.job not in text, (who, path)
                assert f">{world.foreign.name}<" not in text, (who, path)


def test_counts_are_of_what_is_seen(shared_world: World) -> None:
    world = shared_world
    for who in ("stranger", "strange-viewer"):
        page = world.ask(who, "GET", "/dashboard").text
        assert "No jobs yet" in page and "<select" not in page.split("</main>")[0]
        metrics = world.ask(who, "GET", "/metrics").text
        assert "scrimp_jobs{" not in metrics and "scrimp_http_requests" not in metrics
    assert 'scrimp_jobs{status="succeeded"} 1.0' in world.ask("looker", "GET", "/metrics").text
    assert "scrimp_http_requests" in world.ask("admin", "GET", "/metrics").text


@pytest.mark.parametrize("send", ["look", "quote", "submit"])
def test_a_mistyped_name_is_asked_about_among_those_that_the_key_sees(shared_world: World, send: str) -> None:
    world = shared_world
    mistyped, nothing = f"{world.mine.name.upper()}x", "ds_nowhere"

    def said(who: str, name: str) -> str:
        spec = job_spec(name, privacy={"target_epsilon": 0.01}, evaluation=None)
        match send:
            case "look":
                answer = world.ask(who, "GET", f"/v1/datasets/{name}")
            case "quote":
                answer = world.ask(who, "POST", "/v1/quotes", json=spec)
            case _:
                headers = {"Idempotency-Key": f"mistyped {who}"}
                answer = world.ask(who, "POST", "/v1/jobs", json=spec, headers=headers)
        assert answer.status_code == 404
        return str(answer.json()["detail"])

    assert said("trainer", mistyped) == f"there is no such data set: did you mean '{world.mine.name}'?"
    for who in ("trainer", *UNSEEN):
        assert said(who, nothing) == "there is no such data set"
    for who in ("stranger", "other-owner"):
        assert world.mine.name not in said(who, mistyped), "nobody learns names of data sets that they do not see"


@pytest.mark.parametrize("path", ["/v1/jobs?dataset={}", "/dashboard?dataset={}", "/dashboard/live/jobs?dataset={}"])
def test_a_filter_by_an_unseen_data_set_says_that_there_is_none(shared_world: World, path: str) -> None:
    world = shared_world
    for who in UNSEEN:
        nothing = world.ask(who, "GET", path.format("ds_nowhere"))
        assert nothing.status_code == 404
        for value in (world.mine.dataset, world.mine.name):
            found = world.ask(who, "GET", path.format(value))
            assert (found.status_code, found.content) == (404, nothing.content)
    for value in (world.mine.dataset, world.mine.name):
        assert world.mine.job in world.ask("looker", "GET", path.format(value)).text


@pytest.mark.parametrize("path", ["/v1/quotes", "/v1/jobs"])
def test_a_job_on_an_unseen_data_set_is_answered_as_on_none(shared_world: World, path: str) -> None:
    world = shared_world
    for who in UNSEEN:
        answers = set()
        for value in ("ds_nowhere", world.mine.dataset, world.mine.name):
            spec = job_spec(
                value, sampling={"kind": "poisson", "expected_batch_size": 10**6}
            )  # a fault that planning finds
            answer = world.ask(who, "POST", path, json=spec, headers={"Idempotency-Key": "x"})
            answers.add((answer.status_code, answer.content))
        assert len(answers) == 1 and answers.pop()[0] == 404


def test_a_worker_shows_its_job_to_who_may_see_it(world: World) -> None:
    job = world.queued_job(world.mine, "owner")
    world.scene.start(job, "host:1")
    with world.db.write() as session:
        session.add(Worker(name="host:1", host="host", pid=1, started_at=now(), seen_at=now()))
    for who, shown in (("viewer", job), ("owner", job), ("admin", job), ("stranger", None), ("other-owner", None)):
        assert [each["job"] for each in world.ask(who, "GET", "/v1/workers").json()["items"]] == [shown], who


def test_a_data_set_says_what_the_key_may(world: World) -> None:
    world.grant("trainer", "train", 0.5)
    wanted = {"owner": ("own", None), "admin": ("own", None), "trainer": ("train", 0.5), "viewer": ("view", None)}
    for who, (access, bound) in wanted.items():
        shown = world.ask(who, "GET", f"/v1/datasets/{world.mine.name}").json()
        assert (shown["access"], shown["max_epsilon_per_job"]) == (access, bound)
        assert (shown["content_sha256"] is not None) == (access == "own")
        assert world.ask(who, "GET", "/v1/datasets").json()["items"][-1]["access"] == access


def test_an_owner_grants_and_takes_back(world: World) -> None:
    path = grants_path(world, "stranger")
    made = world.ask("owner", "PUT", path, json={"access": "train", "max_epsilon_per_job": 0.5}).json()
    assert made["key_id"] == world.ids["stranger"] and made["key_name"] == "stranger"
    assert (made["access"], made["max_epsilon_per_job"], made["created_by"]) == ("train", 0.5, world.ids["owner"])
    listed = world.ask("owner", "GET", grants_path(world)).json()["items"]
    assert listed[-1] == made
    assert submit(world, "stranger", cheap(world)).status_code == 201
    again = world.ask("admin", "PUT", path, json={"access": "view"}).json()
    assert (again["access"], again["max_epsilon_per_job"]) == ("view", None)
    assert submit(world, "stranger", cheap(world)).status_code == 403, "also a replay of what it once submitted"
    assert world.ask("owner", "DELETE", path).status_code == 204
    assert submit(world, "stranger", cheap(world)).status_code == 404
    assert world.ask("owner", "DELETE", path).status_code == 404
    assert world.ask("stranger", "GET", "/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("who", "body", "pointer"),
    [
        ("strange-viewer", {"access": "train"}, "/access"),
        ("stranger", {"access": "view", "max_epsilon_per_job": 1.0}, "/max_epsilon_per_job"),
        ("stranger", {"access": "train", "max_epsilon_per_job": -1.0}, "/max_epsilon_per_job"),
        ("stranger", {"access": "own"}, "/access"),
        ("admin", {"access": "train"}, "/path/key_id"),
        ("owner", {"access": "train"}, "/path/key_id"),
        ("expired", {"access": "train"}, "/path/key_id"),
        ("revoked", {"access": "train"}, "/path/key_id"),
    ],
)
def test_grants_without_use_are_refused(shared_world: World, who: str, body: dict[str, Any], pointer: str) -> None:
    answer = shared_world.ask("owner", "PUT", grants_path(shared_world, who), json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_grant_to_no_key_is_not_found(shared_world: World) -> None:
    answer = shared_world.ask("owner", "PUT", f"{grants_path(shared_world)}/key_nobody", json={"access": "view"})
    assert answer.status_code == 404


def test_who_submitted_a_job_cancels_it_while_it_may_train(world: World) -> None:
    first, second, third = (world.queued_job(world.mine, "trainer") for _ in range(3))
    path = "/v1/jobs/{}/cancel"
    for who in ("looker", "viewer", "granted-owner"):
        assert world.ask(who, "POST", path.format(first)).status_code == 403, who
    assert world.ask("trainer", "POST", path.format(first)).status_code == 202
    world.grant("trainer", "view")
    assert world.ask("trainer", "POST", path.format(second)).status_code == 403
    page = world.ask("trainer", "GET", f"/dashboard/jobs/{second}").text
    assert "Cancel the job" not in page
    world.grant("trainer", None)
    assert world.ask("trainer", "POST", path.format(second)).status_code == 404
    assert world.ask("owner", "POST", path.format(second)).status_code == 202
    assert world.ask("admin", "POST", path.format(third)).status_code == 202


def test_a_view_grant_of_a_viewer_is_never_more(world: World) -> None:
    world.grant("viewer", "train")  # as if written by hand: the service refuses it
    assert submit(world, "viewer", cheap(world)).status_code == 403
    assert world.ask("viewer", "GET", f"/v1/datasets/{world.mine.dataset}").json()["access"] == "view"


def test_the_owners_policy_bounds_a_job(world: World) -> None:
    world.grant("trainer", "train", 0.5)
    quote = world.ask("trainer", "POST", "/v1/quotes", json=cheap(world, 0.6)).json()
    assert quote["fits"] is False and quote["remaining_after"] is None
    assert "at most ε = 0.5" in quote["warnings"][-1]
    assert quote["largest_epsilon_that_fits"] == 0.5
    refused = submit(world, "trainer", cheap(world, 0.6))
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/policy-exceeded")
    assert 0.59 < refused.json()["requested"]["value"] <= 0.6 and refused.json()["allowed"]["value"] == 0.5
    # A noise multiplier is no way around it: ε as priced counts.
    sigma = quote["noise_multiplier"]
    by_sigma = cheap(world) | {"privacy": {"noise_multiplier": sigma}}
    assert submit(world, "trainer", by_sigma).json()["type"] == "/problems/policy-exceeded"
    ledger = world.ask("trainer", "GET", f"/v1/datasets/{world.mine.dataset}/ledger").json()
    assert ledger["accounts"]["train"]["held"] == 0 and world.ask("trainer", "GET", "/v1/jobs").json()["next"] is None
    fits = world.ask("trainer", "POST", "/v1/quotes", json=cheap(world, 0.5)).json()
    assert fits["fits"] is True and fits["warnings"] == []
    assert submit(world, "trainer", cheap(world, 0.5)).status_code == 201
    assert submit(world, "owner", cheap(world, 0.6)).status_code == 201, "the policy is for the granted key"


def test_the_page_of_a_data_set_shows_the_policy(world: World) -> None:
    world.grant("trainer", "train", 0.5)
    assert "at most ε 0.5 for one job" in world.ask("trainer", "GET", f"/dashboard/datasets/{world.mine.dataset}").text


def test_artifacts_are_links_for_who_may_download(shared_world: World) -> None:
    for who, links in (("trainer", True), ("looker", False), ("viewer", False)):
        page = shared_world.ask(who, "GET", f"/dashboard/jobs/{shared_world.mine.job}").text
        assert "model.safetensors" in page
        assert ("/artifacts/model.safetensors" in page) == links, who


def test_names_of_keys_are_for_the_owner_of_the_data(shared_world: World) -> None:
    page = "/dashboard/datasets/" + shared_world.mine.dataset
    for who, named in (("owner", True), ("admin", True), ("granted-owner", False), ("trainer", False)):
        text = shared_world.ask(who, "GET", page).text
        assert (shared_world.ids["owner"] in text) != named, who


@contextmanager
def reading(
    world: World, who: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[threading.Thread, list[str]]]:
    """A reader of a job's stream in a thread of its own, once it has got the first event."""
    lines: list[str] = []
    read_events, got = event_stream._read, threading.Event()

    def noted(*asked: Any) -> Any:
        events = read_events(*asked)
        got.set()
        return events

    monkeypatch.setattr(event_stream, "_read", noted)
    headers = {"Authorization": f"Bearer {world.tokens[who]}", "Accept": "text/event-stream"}

    def read() -> None:
        answer = world.client.get(f"/v1/jobs/{job}/events", headers=headers)
        lines.extend(answer.text.splitlines())

    reader = threading.Thread(target=read)
    reader.start()
    assert got.wait(300)
    yield reader, lines
    reader.join(300)
    assert not reader.is_alive(), "the stream goes on"


def end_of_grant(world: World) -> None:
    world.grant("trainer", None)


def end_by_revocation(world: World) -> None:
    with world.db.write() as session:
        keys.revoke(session, world.ids["trainer"])


def end_by_expiry(world: World) -> None:
    with world.db.write() as session:
        session.get_one(ApiKey, world.ids["trainer"]).expires_at = now() - timedelta(seconds=1)


def end_by_rotation(world: World) -> None:
    assert world.ask("admin", "POST", f"/v1/keys/{world.ids['trainer']}/rotate").status_code == 200


@pytest.mark.parametrize("end", [end_of_grant, end_by_revocation, end_by_expiry, end_by_rotation])
def test_a_stream_ends_with_the_right_to_read_it(world: World, monkeypatch: pytest.MonkeyPatch, end: Any) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    job = world.queued_job(world.mine, "owner")
    with reading(world, "trainer", job, monkeypatch) as (_reader, lines):
        end(world)
    assert "event: queued" in lines and "event: end" not in lines


def test_no_event_is_sent_after_the_right_has_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something happens at once, long before the next keep-alive."""
    job = world.queued_job(world.mine, "owner")
    with reading(world, "trainer", job, monkeypatch) as (_reader, lines):
        end_of_grant(world)
        world.scene.start(job)
    assert "event: queued" in lines and "event: attempt_started" not in lines
