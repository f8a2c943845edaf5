"""Who asks for which job: the request's data set and its public facts, the job that it made before, pinned contents.

`look_up` is one read with all that most admissions need: the data set, the key's grant, the account, an earlier job of
this Idempotency-Key. It answers what app.grants and `facts_for` answer one by one; a contract test compares them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, exists, func, or_, select
from sqlalchemy.orm import Session

from app.admission.facts import BlockFacts, DatasetFacts
from app.admission.recipe import with_class_weights, with_recipe
from app.catalogue import extractors, model_folders, models
from app.contracts.blocks import ALL, FIRST
from app.contracts.dataset_spec import DatasetSpec, LanguageModelTask
from app.contracts.job_spec import JobSpec
from app.datasets.repository import check_there, has_blocks
from app.db.engine import Database
from app.db.models import Account, Dataset, Job, table_of
from app.errors import Conflict, InvalidRequest
from app.grants import service as grants
from app.grants.service import DATA, GIVEN, LOOKED_AT, Access, access_in, chosen, given_to
from app.hpo.rates import Part
from app.keys.service import Caller
from app.ledger import budgets
from app.ledger.accounts import remaining_of
from app.ledger.blocks import label_of
from app.privacy.prices import Units
from app.privacy.slots import slots_of
from app.settings import Settings

ACCOUNTS, BEFORE, APPENDED = table_of(Account), table_of(Job).alias("before"), DATA.alias("appended")
ACCOUNT: Select[Any] = select(ACCOUNTS.c.filter, ACCOUNTS.c.filter_order, ACCOUNTS.c.cap_delta).where(
    ACCOUNTS.c.dataset_id == bindparam("dataset")
)
LOOK_UP: Select[Any] = (
    select(
        *(DATA.c.id, DATA.c.name, DATA.c.spec, DATA.c.shape, DATA.c.declaration),
        or_(DATA.c.parent_id.is_not(None), exists().where(APPENDED.c.parent_id == DATA.c.id)).label("in_blocks"),
        *LOOKED_AT,
        *(ACCOUNTS.c.filter, ACCOUNTS.c.filter_order, ACCOUNTS.c.cap_delta),
        *(BEFORE.c.id.label("job"), BEFORE.c.request_sha256),
    )
    .select_from(
        DATA.outerjoin(GIVEN, given_to(bindparam("key")))
        .outerjoin(ACCOUNTS, ACCOUNTS.c.dataset_id == DATA.c.id)
        .outerjoin(BEFORE, and_(BEFORE.c.key_id == bindparam("key"), BEFORE.c.idempotency_key == bindparam("once")))
    )
    .where(or_(DATA.c.id == bindparam("dataset"), DATA.c.name == bindparam("dataset")))
)


@dataclass(frozen=True)
class Limits:
    """What an installation has for jobs.

    Attributes:
        models_root: the folder of extractors and models; None: there are none.
        memory_bytes: the limit of an attempt; None: none is set.
        max_queued_jobs: of a key without its own limit.
        lease_s: a worker that has not reported for so long is not alive.
    """

    models_root: Path | None = None
    memory_bytes: int | None = None
    max_queued_jobs: int = 100
    lease_s: float = 60.0

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those of a service."""
        return cls(settings.models_root, settings.attempt_memory_bytes, settings.max_queued_jobs, settings.lease_s)


@dataclass(frozen=True)
class Request:
    """A job that a key asks for."""

    caller: Caller
    spec: JobSpec
    limits: Limits

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
        facts: of what it reads.
        side: of the public data set with the optimizer's side information.
        access: the key's to the data set.
    """

    request: Request
    spec: JobSpec
    facts: DatasetFacts
    side: DatasetFacts | None
    access: Access
    recipe: tuple[Part, ...] = ()

    @classmethod
    def of(cls, request: Request, facts: DatasetFacts, side: DatasetFacts | None, access: Access) -> Resolved:
        """A request on what it reads: its specification is completed by these facts.

        Raises:
            InvalidRequest: it names an extractor or a model that the service does not have.
        """
        weighted, weights = with_class_weights(request.spec, facts)
        spec, parts = with_recipe(weighted, facts)
        pinned = _pinned(request, spec, facts)
        return cls(request, pinned, facts.seen_by(pinned.model), side, access, (*parts, *weights))


def resolve(db: Database, request: Request) -> Resolved:
    """Finds what a request names.

    Raises:
        NotFound, Forbidden: the key may not see the data set, or not train on it; or its optimizer's.
        InvalidRequest: a priority, a block, an extractor or a model that the key or the service does not have.
        Conflict: `content-deleted`.
    """
    _check_priority(request)
    caller, spec = request.caller, request.spec
    with db.read() as session:
        dataset, access = grants.find(session, caller, spec.dataset, "train")
        facts, side = facts_for(session, caller, dataset, spec), side_facts(session, caller, spec)
    return Resolved.of(request, facts, side, access)


def resolve_once(db: Database, request: Request, idempotency_key: str) -> Resolved | str:
    """As `resolve`; or the id of the job that the same request made before.

    Raises:
        Conflict: the key was used for another request.
    """
    with db.quick_read() as connection:
        found = look_up(connection, request.caller, request.spec.dataset, idempotency_key)
    if found is None:
        with db.read() as session:
            grants.refuse(session, request.caller, request.spec.dataset)
    grants.check(found.access, "train")
    if found.before is not None:
        return same(*found.before, request.digest)
    _check_priority(request)
    if found.facts is not None and request.spec.optimizer.side is None:
        facts = without_blocks(found.facts, request.spec)
        return Resolved.of(request, facts, None, found.access)
    return resolve(db, request)


def same(job_id: str, request_sha256: str, digest: str) -> str:
    """Returns the job of an Idempotency-Key if it was the same request; raises Conflict if not."""
    if request_sha256 != digest:
        raise Conflict(
            "idempotency-key-reused", "this Idempotency-Key was used for another job: take a new one", job=job_id
        )
    return job_id


def _check_priority(request: Request) -> None:
    most = request.caller.max_priority
    if request.spec.priority > most:
        raise InvalidRequest.at("/priority", f"your key's jobs may have priorities up to {most}: choose one of these")


@dataclass(frozen=True)
class LookedUp:
    """What an admission begins with.

    Attributes:
        access: the key's, which may be less than it needs.
        facts: the data set's; None if it grew by blocks, or is one: what a job reads of it takes more statements.
        before: an earlier job of this Idempotency-Key, with its request's digest as `request_sha256`.
    """

    access: Access
    facts: DatasetFacts | None
    before: tuple[str, str] | None


def look_up(connection: Connection, caller: Caller, dataset: str, idempotency_key: str) -> LookedUp | None:
    """Looks a data set up by its id or name; None if this key sees none."""
    asked = {"key": caller.id, "dataset": dataset, "once": idempotency_key}
    seen = [
        (row, access) for row in connection.execute(LOOK_UP, asked) if (access := access_in(caller, row)) is not None
    ]
    if not seen:
        return None
    row, access = chosen(seen, dataset)
    facts = None if row.in_blocks else facts_of(row, row if row.filter is not None else None)
    return LookedUp(access, facts, None if row.job is None else (row.job, row.request_sha256))


def facts_for(session: Session, caller: Caller, dataset: Dataset, spec: JobSpec) -> DatasetFacts:
    """Reads the public facts of what a job reads: its data set, or the blocks that it names; for "all", all open ones.

    Raises:
        InvalidRequest: it names a block that is not there or not open.
        Conflict: `content-deleted`: nothing is left to train on.
    """
    facts, named = dataset_facts(session, dataset), None if spec.blocks == ALL else spec.blocks
    blocks = blocks_of(session, dataset, caller.id, named)
    if blocks is None:  # it never grew
        check_there(dataset)
        return without_blocks(facts, spec)
    if not blocks:
        _check_any(session, caller, dataset)
    if named is None:
        return facts.on(blocks)
    there = {each.label: each for each in blocks}
    for place, label in enumerate(named):
        if label not in there or label in named[:place]:
            every = blocks_of(session, dataset, caller.id) or []
            still = ", ".join(each.label for each in every)
            why = "is named twice" if label in there else f"is not open; open are {still}"
            raise InvalidRequest.at(f"/blocks/{place}", f"block {label!r} {why}")
    return facts.on(there[label] for label in named)


def _check_any(session: Session, caller: Caller, dataset: Dataset) -> None:
    """Raises Conflict if no block of a data set is open."""
    if not blocks_of(session, dataset, caller.id):
        raise Conflict("content-deleted", f"every block of {dataset.name!r} was retired or deleted")


def without_blocks(facts: DatasetFacts, spec: JobSpec) -> DatasetFacts:
    """Returns the facts of a data set that never grew, if the spec names no block of it.

    Raises:
        InvalidRequest: it does.
    """
    if spec.blocks not in (ALL, [FIRST]) or (spec.blocks != ALL and not facts.is_private):
        raise InvalidRequest.at("/blocks", "this data set has no blocks: leave `blocks` out")
    return facts


def side_facts(session: Session, caller: Caller, spec: JobSpec) -> DatasetFacts | None:
    """Reads the facts of the public data set with the optimizer's side information; the key must be allowed to train
    on it.

    Raises:
        NotFound, Forbidden: as for the job's own data set.
    """
    if spec.optimizer.side is None:
        return None
    dataset, _ = grants.find(session, caller, spec.optimizer.side, "train")
    return dataset_facts(session, dataset)


def _pinned(request: Request, spec: JobSpec, facts: DatasetFacts) -> JobSpec:
    """The specification with its extractor's or model's content and its open defaults filled in."""
    root, task = request.limits.models_root, facts.spec.task
    prompts = isinstance(task, LanguageModelTask) and task.prompt is not None
    extracted = extractors.resolved(spec.model, root, facts.spec.features.kind)
    model = model_folders.resolved(models.resolved(extracted, task.kind), root, facts.outputs, prompts=prompts)
    return spec.model_copy(update={"model": model})


def dataset_facts(session: Session, dataset: Dataset) -> DatasetFacts:
    """Reads the public facts of a data set."""
    return facts_of(dataset, session.execute(ACCOUNT, {"dataset": dataset.id}).one_or_none())


def facts_of(dataset: Dataset | Row[Any], account: Row[Any] | None) -> DatasetFacts:
    """The public facts in a data set's columns and its account's filter, order and δ."""
    return DatasetFacts(
        id=dataset.id,
        name=dataset.name,
        spec=DatasetSpec.model_validate(dataset.spec),
        records_train=dataset.shape.records_train,
        records_holdout=dataset.shape.records_holdout,
        features=dataset.shape.features,
        outputs=dataset.shape.outputs,
        filter=account.filter if account else None,
        order=account.filter_order if account else None,
        cap_delta=account.cap_delta if account else None,
        declaration=dataset.declaration,
        stated_slots=dataset.shape.slots,
    )


def remaining(session: Session, dataset_ids: Iterable[str], key_id: str) -> Units | None:
    """Returns the units that a key may still hold on both accounts of each of several data sets, within the cap and its
    own budget; None on public data."""
    found = []
    for each in dataset_ids:
        account = session.get(Account, each)
        if account is None:
            return None
        found.append(budgets.with_own(remaining_of(account), budgets.of_key(session, each, key_id)))
    return _least(found)


def left_within(session: Session, dataset_ids: Iterable[str], key_id: str) -> Units | None:
    """Returns the units left of a key's own budget within the cap, on each of several data sets; None if the cap alone
    bounds it."""
    own = (budgets.of_key(session, each, key_id) for each in dataset_ids)
    return _least([budgets.remaining_of(each) for each in own if each is not None])


def _least(found: list[dict[str, int]]) -> Units | None:
    return Units(**{part: min(each[part] for each in found) for part in budgets.PARTS}) if found else None


def blocks_of(
    session: Session, dataset: Dataset, key_id: str, labels: Collection[str] | None = None
) -> list[BlockFacts] | None:
    """Reads the blocks of a data set that are open and have their content, in the order of their arrival; None if
    it never grew. The statements are as many for any number of blocks, and the rows are those of the blocks read.

    Args:
        labels: of those to read; None: all.
    """
    if not has_blocks(session, dataset.id):
        return None
    rows = (
        select(Dataset, Account)
        .join(Account, Account.dataset_id == Dataset.id)
        .where(or_(Dataset.id == dataset.id, Dataset.parent_id == dataset.id))
        .where(Account.joined_into.is_(None), Dataset.content_deleted_at.is_(None))
        .order_by(Dataset.parent_id.is_not(None), Dataset.created_at, Dataset.id)
    )
    if labels is not None:
        rows = rows.where(func.coalesce(Dataset.label, FIRST).in_(labels))
    found = [(block, account) for block, account in session.execute(rows)]
    own = budgets.of_key_on(session, [block.id for block, _ in found], key_id)
    per_unit = DatasetSpec.model_validate(dataset.spec).privacy.max_records_per_user or 1
    return [
        BlockFacts(
            id=block.id,
            label=label_of(block),
            records_train=block.shape.records_train,
            records_holdout=block.shape.records_holdout,
            slots=slots_of(block.shape.slots, block.shape.records_train, per_unit),
            left=Units.model_validate(budgets.with_own(remaining_of(account), own.get(block.id))),
        )
        for block, account in found
    ]
