"""Deliveries to a real receiver: what arrives, what is tried again, what is stopped, and that several relays share."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.exc import OperationalError

from app.db.database import Database
from app.db.models import AuditEntry, Dataset, Grant, Webhook, WebhookDelivery, WebhookEvent
from app.keys import service as keys
from app.settings import Settings
from app.webhooks import delivery, sending
from app.webhooks.delivery import LEASE, WAITS_S, Deliverer
from app.webhooks.targets import Policy
from core.ids import now
from tests.conftest import BACKINGS
from tests.factories import add_dataset, add_key
from tests.lifecycle.conftest import Submit, claimed
from tests.lifecycle.test_clocks import ahead
from tests.processes import until
from tests.webhooks.conftest import Hook, Receiver, a_deliverer, deliveries, send_a_test, wait_over, webhook_of

TICK = timedelta(milliseconds=2)  # databases keep milliseconds or less


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_jobs_events_arrive_signed(
    db: Database, hook: Hook, receiver: Receiver, deliverer: Deliverer, submit: Submit
) -> None:
    hook()
    job_id = submit(name="first")
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, "ab" * 32)
    log.succeed([], 50, [])
    assert deliverer.fan_out() == 3
    assert deliverer.fan_out() == 0
    while deliverer.deliver_one():
        pass
    messages = [each["message"] for each in receiver.received()]
    assert [each["type"] for each in messages] == ["job.queued", "job.started", "job.succeeded"]
    data = messages[2]["data"]
    assert (data["job"], data["name"], data["status"]) == (job_id, "first", "succeeded")
    assert set(data) == {"job", "dataset", "name", "status", "sequence"}
    assert {each.status for each in deliveries(db)} == {"delivered"}
    assert len({each["id"] for each in receiver.received()}) == 3


def test_only_what_was_asked_for_is_sent(
    db: Database, hook: Hook, receiver: Receiver, deliverer: Deliverer, submit: Submit
) -> None:
    mine, other = add_dataset(db), add_dataset(db)
    hook(events=["job.queued"], dataset=mine)
    submit(other)
    claimed(db, submit(mine))
    deliverer.fan_out()
    assert [(each.type, each.dataset_id) for each in deliveries(db)] == [("job.queued", mine)]


def test_where_nobody_listens_nothing_is_kept(db: Database, submit: Submit, hook: Hook) -> None:
    webhook = hook()
    with db.write() as session:
        session.get_one(Webhook, webhook.id).enabled = False
    submit()
    with db.read() as session:
        assert session.scalar(select(WebhookEvent.id)) is None


def test_a_look_that_failed_is_repeated_at_once(
    db: Database, hook: Hook, deliverer: Deliverer, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change that it was for is used up: what waits would stay until the next one, or for ten seconds."""
    assert deliverer._claim() is None
    hook(events=["job.queued"])
    submit()
    deliverer.fan_out()
    monkeypatch.setattr(deliverer._changes, "due", iter((True, False)).__next__)

    def busy(_: Database) -> None:
        raise OperationalError("SELECT", {}, Exception("busy"))

    with monkeypatch.context() as patch, pytest.raises(OperationalError):
        patch.setattr(Database, "quick_read", busy)
        deliverer._claim()
    assert deliverer._claim() is not None


def test_a_failing_receiver_is_tried_again_under_one_id_and_then_given_up(
    db: Database,
    hook: Hook,
    receiver: Receiver,
    deliverer: Deliverer,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = (600, *WAITS_S[1:])  # the first of five seconds may be over before the next look
    monkeypatch.setattr(delivery, "WAITS_S", waits)
    hook("/fail", events=["job.queued"])
    submit()
    deliverer.fan_out()
    for tries in range(1, len(waits) + 2):
        before = now()
        assert deliverer.deliver_one()
        after = now()
        assert not deliverer.deliver_one()
        found = deliveries(db)[0]
        assert (found.attempts, found.status_code, found.error) == (tries, 500, "refused")
        if tries <= len(waits):
            least, most = timedelta(seconds=waits[tries - 1]), timedelta(seconds=waits[tries - 1] * 1.2)
            assert before + least - TICK <= found.next_at <= after + most + TICK
            wait_over(db)
    assert (found.status, len(receiver.received())) == ("failed", 10)
    assert len({each["id"] for each in receiver.received()}) == 1
    assert not deliverer.deliver_one()


def test_after_five_days_of_failures_a_webhook_is_disabled(
    db: Database, hook: Hook, deliverer: Deliverer, submit: Submit
) -> None:
    webhook = hook("/fail", events=["job.queued"])
    submit()
    deliverer.fan_out()
    deliverer.deliver_one()
    assert webhook_of(db, webhook.id).failing_since is not None
    with db.write() as session:
        long_ago = now() - timedelta(days=5, seconds=1)
        session.execute(update(Webhook).values(failing_since=long_ago))
    wait_over(db)
    deliverer.deliver_one()
    found = webhook_of(db, webhook.id)
    assert (found.enabled, found.disabled_because) == (False, "failing")
    wait_over(db)
    deliverer.deliver_one()
    assert (deliveries(db)[0].status, deliveries(db)[0].error) == ("dropped", "disabled")
    with db.read() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "webhook.disabled")).one()
    assert (entry.target, entry.details) == (webhook.id, {"because": "failing"})


def test_a_receiver_that_is_gone_disables_its_webhook(
    db: Database, hook: Hook, deliverer: Deliverer, submit: Submit
) -> None:
    webhook = hook("/gone", events=["job.queued"])
    submit()
    deliverer.fan_out()
    deliverer.deliver_one()
    assert webhook_of(db, webhook.id).disabled_because == "gone"
    assert deliveries(db)[0].status == "dropped"


def test_redirects_are_not_followed(db: Database, hook: Hook, receiver: Receiver, deliverer: Deliverer) -> None:
    send_a_test(db, hook("/redirect"))
    deliverer.deliver_one()
    assert (deliveries(db)[0].status, deliveries(db)[0].error) == ("failed", "redirected")
    assert [each["path"] for each in receiver.received()] == ["/redirect"]


def test_a_revoked_key_is_told_nothing_more(
    db: Database, hook: Hook, receiver: Receiver, deliverer: Deliverer, submit: Submit
) -> None:
    webhook = hook(events=["job.queued"])
    submit()
    deliverer.fan_out()
    with db.write() as session:
        keys.revoke(session, webhook.key_id)
    deliverer.deliver_one()
    assert (deliveries(db)[0].status, deliveries(db)[0].error) == ("dropped", "no-access")
    submit()
    deliverer.fan_out()
    assert len(deliveries(db)) == 1
    assert receiver.received() == []


def test_who_lost_the_grant_is_told_nothing_more(
    db: Database, hook: Hook, receiver: Receiver, deliverer: Deliverer, submit: Submit
) -> None:
    dataset, foreign = add_dataset(db), add_dataset(db)
    with db.write() as session:
        key = add_key(session, "viewer")
        made = {"access": "view", "created_at": now(), "created_by": key}
        session.add(Grant(dataset_id=dataset, key_id=key, max_epsilon_per_job=None, **made))
    hook(key=key, events=["job.queued", "job.started"])
    submit(foreign)
    claimed(db, submit(dataset))
    deliverer.fan_out()
    assert [each.dataset_id for each in deliveries(db)] == [dataset] * 2
    assert deliverer.deliver_one()
    with db.write() as session:
        session.execute(delete(Grant))
    assert deliverer.deliver_one()
    assert sorted((each.status, each.error) for each in deliveries(db) if each.error) == [("dropped", "no-access")]
    assert len(receiver.received()) == 1


def test_a_data_set_named_like_anothers_id_opens_nothing(
    db: Database, hook: Hook, receiver: Receiver, deliverer: Deliverer, submit: Submit
) -> None:
    """Such names are refused today; a row may be older."""
    foreign = add_dataset(db)
    with db.write() as session:
        key = add_key(session, "owner")
    namesake = add_dataset(db, owner=key, shared=False)
    with db.write() as session:
        session.get_one(Dataset, namesake).name = foreign
    hook(key=key, events=["job.queued"])
    submit(foreign)
    deliverer.fan_out()
    assert deliveries(db) == []


def test_the_connection_goes_to_the_checked_address_under_the_name(
    db: Database, settings: Settings, hook: Hook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name exists for our resolver alone; proxies of the environment are not asked."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    asked: list[str] = []

    def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    policy = Policy(allow_http=False, allow_private=["127.0.0.1/32"], resolver=resolve)
    send_a_test(db, hook(url=receiver.url(host="hooks.test")))
    a_deliverer(db, settings, policy).deliver_one()
    assert deliveries(db)[0].status == "delivered"
    assert receiver.received()[0]["host"] == f"hooks.test:{receiver.port}"
    assert asked == ["hooks.test"]


def test_a_name_that_was_bound_to_the_inside_meanwhile_gets_no_connection(
    db: Database, settings: Settings, hook: Hook, receiver: Receiver
) -> None:
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    policy = Policy(allow_http=True, allow_private=[], resolver=lambda _host, _port: answers.pop(0))
    url = receiver.url(host="hooks.test")
    policy.check(url)
    send_a_test(db, hook(url=url))
    a_deliverer(db, settings, policy).deliver_one()
    assert (deliveries(db)[0].status, deliveries(db)[0].error) == ("failed", "target-refused")
    assert receiver.received() == []


@pytest.mark.parametrize(
    ("path", "total_s", "status", "error"), [("/drip", 1.0, None, "timeout"), ("/endless", 300.0, 200, None)]
)
def test_an_answer_is_bounded_in_time_and_size(
    db: Database,
    hook: Hook,
    deliverer: Deliverer,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    total_s: float,
    status: int | None,
    error: str | None,
) -> None:
    monkeypatch.setattr(sending, "TOTAL_S", total_s)
    send_a_test(db, hook(path))
    deliverer.deliver_one()  # without bounds it would take the whole of the one, and never end at the other
    assert (deliveries(db)[0].status_code, deliveries(db)[0].error) == (status, error)


def test_nobody_listens_there(db: Database, hook: Hook, deliverer: Deliverer) -> None:
    send_a_test(db, hook(url="http://127.0.0.1:9/"))
    deliverer.deliver_one()
    assert (deliveries(db)[0].status, deliveries(db)[0].error) == ("failed", "not-connected")


def test_several_relays_send_each_message_once(
    db: Database, settings: Settings, hook: Hook, receiver: Receiver, submit: Submit
) -> None:
    for _ in range(3):
        hook(events=["job.queued"])
    dataset = add_dataset(db)
    jobs = [submit(dataset, name=str(i), privacy={"target_epsilon": 0.05}, evaluation=None) for i in range(6)]
    stop = threading.Event()
    relays = [a_deliverer(db, settings) for _ in range(2)]
    threads = [thread for relay in relays for thread in relay.start(stop)]

    def tried() -> bool:
        messages = deliveries(db)
        return len(messages) == 18 and all(each.status != "pending" or each.attempts for each in messages)

    until(tried)
    stop.set()
    for thread in threads:
        thread.join()
    tries = Counter((each.status, each.status_code, each.error, each.attempts) for each in deliveries(db))
    assert tries == {("delivered", 204, None, 1): 18}
    assert Counter(each["message"]["data"]["job"] for each in receiver.received()) == dict.fromkeys(jobs, 3)
    assert len({each["id"] for each in receiver.received()}) == 18


def test_a_claim_that_ran_out_is_taken_over_and_its_late_word_is_not_written(
    db: Database, settings: Settings, hook: Hook, receiver: Receiver
) -> None:
    send_a_test(db, hook())
    slow, other = a_deliverer(db, settings), a_deliverer(db, settings)
    first = slow._claim()
    assert first is not None
    assert other._claim() is None
    with db.write() as session:
        session.execute(update(WebhookDelivery).values(next_at=now() - LEASE))
    assert other.deliver_one()
    slow._record(first[0], sending.Result(500, "refused"))
    assert (deliveries(db)[0].status, deliveries(db)[0].attempts) == ("delivered", 2)


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_relays_whose_clocks_differ_send_a_message_once(
    db: Database, settings: Settings, hook: Hook, backing: str, skew_s: float
) -> None:
    """A claim was written with one relay's clock and judged with another's, and so was the time of the next try.

    Attack (Reliability): Relays whose clocks differ send webhooks
    Now: once, when due by the database's clock
    """
    if backing == "sqlite":
        pytest.skip("one machine has one clock")
    with ahead(-skew_s):
        send_a_test(db, hook())
    one, other = a_deliverer(db, settings), a_deliverer(db, settings)
    with ahead(skew_s):
        first = one._claim()
    assert first is not None
    assert other._claim() is None
    with ahead(skew_s):
        assert other._claim() is None
        with db.write() as session:
            session.execute(update(WebhookDelivery).values(type="job.queued"))
            first[0].type = "job.queued"
        one._record(first[0], sending.Result(500, "refused"))
    assert abs((deliveries(db)[0].next_at - now()).total_seconds()) < abs(skew_s) / 2


def test_a_slow_receiver_keeps_one_thread_and_no_more(db: Database, hook: Hook, deliverer: Deliverer) -> None:
    webhook = hook()
    send_a_test(db, webhook)
    send_a_test(db, hook(key=webhook.key_id))
    assert deliverer._claim() is not None
    assert deliverer._claim() is None
    send_a_test(db, hook())
    assert deliverer._claim() is not None


def test_what_ended_long_ago_is_forgotten(db: Database, hook: Hook, deliverer: Deliverer) -> None:
    send_a_test(db, hook())
    deliverer.deliver_one()
    with db.write() as session:
        session.execute(update(WebhookDelivery).values(ended_at=now() - timedelta(days=31)))
    deliverer.fan_out()
    assert deliveries(db) == []


def test_under_another_key_nothing_is_sent(db: Database, settings: Settings, hook: Hook, receiver: Receiver) -> None:
    send_a_test(db, hook())
    deliverer = a_deliverer(db, settings)
    deliverer.keys = (b"x" * 32,)
    deliverer.deliver_one()
    assert (deliveries(db)[0].status, deliveries(db)[0].error) == ("failed", "secret-unreadable")
    assert receiver.received() == []


def test_a_sender_goes_on_with_its_receiver(db: Database, hook: Hook, deliverer: Deliverer, submit: Submit) -> None:
    """Others find nothing while one sends to the only receiver: that must not slow the one that sends."""
    webhook, stop = hook(events=["job.queued"]), threading.Event()
    for _ in range(3):
        submit()
    deliverer.fan_out()
    deliverer._busy.add(webhook.key_id)
    assert not deliverer.deliver_one()
    deliverer._busy.clear()
    assert deliverer.serve(stop)
    assert {each.status for each in deliveries(db)} == {"delivered"}
    stop.set()
    assert not deliverer.serve(stop)


def test_of_idle_senders_one_looks(
    db: Database, deliverer: Deliverer, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "POLL_S", 0.01)
    looks, names, claim, stop = list[str](), set[str](), deliverer._claim, threading.Event()

    def counted() -> tuple[WebhookDelivery, str] | None:
        looks.append(threading.current_thread().name)
        return claim()

    monkeypatch.setattr(deliverer, "_claim", counted)
    threads = deliverer.start(stop)
    for _ in range(8):
        looks.clear()
        webhook = hook()
        names |= set(until(lambda: looks))  # after each change
    assert len(names) == 1
    send_a_test(db, webhook)
    until(lambda: [each.status for each in deliveries(db)] == ["delivered"])
    until(lambda: set(looks) - names)  # who had it to send left the line to another
    stop.set()
    for thread in threads:
        thread.join()
