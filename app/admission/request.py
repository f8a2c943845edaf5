"""Who asks for which job: the request's data set and its public facts, the job that it made before, pinned contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.admission.choices import completed
from app.admission.facts import DatasetFacts
from app.admission.lookup import facts_for, look_up, side_facts, without_blocks
from app.catalogue import extractors, graph_rows, model_folders, model_kinds
from app.db.database import Database
from app.grants import service as grants
from app.grants.service import Access
from app.hpo.rates import Part
from app.keys.service import Caller
from app.lifecycle.queue.presence import MOST_GPUS
from app.settings import Settings
from core.contracts.dataset_spec import LanguageModelTask
from core.contracts.governance import Use
from core.contracts.graph import GraphFacts, GraphModel
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import rule_of
from core.errors import Conflict, InvalidRequest

WITHDRAWN = ("random_k", "grid_oracle")  # strategies of searches


NO_CLUSTER = (
    "a job on several GPUs runs on a Ray cluster, and this service has none: ask for one process, or for several on "
    "processors (`device`: cpu). An operator starts one with `ray start --head --num-gpus=8` and gives workers and API "
    "its address (SCRIMP_RAY_ADDRESS)"
)


@dataclass(frozen=True)
class Limits:
    """What an installation has for jobs.

    Attributes:
        models_root: the folder of extractors and models; None: there are none.
        memory_bytes: the limit of an attempt; None: none is set.
        max_queued_jobs: of a key without its own limit.
        lease_s: a worker that has not reported for so long is not alive.
        has_cluster: jobs may run on several GPUs.
    """

    models_root: Path | None = None
    memory_bytes: int | None = None
    max_queued_jobs: int = 100
    lease_s: float = 60.0
    has_cluster: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those of a service."""
        return cls(
            settings.models_root,
            settings.attempt_memory_bytes,
            settings.max_queued_jobs,
            settings.lease_s,
            bool(settings.ray_address),
        )


@dataclass(frozen=True)
class Request:
    """A job that a key asks for."""

    caller: Caller
    spec: JobSpec
    limits: Limits

    @classmethod
    def of(cls, caller: Caller, spec: JobSpec, limits: Limits) -> Request:
        """A request that a key makes now.

        Raises:
            InvalidRequest: it asks for what only earlier releases admitted, whose jobs are read and go on; or for
                several GPUs where there is no cluster.
        """
        if spec.clipping is not None and spec.clipping.engine != "bookkeeping":
            raise InvalidRequest.at(
                "/clipping/engine", "the engine is no setting of a job any more: leave `engine` out"
            )
        if spec.hpo is not None and spec.hpo.strategy in WITHDRAWN:
            detail = f"`{spec.hpo.strategy}` is offered no more: use `linear_scaling`, or `random` for one draw"
            raise InvalidRequest.at("/hpo/strategy", detail)
        if spec.runtime.device == "cuda" and spec.runtime.ranks > 1 and not limits.has_cluster:
            raise InvalidRequest.at("/runtime/processes", NO_CLUSTER)
        return cls(caller, spec, limits)

    @property
    def digest(self) -> str:
        """What is stored with an Idempotency-Key: equal specifications have equal digests."""
        return hashlib.sha256(json.dumps(self.spec.request(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Resolved:
    """A request with what it names.

    Attributes:
        spec: the request's, with its extractor's or model's content filled in.
        recipe: what admission chose in the place of members that the request left out.
        uploaded: see `of`.
        facts: of what it reads.
        side: of the public data set with the optimizer's side information.
        access: the key's to the data set.
        most_gpus: that a living worker runs one job on.
    """

    request: Request
    spec: JobSpec
    facts: DatasetFacts
    side: DatasetFacts | None
    access: Access
    recipe: tuple[Part, ...] = ()
    uploaded: GraphFacts | None = None
    most_gpus: int = 0

    @classmethod
    def of(
        cls,
        request: Request,
        facts: DatasetFacts,
        side: DatasetFacts | None,
        access: Access,
        uploaded: GraphFacts | None = None,
        most_gpus: int = 0,
    ) -> Resolved:
        """A request on what it reads: its specification is completed by these facts.

        Args:
            uploaded: the facts of the graph that the key uploaded, if the request names one.

        Raises:
            InvalidRequest: it names an extractor or a model that the service does not have, or another use than its
                grant is for.
        """
        able = most_gpus if request.limits.has_cluster else min(most_gpus, 1)
        spec, device = on_device(_for_use(request.spec, access.use), able)
        if not rule_of(spec.kind).trains:  # it leaves nothing else open, and names no model
            return cls(request, spec, facts, side, access, device, most_gpus=most_gpus)
        spec, parts = completed(spec, facts)
        root, task = request.limits.models_root, facts.spec.task
        prompts = isinstance(task, LanguageModelTask) and task.prompt is not None
        extracted = extractors.resolved(spec.model, root, facts.spec.features.kind)
        chosen = model_kinds.resolved(extracted, task.kind)
        model = model_folders.resolved(chosen, root, facts.outputs, prompts=prompts, uploaded=uploaded)
        pinned = spec.model_copy(update={"model": model})
        return cls(request, pinned, facts.seen_by(model), side, access, (*parts, *device), uploaded, most_gpus)


def on_device(spec: JobSpec, most_gpus: int) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with the kind of device that `auto` stands for, and why; a job that names its own as it is.

    Args:
        most_gpus: that a job may have of one living worker.
    """
    if spec.runtime.device != "auto":
        return spec, ()
    reason = next(_on_processors(spec, most_gpus), None)
    several = f"{spec.runtime.ranks} GPUs for one job" if spec.runtime.ranks > 1 else "a GPU"
    kind = "cuda" if reason is None else "cpu"
    runtime = spec.runtime.model_copy(update={"device": kind})
    return spec.model_copy(update={"runtime": runtime}), (
        Part(name="device", value=kind, because=reason or f"a worker that lives now has {several}"),
    )


def _on_processors(spec: JobSpec, most_gpus: int) -> Iterator[str]:
    """The reasons why a job runs on processors."""
    if not rule_of(spec.kind).trains:
        yield "such a release adds integers on a processor"
    if spec.selection is not None:
        yield "each run of a selection is one process on a processor"
    if spec.runtime.shard != "none":
        yield "shards are of processors"
    if most_gpus == 0:
        yield "no worker that lives now has a GPU"
    if most_gpus < spec.runtime.ranks:
        yield f"no worker that lives now has {spec.runtime.ranks} GPUs for one job"


def resolve(db: Database, request: Request) -> Resolved:
    """Finds what a request names.

    Raises:
        NotFound, Forbidden: the key may not see the data set, or not train on it; or its optimizer's.
        InvalidRequest: a priority, duration, block, extractor or model that the key or service does not have.
        Conflict: `content-deleted`.
    """
    _check_limits(request)
    caller, spec = request.caller, request.spec
    with db.read() as session:
        dataset, access = grants.find(session, caller, spec.dataset, "train")
        facts = facts_for(session, caller, dataset, spec.blocks, samples=not spec.is_gaussian)
        side = side_facts(session, caller, spec.optimizer.side)
        uploaded = graph_rows.facts_of(session, caller.id, spec.model)
        most_gpus = session.execute(MOST_GPUS, {"lease_s": request.limits.lease_s}).scalar_one()
    return Resolved.of(request, facts, side, access, uploaded, most_gpus)


def resolve_once(db: Database, request: Request, idempotency_key: str) -> Resolved | str:
    """As `resolve`; or the id of the job that the same request made before.

    Raises:
        Conflict: the key was used for another request.
    """
    with db.quick_read() as connection:
        recorded = look_up(connection, request.caller, request.spec.dataset, idempotency_key, request.limits.lease_s)
    if recorded is None:
        with db.read() as session:
            grants.refuse(session, request.caller, request.spec.dataset)
    grants.check(recorded.access, "train")
    if recorded.before is not None:
        return same(*recorded.before, request.digest)
    may_move = recorded.facts is not None and recorded.facts.spec.privacy.plan == "mixed"
    if (
        recorded.facts is None
        or request.spec.optimizer.side is not None
        or isinstance(request.spec.model, GraphModel)
        or (may_move and not request.spec.is_gaussian)
    ):
        return resolve(db, request)
    _check_limits(request)
    facts = without_blocks(recorded.facts, request.spec.blocks)
    return Resolved.of(request, facts, None, recorded.access, most_gpus=recorded.most_gpus)


def same(job_id: str, request_sha256: str, digest: str) -> str:
    """Returns the job of an Idempotency-Key if it was the same request; raises Conflict if not."""
    if request_sha256 != digest:
        raise Conflict(
            "idempotency-key-reused", "this Idempotency-Key was used for another job: take a new one", job=job_id
        )
    return job_id


def with_use(use: Use | None, granted: Use) -> Use:
    """What a job is for: what it says, filled in with what its grant is for.

    Raises:
        InvalidRequest: it says another purpose or permit than its grant's.
    """
    use = use or Use()
    for name, value in granted:
        if value is not None and getattr(use, name) not in (None, value):
            raise InvalidRequest.at(f"/use/{name}", f"your grant on this data set is for: {value}")
    return use.model_copy(update={name: value for name, value in granted if value is not None})


def _for_use(spec: JobSpec, granted: Use) -> JobSpec:
    """The specification with the purpose and the permit of the key's grant."""
    use = with_use(spec.use, granted)
    return spec if use == (spec.use or Use()) else spec.model_copy(update={"use": use})


def _check_limits(request: Request) -> None:
    """What the key may have says no to its request."""
    highest = request.caller.max_priority
    if request.spec.priority > highest:
        raise InvalidRequest.at(
            "/priority", f"your key's jobs may have priorities up to {highest}: choose one of these"
        )
    selection, most = request.spec.selection, request.caller.max_job_s
    if selection is not None and most is not None and selection.duration_s >= most:
        raise InvalidRequest.at(
            "/hpo/duration_s",
            f"your key's jobs end after {most} s, before anything of this one leaves: choose a shorter duration",
        )
