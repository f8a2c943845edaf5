"""Wake-ups go out together and are noted together: what a pass costs, and what a crash between the two costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kombu.exceptions import BatchPublishError
from redis.connection import AbstractConnection
from sqlalchemy import event, func, select

from app.db.database import Database
from app.db.models import Job, Outbox
from app.ledger.signing_keys import signing_key
from app.lifecycle import wakeups
from app.lifecycle.broker import QUEUE
from app.lifecycle.relay import Relay
from app.lifecycle.wakeups import CeleryNotifier, WakeUp
from app.settings import Settings
from tests import processes, servers
from tests.factories import add_dataset
from tests.lifecycle.conftest import Submit, job_row

# BEGIN and COMMIT are not among them: which topics are due, the messages, the jobs' note, the outbox.
STATEMENTS = 4
CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.02}, "length": {"steps": 5}, "evaluation": None}


@pytest.fixture
def backing() -> str:
    return "sqlite"


def sent_rows(db: Database) -> int:
    with db.read() as session:
        return session.scalar(select(func.count()).select_from(Outbox)) or 0


def messages(notifier: CeleryNotifier) -> list[str]:
    """Takes all messages from the broker."""
    found = []
    with notifier.app.connection() as connection:
        queue = connection.SimpleQueue(QUEUE, no_ack=True)
        for _ in range(notifier.waiting()):
            found.append(queue.get(timeout=300).payload[0][0])
        queue.close()
    return found


@pytest.fixture
def jobs(db: Database, submit: Submit) -> Callable[[int], list[str]]:
    dataset = add_dataset(db)
    once = iter(range(1000))
    return lambda count: [submit(dataset, once=f"k{next(once)}", **CHEAP) for _ in range(count)]


@pytest.fixture
def over_redis(settings: Settings, redis_server: servers.Redis) -> Iterator[CeleryNotifier]:
    notifier = CeleryNotifier(settings.model_copy(update={"broker_url": redis_server.url(33)}))
    messages(notifier)  # also opens the connection
    yield notifier
    notifier.app.close()


def test_one_job_and_many_cost_the_same_statements_and_round_trips(
    db: Database,
    settings: Settings,
    jobs: Callable[[int], list[str]],
    over_redis: CeleryNotifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    trips: list[object] = []
    send = AbstractConnection.send_packed_command
    monkeypatch.setattr(
        AbstractConnection, "send_packed_command", lambda *told, **more: trips.append(told) or send(*told, **more)
    )
    once = settings.model_copy(update={"sweep_s": 3600.0})
    relay = Relay(db, once, signing_key(settings), over_redis)
    jobs(1)
    relay.run_once()  # the first pass also connects and sweeps
    messages(over_redis)
    for count in (1, 6):
        submitted = jobs(count)
        said.clear()
        trips.clear()
        relay.run_once()
        asked, sent = [each for each in said if not each.startswith(("BEGIN", "COMMIT"))], len(trips)
        assert (len(asked), sent) == (STATEMENTS, 1), asked
        assert messages(over_redis) == submitted and sent_rows(db) == 0
        assert all(job_row(db, each).notified_at for each in submitted)


def test_what_is_due_is_what_the_plain_queries_find(
    db: Database, jobs: Callable[[int], list[str]], submit: Submit
) -> None:
    plain, gpu = jobs(2), submit(once="gpu", runtime={"device": "cuda"}, **CHEAP)
    with db.write() as session:
        session.get_one(Job, plain[1]).traceparent = "00-trace"
    found = wakeups.due(db, 10)
    with db.read() as session:
        rows = session.execute(select(Outbox.id, Outbox.job_id).where(Outbox.topic == "notify").order_by(Outbox.id))
        expected = [
            WakeUp(job_id, job_id == gpu, session.get_one(Job, job_id).traceparent, row) for row, job_id in rows
        ]
    assert found == expected and len(found) == 3 and wakeups.due(db, 2) == expected[:2]


def die_after_sending(home: str, url: str) -> None:
    """A relay that is killed when its messages are sent and nothing is noted."""

    class Doomed(CeleryNotifier):
        def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
            list(super().notify(due))
            os.kill(os.getpid(), signal.SIGKILL)
            yield from ()

    settings = Settings(home=home, broker_url=url)  # type: ignore[arg-type] # pydantic reads the path
    Relay(Database.of(settings), settings, signing_key(settings), Doomed(settings)).run_once()


def test_a_relay_that_is_killed_between_the_messages_and_their_note_loses_no_job(
    db: Database, settings: Settings, jobs: Callable[[int], list[str]], over_redis: CeleryNotifier
) -> None:
    submitted = jobs(5)
    url = over_redis.app.conf.broker_url
    killed = processes.quick().Process(target=die_after_sending, args=(str(settings.home), url))
    killed.start()
    killed.join(300)
    assert killed.exitcode == -signal.SIGKILL
    assert sent_rows(db) == 5 and messages(over_redis) == submitted
    Relay(db, settings, signing_key(settings), over_redis).run_once()
    assert sent_rows(db) == 0 and set(messages(over_redis)) == set(submitted)


def test_messages_that_redis_did_not_take_are_sent_when_it_is_back(
    db: Database, settings: Settings, jobs: Callable[[int], list[str]]
) -> None:
    submitted = jobs(3)
    with servers.redis() as server:
        notifier = CeleryNotifier(settings.model_copy(update={"broker_url": server.url()}))
        assert len(list(notifier.notify([WakeUp("job_before")]))) == 1
        server.kill()
        relay = Relay(db, settings, signing_key(settings), notifier)
        with pytest.raises(BatchPublishError):
            relay.run_once()
        assert sent_rows(db) == 3
        server.start()
        relay.run_once()
        assert messages(notifier) == submitted and sent_rows(db) == 0
        notifier.app.close()


def test_the_spool_has_each_message_sent_before_it_fails_noted(
    db: Database, settings: Settings, jobs: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk repeats none of the messages that it took."""
    submitted = jobs(3)
    notifier = CeleryNotifier(settings)
    send, left = notifier.app.send_task, iter([True, True])

    def until_full(*told: Any, **more: Any) -> Any:
        if not next(left, False):
            raise OSError("no space left")
        return send(*told, **more)

    monkeypatch.setattr(notifier.app, "send_task", until_full)
    relay = Relay(db, settings, signing_key(settings), notifier)
    with pytest.raises(OSError, match="no space"):
        relay.run_once()
    assert [each.id for each in wakeups.due(db, 9)] == submitted[2:]
    assert messages(notifier) == submitted[:2]
