"""Who may run a job that asks for a GPU, what it waits for, and on what its later attempts run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from app.db.database import Database
from app.db.models import Attempt
from app.jobs.repository import PARTS
from app.jobs.schemas import AttemptView, JobView
from app.ledger.signing_keys import signing_key
from app.lifecycle.cadence import Cadence
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.presence import GpuWorkers, Presence
from app.lifecycle.queue.room import Room
from app.lifecycle.relay import Relay
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import get_job
from app.lifecycle.wakeups import CeleryNotifier, WakeUp
from app.settings import Settings
from core.contracts.devices import Device
from core.errors import PrivacyError
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.lifecycle.test_fair import BOTH, CHEAP, NO_RECORDS

CPU = Room(1)
GPU = Device(kind="cuda", index=0, name="A GPU", memory_bytes=2**34, capability="9.0")
PROCESSOR = Device(kind="cpu", index=0, name="A processor")
NOTHING: dict[str, list[Any]] = {part: [] for part in PARTS}


def waiting_for(db: Database, job_id: str) -> str | None:
    return JobView.of_job(job_row(db, job_id), NOTHING, GpuWorkers(db, 30.0)).waiting_for


def test_a_job_says_what_it_waits_for(db: Database, submit: Submit) -> None:
    gpu = submit(once="gpu", runtime={"device": "cuda"}, **CHEAP)
    plain = submit(once="plain", **CHEAP)
    Presence(db, "host", 1, 5.0, devices=[PROCESSOR]).beat()
    assert (waiting_for(db, gpu), waiting_for(db, plain)) == ("cuda", "worker")
    presence = Presence(db, "host", 2, 5.0, devices=[GPU])
    presence.beat()
    assert (waiting_for(db, gpu), waiting_for(db, plain)) == ("worker", "worker"), "a GPU worker lives and is busy"
    presence._leave()
    assert waiting_for(db, gpu) == "cuda"
    claimed(db, gpu)
    assert waiting_for(db, gpu) is None


@pytest.mark.parametrize("traits", [{"finishes": True}, {"volume": "vol_1"}], ids=["finishes", "ingest"])
def test_a_new_job_does_not_wait_for_a_worker_that_takes_no_new_job(
    db: Database, submit: Submit, traits: dict[str, Any]
) -> None:
    """What settles `auto`, the quote's warning and what a job waits for are one answer."""
    new, begun = submit(once="new", runtime={"device": "cuda"}, **CHEAP), submit(once="begun", **CHEAP)
    log = claimed(db, begun)
    log.ready("cuda", numerics())
    log.gone("lost")
    presence = Presence(db, "host", 2, 5.0, devices=[GPU])
    for name, value in traits.items():
        setattr(presence, name, value)
    presence.beat()
    assert waiting_for(db, new) == "cuda"
    assert waiting_for(db, begun) == ("worker" if presence.finishes else "cuda"), "its own release may finish it"


def test_a_job_says_that_it_waits_for_processes(db: Database, submit: Submit) -> None:
    four = submit(once="four", runtime={"processes": 4}, **CHEAP)
    Presence(db, "host", 1, 5.0, devices=[PROCESSOR]).beat()
    assert waiting_for(db, four) == "processes", "a worker that does not say runs one"
    Presence(db, "host", 2, 5.0, devices=[PROCESSOR.model_copy(update={"processes": 3})]).beat()
    assert waiting_for(db, four) == "processes"
    Presence(db, "host", 3, 5.0, devices=[PROCESSOR.model_copy(update={"processes": 4})]).beat()
    assert waiting_for(db, four) == "worker"


@pytest.mark.parametrize(("device", "others"), [("cpu", BOTH), ("cuda", CPU)])
def test_later_attempts_run_on_the_kind_of_the_first_ready_one(
    db: Database, submit: Submit, device: Any, others: Room
) -> None:
    job_id = submit(**CHEAP)
    log = claimed(db, job_id)
    log.ready(device, numerics(), fitted_rows=48)
    log.gone("lost")
    found = job_row(db, job_id)
    assert (found.device, found.fitted_rows) == (device, 48)
    assert found.threads == numerics().threads
    held = claim_next(db, NO_RECORDS, "w", 30.0, others)
    # A processor is everywhere; a GPU is not.
    assert (held is not None) == (device == "cpu")
    assert held is not None or claim_next(db, NO_RECORDS, "w", 30.0, BOTH) is not None


def test_an_attempt_that_is_lost_before_it_is_ready_binds_nobody(db: Database, submit: Submit) -> None:
    job_id = submit(**CHEAP)
    claimed(db, job_id).gone("lost")
    assert job_row(db, job_id).device is None
    assert claim_next(db, NO_RECORDS, "w", 30.0, CPU) is not None


def test_threads_are_those_of_the_first_ready_attempt(db: Database, submit: Submit) -> None:
    """Another machine divides other processors: what it says later moves nothing."""
    job_id = submit(**CHEAP)
    for threads in (3, 8):
        log = claimed(db, job_id)
        log.ready("cpu", numerics().model_copy(update={"threads": threads}))
        log.gone("lost")
        assert job_row(db, job_id).threads == 3


@pytest.mark.parametrize(("device", "rows"), [("cuda", None), ("cpu", 48)])
def test_an_attempt_on_another_device_or_in_other_passes_is_stopped(
    db: Database, submit: Submit, device: Any, rows: int | None
) -> None:
    job_id = submit(**CHEAP)
    log = claimed(db, job_id)
    log.ready("cpu", numerics())
    log.gone("lost")
    with pytest.raises(PrivacyError, match="of the first"):
        claimed(db, job_id).ready(device, numerics(), fitted_rows=rows)


def test_an_attempt_says_on_what_it_ran(db: Database, submit: Submit) -> None:
    """At a whole second: how long the data took to load depends on them."""
    log = claimed(db, submit(**CHEAP))
    log.cadence = Cadence(1e9)
    log.ready("cuda", numerics())

    def shown() -> str | None:
        with db.read() as session:
            return AttemptView.of(session.get_one(Attempt, (log.held.job_id, 1))).device

    assert shown() is None
    log.cadence = Cadence(0.0)
    log.heartbeat()
    assert shown() == "cuda"


class Heard:
    """A broker in this process."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool]] = []

    def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
        for each in due:
            self.sent.append((each.id, each.gpu))
            yield each

    def waiting(self, *, gpu: bool = False) -> int:
        return sum(each[1] == gpu for each in self.sent)


def test_wake_ups_for_gpu_jobs_go_to_gpu_workers_alone(db: Database, settings: Settings, submit: Submit) -> None:
    """A CPU worker would use them up, and a GPU worker that starts later would hear of no job."""
    gpu, plain = submit(once="gpu", runtime={"device": "cuda"}, **CHEAP), submit(once="plain", **CHEAP)
    heard = Heard()
    eager = settings.model_copy(update={"notify_again_s": 0.0, "sweep_s": 0.0})
    relay = Relay(db, eager, signing_key(settings), heard)
    for _ in range(3):
        relay.run_once()
    assert sorted(heard.sent) == sorted([(gpu, True), (plain, False)]), "once each: both messages still wait"
    heard.sent.remove((gpu, True))
    relay.run_once()
    assert heard.sent.count((gpu, True)) == 1, "a lost one is repeated"


def test_each_queue_has_its_own_messages(settings: Settings) -> None:
    notifier = CeleryNotifier(settings)
    assert len(list(notifier.notify([WakeUp("job_a"), WakeUp("job_b", gpu=True)]))) == 2
    assert (notifier.waiting(), notifier.waiting(gpu=True)) == (1, 1)


def test_a_job_that_waits_for_a_gpu_is_cancelled_free_of_charge(db: Database, submit: Submit) -> None:
    job_id = submit(runtime={"device": "cuda"}, **CHEAP)
    assert balances(db, job_id)[1] > 0
    with db.write() as session:
        settle(session, settlement_of(session, get_job(session, job_id), "cancelled"))
    assert balances(db, job_id) == (0, 0, 0, 0)
