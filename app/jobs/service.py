"""Jobs: quoted, admitted with their hold in one transaction, cancelled.

`submit` is the admission: plan (planning.py) → price (app.privacy.pricing) → hold (app.ledger.accounts). The job, its
hold, its idempotency key and the message that will ring a worker are written in one transaction, or none of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.catalogue import extractors, model_folders
from app.catalogue.models import layers
from app.contracts.job_spec import JobSpec
from app.contracts.optimizers import PublicSideSettings
from app.datasets.repository import check_content, check_there
from app.db.engine import Database
from app.db.models import Job, table_of
from app.errors import BudgetError, Conflict, Forbidden, PolicyError, Unauthenticated
from app.grants import service as grants
from app.grants.service import Access
from app.ids import new_id, now
from app.jobs import repository, studies
from app.jobs.planning import DatasetFacts, Plan, plan
from app.jobs.pricing import PricingService
from app.jobs.studies import StudyPlan, plan_study
from app.keys import service as keys
from app.keys.service import Caller, KeyLike
from app.ledger import accounts, behind
from app.ledger.heads import Heads
from app.lifecycle.settle import settle
from app.lifecycle.states import append_event, get_job, ring, write_event
from app.lifecycle.studies import begin
from app.lifecycle.studies import cancel as cancel_study
from app.privacy.events import event_tree
from app.privacy.mechanism import MechanismConfig

INSERT = insert(table_of(Job))
NO_CHARGE = {"train": 0, "holdout": 0, "unit": None}
UNPRICED: dict[str, Any] = {"mechanism": None, "epsilon": None, "comparison": None, "charge": NO_CHARGE, "lines": []}


def quote(
    db: Database, pricing: PricingService, caller: Caller, spec: JobSpec, *, models_root: Path | None = None
) -> dict[str, Any]:
    """What a job would cost, and whether it fits now. Writes nothing but the price into the cache.

    Raises:
        InvalidRequest, NotFound, Forbidden: as at submission.
    """
    with db.read() as session:
        dataset, access = grants.find(session, caller, spec.dataset, "train")
        check_there(dataset)
        facts, side = repository.dataset_facts(session, dataset), side_facts(session, caller, spec)
    planned, priced = _price(pricing, pinned(spec, models_root, facts), facts, side)
    with db.read() as session:
        left = repository.remaining(session, planned.facts.id)
        pace = None if planned.study else repository.seconds_per_step(session, planned.facts.id, planned.spec)
    body = _quote_body(planned, priced)
    body["estimated_duration_s"] = round(pace * planned.steps, 1) if pace is not None else None
    if left is None or planned.pricing is None:
        return body | {"fits": True, "remaining_after": None, "largest_epsilon_that_fits": None}
    after = {account: left[account] - priced["charge"][account] for account in left}
    allowed = _is_allowed(access, priced)
    if not allowed:
        body["warnings"].append(_policy(access))
    fits = min(after.values()) >= 0 and allowed
    body["fits"] = fits
    body["remaining_after"] = after | {"unit": priced["charge"]["unit"]} if fits else None
    body["largest_epsilon_that_fits"] = _largest_that_fits(pricing, planned, left, access)
    return body


def submit(
    db: Database,
    pricing: PricingService,
    caller: Caller,
    spec: JobSpec,
    idempotency_key: str,
    max_queued_jobs: int,
    heads: Heads,
    *,
    models_root: Path | None = None,
) -> tuple[str, Job | None]:
    """Admits a job if its whole cost fits.

    Args:
        idempotency_key: scoped to the caller's key; the same one with the same spec gives the same job again.
        max_queued_jobs: of a key that has no limit of its own.
        heads: the data set's ledger must be what was recorded of it outside the database.

    Returns:
        The job's id, and the job where it was made now.

    Raises:
        BudgetError: it does not fit. Nothing is consumed.
        PolicyError: it costs more than the owner allows this key for one job. Nothing is consumed.
        Conflict: the idempotency key was used for another spec; `too-many-jobs`: the key has enough in the queue;
            `ledger-behind`: the database has forgotten what was spent of this data set; `content-deleted`.
        NotFound, Forbidden: the key may not see the data set, or not train on it.
    """
    digest = hashlib.sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
    with db.read() as session:
        dataset, _access = grants.find(session, caller, spec.dataset, "train")
        before = _replayed(session, caller, idempotency_key, digest)
        if before is not None:
            return before, None
        facts, side = repository.dataset_facts(session, dataset), side_facts(session, caller, spec)
    planned, priced = _price(pricing, pinned(spec, models_root, facts), facts, side)
    job = _job(caller, planned, priced, idempotency_key, digest)
    recorded = behind.read_recorded(heads, planned.facts.id)
    try:
        with db.write() as session:
            _write(session, job, priced["charge"])
            # From here until the commit other submissions of this key wait.
            key, access = _take_turn(session, caller, planned)
            _check_policy(access, planned, priced)
            _check_queue(session, key, max_queued_jobs)
            behind.require_current(session, recorded, planned.facts.id)
            _hold(session, caller, planned, priced, job["id"])
            return job["id"], Job(**job)
    except IntegrityError:
        # Two requests with one key at once: the database let one in.
        with db.read() as session:
            before = _replayed(session, caller, idempotency_key, digest)
        if before is None:
            raise
        return before, None
    except BudgetError as refusal:
        _explain(refusal, pricing, planned, access)
        raise


def cancel(db: Database, caller: Caller, job_id: str) -> None:
    """Cancels a job: at once where it is queued, within a second where it runs.

    Raises:
        Conflict: `wrong-state`, there is nothing to stop.
        NotFound: no such job, or on a data set that this key may not see.
        Forbidden: only who submitted it and may still train, the data set's owner and admins may.
    """
    with db.write() as session:
        if not may_cancel(session, caller, grants.require_job(session, caller, job_id)):
            raise Forbidden("only the key that submitted this job, the data set's owner or an admin may cancel it")
        # Locked: a worker may be claiming it at this moment, and its first step must not be voided.
        job = get_job(session, job_id, lock=True)
        if job.parent_id is not None:
            raise Conflict("wrong-state", "a run ends with its study: cancel that", study=job.parent_id)
        if job.status == "cancelling":
            return
        if job.status not in ("queued", "running"):
            raise Conflict("wrong-state", f"there is nothing to cancel: the job is {job.status}", job_status=job.status)
        job.cancel_requested_at = now()
        append_event(session, job.id, "cancel_requested", {"by": caller.id})
        audit.record(session, "job.cancelled", job.id)
        if job.study is not None:
            cancel_study(session, job)
        elif job.status == "queued":
            settle(session, job, "cancelled")
        else:
            job.status = "cancelling"


def may_cancel(session: Session, caller: Caller, job: Job) -> bool:
    access = grants.access_to_job(session, caller, job)
    return access is not None and access.covers("train" if caller.id == job.key_id else "own")


def _take_turn(session: Session, caller: Caller, planned: Plan) -> tuple[KeyLike, Access]:
    """Has other admissions of this key wait, and looks again at what it may: pricing took a while."""
    key = session.execute(keys.LOCKED, {"key": caller.id}).one_or_none()
    if key is None or not keys.is_alive(key):
        raise Unauthenticated(keys.NOT_HELD)
    read = {planned.facts.id}
    if isinstance(planned.spec.optimizer, PublicSideSettings):
        grants.check(grants.access_by_id(session, caller, planned.spec.optimizer.public_dataset), "train")
        read.add(planned.spec.optimizer.public_dataset)
    check_content(session, read)
    return key, grants.check(grants.access_by_id(session, caller, planned.facts.id), "train")


def _check_queue(session: Session, key: KeyLike, max_queued_jobs: int) -> None:
    """Counted under the lock on the key's row, so that two submissions cannot both take the last place; the new job
    is among them."""
    limit = key.max_queued_jobs or max_queued_jobs
    if repository.count_queued(session, key.id, limit + 1) > limit:
        detail = f"this key has {limit} jobs in the queue, and may have {limit}: wait until some have started"
        raise Conflict("too-many-jobs", detail, limit=limit, queued=limit)


def _is_allowed(access: Access, priced: dict[str, Any]) -> bool:
    """Whether the owner's policy for this key covers ε as priced, at the job's δ."""
    return access.max_epsilon is None or float(priced["epsilon"]["value"]) <= access.max_epsilon


def _policy(access: Access) -> str:
    return f"the data set's owner allows this key at most ε = {access.max_epsilon:g} for one job"


def _check_policy(access: Access, planned: Plan, priced: dict[str, Any]) -> None:
    if planned.facts.is_private and not _is_allowed(access, priced):
        requested = priced["epsilon"]
        detail = f"{_policy(access)}; this one costs ε = {requested['value']:g}"
        raise PolicyError(detail, requested=requested, allowed=requested | {"value": access.max_epsilon})


def side_facts(session: Session, caller: Caller, spec: JobSpec) -> DatasetFacts | None:
    """Of the public data set that its optimizer has side information from: this key has to be allowed to train on it.

    Raises:
        NotFound, Forbidden: as for the job's own data set.
    """
    if not isinstance(spec.optimizer, PublicSideSettings):
        return None
    dataset, _ = grants.find(session, caller, spec.optimizer.public_dataset, "train")
    return repository.dataset_facts(session, dataset)


def pinned(spec: JobSpec, models_root: Path | None, facts: DatasetFacts) -> JobSpec:
    """With its extractor's or its model's content filled in."""
    return model_folders.resolved(extractors.resolved(spec, models_root), models_root, facts.outputs)


def _price(
    pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None
) -> tuple[Plan, dict[str, Any]]:
    """The plan, of a search that of its final run at its longest, and what it costs: nothing on public data."""
    if spec.hpo is not None:
        planned, priced = _price_study(pricing, plan_study(spec, facts, side))
    else:
        planned = plan(spec, facts, side)
        priced = UNPRICED if planned.pricing is None else pricing.price(planned.pricing)
    return planned, priced if facts.is_private else _free(priced)


def _price_study(pricing: PricingService, study: StudyPlan) -> tuple[Plan, dict[str, Any]]:
    planned = replace(study.longest, spec=study.spec, study=study)
    if study.pricing is None:
        return planned, UNPRICED | {"events": None, "runs": studies.unpriced(study)}
    priced = pricing.price_study(study.pricing) | {"mechanism": None}
    return replace(planned, warnings=(*planned.warnings, *studies.check_levels(study, priced))), priced


def _free(priced: dict[str, Any]) -> dict[str, Any]:
    """Public data have no account."""
    free = priced | {"charge": NO_CHARGE, "lines": [line | {"charge": 0} for line in priced["lines"]]}
    if "runs" in priced:
        free["runs"] = [run | {"charge": {"train": 0, "holdout": 0}} for run in priced["runs"]]
    return free


def _quote_body(planned: Plan, priced: dict[str, Any]) -> dict[str, Any]:
    mechanism, study = priced["mechanism"], planned.study
    final = priced["runs"][-1]["noise_multiplier"] if study else None
    return {
        "noise_multiplier": mechanism["training"]["noise_multiplier"] if mechanism else final,
        "sample_rate": planned.sample_rate,
        "steps": planned.steps,
        "expected_batch_size": planned.expected_batch_size,
        "mechanism": priced["events"] if study else events_of(mechanism),
        "epsilon": priced["epsilon"],
        "comparison": priced["comparison"],
        "charge": priced["charge"],
        "lines": priced["lines"],
        "model": _model_body(planned),
        "numerics": planned.numerics.model_dump(mode="json"),
        "hpo": studies.quoted(study, priced) if study else None,
        "warnings": list(planned.warnings),
    }


def _model_body(planned: Plan) -> dict[str, Any]:
    found = layers(planned.spec.model, planned.facts.features, planned.facts.outputs, planned.facts.rows)
    parameters = sum(layer.parameters for layer in found)
    return {"parameters": parameters, "layers": [layer.model_dump(mode="json") for layer in found]}


def events_of(mechanism: dict[str, Any] | None) -> dict[str, Any] | None:
    """The event tree of each account: what an accountant composes."""
    if mechanism is None:
        return None
    config = MechanismConfig.model_validate(mechanism)
    holdout = event_tree(config, "holdout")
    return {"train": event_tree(config, "train"), "holdout": holdout if holdout["events"] else None}


def _replayed(session: Session, caller: Caller, idempotency_key: str, digest: str) -> str | None:
    job = repository.by_idempotency_key(session, caller.id, idempotency_key)
    if job is None:
        return None
    if job.request_sha256 != digest:
        raise Conflict(
            "idempotency-key-reused", "this Idempotency-Key was used for another job: take a new one", job=job.id
        )
    return str(job.id)


def _job(caller: Caller, planned: Plan, priced: dict[str, Any], idempotency_key: str, digest: str) -> dict[str, Any]:
    """The row of a new job. Its first event is counted already."""
    return {
        "id": new_id("job"),
        "dataset_id": planned.facts.id,
        "key_id": caller.id,
        "idempotency_key": idempotency_key,
        "request_sha256": digest,
        "name": planned.spec.name,
        "status": "queued",
        "spec": planned.spec.model_dump(mode="json"),
        "mechanism": priced["mechanism"],
        "quote": _quote_body(planned, priced),
        "segments": [{"from_step": 0, "salt": secrets.token_hex(32), "key_id": None}],
        "steps": len(planned.study.slots) if planned.study else planned.steps,
        "steps_started": 0,
        "step": 0,
        "warnings": list(planned.warnings),
        "events": 1,
        "created_at": now(),
        "study": studies.stored(planned.study, priced) if planned.study else None,
    }


def _write(session: Session, job: dict[str, Any], charge: dict[str, Any]) -> None:
    """The job and what goes with it, a study's first runs too, but for its hold."""
    session.execute(INSERT, job)
    write_event(session, job["id"], 1, "queued", {"charge": charge})
    if job["study"] is not None:
        begin(session, get_job(session, job["id"]))
    else:
        ring(session, job["id"])
    audit.record(session, "job.submitted", job["id"], dataset=job["dataset_id"])


def _hold(session: Session, caller: Caller, planned: Plan, priced: dict[str, Any], job_id: str) -> None:
    """Last: all holds of a data set wait for its account's row, from here until the commit is on the disk."""
    if planned.facts.is_private:
        accounts.hold(
            session,
            dataset_id=planned.facts.id,
            job_id=job_id,
            train=priced["charge"]["train"],
            holdout=priced["charge"]["holdout"],
            actor=caller.id,
            memo={"epsilon": priced["epsilon"], **({"study": len(planned.study.slots)} if planned.study else {})},
        )


def _largest_that_fits(pricing: PricingService, planned: Plan, left: dict[str, int], access: Access) -> float | None:
    """The largest target ε that both the budget and the owner's policy for the key cover."""
    if planned.pricing is None:
        return None
    largest: float | None
    if planned.study is not None and planned.study.pricing is not None:
        largest = pricing.largest_study_that_fits(planned.study.pricing, left)["epsilon"]
    else:
        largest = pricing.largest_that_fits(planned.pricing, left)["epsilon"]
    if largest is None or access.max_epsilon is None:
        return largest
    return min(largest, access.max_epsilon)


def _explain(refusal: BudgetError, pricing: PricingService, planned: Plan, access: Access) -> None:
    """Adds to a refusal what would still fit."""
    largest = _largest_that_fits(pricing, planned, refusal.members["remaining"], access)
    refusal.members["largest_epsilon_that_fits"] = largest
    # Rounded down: what is printed must fit.
    more = (
        f"the largest target_epsilon that fits is {math.floor(largest * 1e4) / 1e4}"
        if largest
        else "nothing like it fits"
    )
    refusal.message = f"{refusal.message}; {more}"
    refusal.args = (refusal.message,)
