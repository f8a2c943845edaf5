"""Operations on jobs: people submit and steer them, workers claim and run them, and workers are lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sqlalchemy import bindparam, select

from app.admission.hold import Held, submit
from app.admission.request import Limits
from app.admission.service import Admission
from app.db.models import Job
from app.jobs import steering as jobs
from app.ledger import behind, block_accounts
from app.ledger.accounts import filter_for
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.lifecycle.settle import Cause
from app.lifecycle.sweeper import reap_expired
from core.contracts.job_spec import JobSpec
from core.privacy.mechanism import MechanismConfig
from tests import factories
from tests.factories import AT_ONCE, job_spec
from tests.machine import model
from tests.machine.machine import Divergence, Machine, Outcome, caller
from tests.machine.model import BEHIND, BUDGET, STALE, Pair
from tests.machine.world import KEYS, LEASE_S, TIME, World

EPSILONS = (0.7, 1.5)
STEPS = 10
MECHANISM = select(Job.mechanism).where(Job.id == bindparam("job"))


@cache
def parts_of(mechanism: str, order: int | None) -> tuple[int, ...]:
    """What 0, 1, … all but one of a job's steps cost without its scores, as the accountants say."""
    of = MechanismConfig.model_validate_json(mechanism)
    started = (of.started(of.training.started(steps, 1), []) for steps in range(1, STEPS))
    enforced = filter_for("gdp" if order is None else "rdp", order)
    return (0, *(enforced.charge(each, "train") for each in started))


@dataclass
class Attempt:
    """An attempt that believes that it holds its job, and the step that it has reached."""

    log: AttemptLog
    job_id: str
    number: int
    at: int = 0


class Jobs(Machine):
    """What happens to jobs."""

    def __init__(self, world: World, seed: int, number: int) -> None:
        super().__init__(world, seed, number)
        self.asked: dict[str, JobSpec] = {}  # by Idempotency-Key
        self.live: list[Attempt] = []  # stale ones too

    # Admission, and what people do to a job.

    def submit(self) -> None:
        key, once, spec = self.draw.choice(KEYS), f"once-{next(self.numbers)}", self.spec()
        self.asked[once] = spec
        found = self.call("submit", lambda: self.admitted(key, once, spec))
        state = self.state
        asked = self.ledgers_of(found, key, spec)
        if asked is None:
            return
        if not state.open_ones():
            self.agree(found, BUDGET)
            return
        amounts = self.priced()
        if self.is_behind(*asked):
            self.agree(found, BEHIND)
            return
        refuses = state.refuses(asked, key, amounts)
        if not self.agree(found, BUDGET if refuses else None):
            self.check_refusal(found, refuses or "", key, amounts)
            return
        job_id = found.result.id
        hold = state.hold(asked, key, amounts)
        state.jobs[job_id] = model.Job(hold, key, self.parts(job_id, amounts[0], hold), amounts[1] > 0, once)
        self.check_held(job_id, hold)

    def ledgers_of(self, answer: Outcome, key: str, spec: JobSpec) -> list[str] | None:
        """The ledgers that a request is priced on; None if the request must be refused, as it was."""
        state, named = self.state, spec.blocks
        labels = {state.ledgers[of.of].label: ledger for ledger, of in state.ledgers.items() if not of.closed}
        if not labels and (len(state.blocks()) > 1 or state.retired):
            self.agree(answer, "content-deleted")
            return None
        if not labels:
            return [state.first]  # it never grew, and its cap is all spent
        if named != "all" and not set(named) <= labels.keys():
            self.agree(answer, "invalid-request")
            return None
        if named != "all" or len(state.blocks()) == 1:
            return state.open_ones() if named == "all" else sorted(labels[label] for label in named)
        able = [each for each in state.open_ones() if model.covers(state.left(each, key), self.priced())]
        return able or [max(state.open_ones(), key=lambda each: (*state.left(each, key), each))]

    def admission(self) -> Admission:
        prices: Any = self.world.prices
        return Admission(self.db, prices, self.world.heads, Limits(max_queued_jobs=10**6))

    def admitted(self, key: str, once: str, spec: JobSpec) -> Any:
        return submit(self.admission(), caller(key), spec, once)

    def spec(self) -> JobSpec:
        state = self.state
        changes: dict[str, Any] = {
            "privacy": {"target_epsilon": self.draw.choice(EPSILONS)},
            "length": {"steps": STEPS},
        }
        if self.draw.random() < 0.5:
            changes["evaluation"] = None
        if len(state.blocks()) > 1 and self.draw.random() < 0.6:
            labels = [each.label for each in state.blocks().values()]
            changes["blocks"] = self.draw.sample(labels, self.draw.randint(1, len(labels)))
        return JobSpec.model_validate(job_spec(state.first, **changes))

    def priced(self) -> Pair:
        charge = self.world.prices.last.charge
        return charge.train, charge.holdout

    def parts(self, job_id: str, whole: int, hold: model.Hold) -> tuple[int, ...]:
        """What each number of steps costs: in proportion, up to the rounding of floating point."""
        order = self.state.ledgers[next(iter(hold.payers))].order
        with self.db.quick_read() as connection:
            mechanism = connection.execute(MECHANISM, {"job": job_id}).scalar_one()
        found = (*parts_of(json.dumps(mechanism), order), whole)
        if any(abs(part - whole * steps / STEPS) > 2 + whole * 1e-9 for steps, part in enumerate(found)):
            raise Divergence(f"parts of a job that costs {whole} cost {found}")
        return found

    def check_refusal(self, found: Outcome, refuses: str, key: str, amounts: Pair) -> None:
        assert found.error is not None
        left = self.state.left(refuses, key)
        members: dict[str, Any] = found.error.members
        if members["remaining"] != {"train": left[0], "holdout": left[1]}:
            raise Divergence(f"it says that {members['remaining']} remain, and the model says {left}")
        if members["requested"] != {"train": amounts[0], "holdout": amounts[1]}:
            raise Divergence(f"it says that {members['requested']} were asked, and the price was {amounts}")

    def check_held(self, job_id: str, hold: model.Hold) -> None:
        with self.db.read() as session:
            held = block_accounts.held_on(session, job_id)
        if held != sorted(hold.payers):
            raise Divergence(f"it holds on {held}, and the model on {sorted(hold.payers)}")

    def submit_again(self) -> None:
        """The same request is delivered twice."""
        job_id = self.pick(self.state.jobs)
        if job_id is None:
            return
        job = self.state.jobs[job_id]
        found = self.call("submit again", lambda: self.admitted(job.key, job.once, self.asked[job.once]))
        if self.agree(found, None) and found.result != Held(job_id):
            raise Divergence(f"the same request made another job, {found.result}")

    def steer(self, how: str, into: dict[str, str]) -> None:
        """A person cancels, pauses or resumes a job. `into` has the states in which something happens."""
        job_id = self.pick(self.state.jobs)
        if job_id is None:
            return
        job = self.state.jobs[job_id]
        cancel = partial(jobs.cancel, heads=self.world.heads)
        act = {"cancel": cancel, "pause": partial(jobs.pause), "resume": partial(jobs.resume)}[how]
        found = self.call(how, lambda: act(self.db, caller(job.key), job_id))
        if not self.agree(found, None if job.status in into else "wrong-state"):
            return
        to = into[job.status]
        if to == "cancelled":
            self.state.end(job, "cancelled")
        elif to != job.status:
            leaves = job.status in ("queued", "paused") or to in ("queued", "paused")
            job.status, job.waits = to, job.waits and not leaves

    def cancel(self) -> None:
        at_once = {"queued": "cancelled", "paused": "cancelled"}
        self.steer("cancel", at_once | dict.fromkeys(("running", "pausing", "cancelling"), "cancelling"))

    def pause(self) -> None:
        self.steer("pause", {"queued": "paused", "running": "pausing", "pausing": "pausing", "paused": "paused"})

    def resume(self) -> None:
        self.steer("resume", {"paused": "queued", "pausing": "running"})

    # Attempts.

    def claim(self) -> None:
        """A message arrives: for the first time, late or doubled."""
        job_id = self.pick(self.state.jobs)
        if job_id is None:
            return
        job = self.state.jobs[job_id]

        def claimed() -> Any:
            with self.db.write() as session:
                return claim(session, job_id, "w", LEASE_S)

        found = self.call("claim", claimed)
        self.agree(found, None)
        may = job.status == "queued" and not job.waits
        if (found.result is not None) != may:
            raise Divergence(f"a claim of a job that is {job.status} gave {found.result}")
        if may:
            job.status, job.attempt, job.lapsed = "running", job.attempt + 1, False
            log = AttemptLog(self.db, found.result, lease_s=LEASE_S, max_attempts=model.MAX_CRASHES, cadence=AT_ONCE)
            self.begin(Attempt(log, job_id, job.attempt))

    def begin(self, made: Attempt) -> None:
        """The heads are recorded before a private pass; an attempt on a ledger that is behind is not run."""
        job = self.state.jobs[made.job_id]
        begun = made.log.begin()
        if sorted(begun.reads) != sorted(job.hold.payers):
            raise Divergence(f"it reads {begun.reads}, and its hold is on {sorted(job.hold.payers)}")
        for each in begun.reads:
            is_behind = self.unrecordable(each)
            found = self.call("record", partial(behind.record, self.db, self.world.heads, each))
            self.note_heads(each)
            if not self.agree(found, "worker-lost" if is_behind else None):
                made.log.gone("lost")
                self.state.give_back(job, "lost")
                return
        self.live.append(made)

    def holds(self, made: Attempt) -> bool:
        """True if an attempt still holds its job: its next write renews the lease."""
        job = self.state.jobs.get(made.job_id)
        return job is not None and job.attempt == made.number and job.status in model.ACTIVE

    def ended(self, made: Attempt, found: Outcome) -> bool:
        """True if the attempt's last write was done; it is gone in either case."""
        held = self.holds(made)
        self.live.remove(made)
        return self.agree(found, None if held else STALE)

    def step(self) -> None:
        """Starts the next block of steps, or repeats it; some attempts die before its digest is there."""
        made = self.pick(self.live)
        if made is None:
            return
        job, last = self.state.jobs[made.job_id], min(STEPS, made.at + self.draw.randint(1, STEPS))
        found = self.call("start steps", lambda: made.log.start_block(made.at + 1, last))
        if not self.agree(found, None if self.holds(made) else STALE):
            self.live.remove(made)
            return
        job.lapsed = False
        if found.result != (job.status == "running"):
            raise Divergence(f"a block of a job that is {job.status} may start: {found.result}")
        if not found.result:
            return
        job.started = max(job.started, last)
        made.at = last
        made.log.record_digest(last, f"{last:064x}")

    def differ(self) -> None:
        """A replay that is not identical, and goes on under the same keys, is refused."""
        made = self.pick(self.live)
        if made is None or made.at == 0 or not self.holds(made):
            return
        found = self.call("differ", lambda: made.log.record_digest(made.at, "f" * 64))
        self.agree(found, "privacy-invariant")

    def finish(self) -> None:
        made = self.pick(each for each in self.live if each.at == STEPS)
        if made is None:
            return
        job = self.state.jobs[made.job_id]
        if job.scored:
            number = {"name": "accuracy", "step": STEPS, "value": 0.5, "std": 0.01, "on": "holdout"}
            found = self.call("score", lambda: factories.release(made.log, number | {"released_by": "noisy_count"}))
            if not self.agree(found, None if self.holds(made) else STALE):
                self.live.remove(made)
                return
            job.released, job.lapsed = 1, False
            if self.draw.random() < 0.3:  # it dies between its score and its end
                return
        if self.ended(made, self.call("succeed", lambda: made.log.succeed([], STEPS, []))):
            self.state.end(job, "succeeded")

    def crash(self) -> None:
        self.die("crashed")

    def lose(self) -> None:
        self.die("lost")

    def die(self, how: Any) -> None:
        made = self.pick(self.live)
        if made is not None and self.ended(made, self.call(how, lambda: made.log.gone(how))):
            self.state.give_back(self.state.jobs[made.job_id], how)

    def fail(self) -> None:
        made, whole = self.pick(self.live), self.draw.random() < 0.3
        if made is None:
            return
        cause = Cause.TIME_LIMIT if whole else Cause.ERROR
        found = self.call("fail", lambda: made.log.fail("internal", "The attempt failed.", cause))
        if self.ended(made, found):
            self.state.end(self.state.jobs[made.job_id], "failed", own_fault=True, whole=whole)

    def stop(self) -> None:
        """An attempt hears that its job is to be cancelled or paused, and ends; a resume may have come meanwhile."""
        made = self.pick(self.live)
        if made is None:
            return
        job = self.state.jobs[made.job_id]
        found = self.call("heartbeat", made.log.heartbeat)
        if not self.agree(found, None if self.holds(made) else STALE):
            self.live.remove(made)
            return
        job.lapsed = False
        if found.result != (job.status != "running"):
            raise Divergence(f"an attempt of a job that is {job.status} is to stop: {found.result}")
        if found.result and self.draw.random() < 0.2:
            jobs_resume = self.call("resume", lambda: jobs.resume(self.db, caller(job.key), made.job_id))
            if self.agree(jobs_resume, None if job.status == "pausing" else "wrong-state"):
                job.status = "running"
        elif not found.result:
            return
        if self.ended(made, self.call("stop", made.log.stopped)):
            if job.status == "cancelling":
                self.state.end(job, "cancelled")
            else:
                job.status = "paused" if job.status == "pausing" else "queued"
                job.waits = False

    # Time.

    def lapse(self) -> None:
        """Every lease is over, as the database's clock says; nobody has noticed yet."""
        how = self.draw.choice(("later", "reboot"))
        self.call("clock forward", lambda: self.world.lapse(how))
        self.lapsed()

    def lapsed(self) -> None:
        for job in self.state.jobs.values():
            job.lapsed, job.waits = job.status in model.ACTIVE, False

    def wrong_clock(self) -> None:
        """The time of day jumps, forward or back: leases do not look at it."""
        TIME.ahead_s = self.draw.choice((-86_400.0, -3_600.0, 0.0, 3_600.0, 86_400.0))
        self.call("time of day", lambda: None)

    def reap(self) -> None:
        found = self.call("reap", lambda: reap_expired(self.db, model.MAX_CRASHES))
        lapsed = [job for job in self.state.jobs.values() if job.lapsed and job.status in model.ACTIVE]
        for job in lapsed:
            self.state.give_back(job, "lapsed")
            job.lapsed = False
        if self.agree(found, None) and found.result != len(lapsed):
            raise Divergence(f"{found.result} jobs were taken back, and the model says {len(lapsed)}")
