"""Rows for tests: a registered data set without its files, job specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.admission import hold, job_rows
from app.admission.job_rules import Checked
from app.admission.price import Priced
from app.admission.request import Limits, Request
from app.db.database import Database
from app.db.models import ApiKey, Dataset, Grant
from app.db.trip import round_trip
from app.keys.service import Caller
from app.ledger.accounts import filter_for, open_account
from app.ledger.second import open_first
from app.ledger.transparency.heads import Heads
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.cadence import Cadence
from app.lifecycle.job_events import Part
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.slots import PartSlots, Slots
from core.contracts.stored_documents import ArtifactFile, Number, PartFiles, Shape
from core.ids import new_id, now
from core.privacy.numerics import NumericsReport
from core.privacy.prices import Price

# Of an attempt that a test plays: what it says is seen at once, not at the next second.
AT_ONCE = Cadence(0.0)
NO_HEADS = Heads(Path("/nonexistent"))  # nothing is recorded outside the database


def dataset_spec(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "name": f"set-{new_id('x')[2:12]}",
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": ["a", "b"]},
        "privacy": {
            "sensitivity": "private",
            "records": 10_000,
            "cap": {"epsilon": 4.0, "delta": 1e-5},
            "filter": "gdp",
        },
        "holdout": {"kind": "split", "fraction": 0.2},
    }
    return spec | changes


def add_key(session: Session, role: str = "admin") -> str:
    key = ApiKey(id=new_id("key"), name=role, role=role, secret_hmac="00", created_at=now())
    session.add(key)
    session.flush()
    return key.id


def add_dataset(
    db: Database,
    *,
    owner: str | None = None,
    order: float | None = None,
    parts: dict[str, Any] | None = None,
    shared: bool = True,
    declaration: int = 1,
    slots: bool = True,
    **changes: Any,
) -> str:
    """A data set's row and, where it is private, its account. Its files are not there.

    Args:
        declaration: the version of the declaration.
        slots: they are stated.
        shared: every analyst and owner key that is there may train on it.
    """
    spec = DatasetSpec.model_validate(dataset_spec(**changes))
    records = spec.privacy.records or 10_000
    held_out = round(records * spec.holdout.fraction) if spec.holdout and spec.holdout.kind == "split" else 0
    outputs = spec.task.outputs if spec.task.kind == "classification" else 1 if spec.task.kind == "regression" else 2
    sizes = {"records_train": records - held_out, "records_holdout": held_out}
    shape = Shape(**sizes, features=2, outputs=outputs, sparse=False)
    if spec.holdout is not None and spec.holdout.kind == "last_item":
        shape = shape.model_copy(update={"records_holdout": records})  # the same users
    if shape.records_holdout and slots:
        shape = shape.model_copy(update={"slots": slots_for(shape.records_train, shape.records_holdout)})
    with db.write() as session:
        dataset_id = new_id("ds")
        session.add(
            Dataset(
                id=dataset_id,
                name=spec.name,
                owner_key=owner or add_key(session, "owner"),
                sensitivity=spec.privacy.sensitivity,
                declaration=declaration,
                spec=spec.model_dump(mode="json"),
                shape=shape,
                parts=PartFiles.model_validate(parts or {}),
                content_sha256="0" * 64,
                content_hmac="0" * 64,
                created_at=now(),
            )
        )
        session.flush()
        if shared:
            share(session, dataset_id)
        if spec.privacy.plan is not None:
            open_first(session, session.get_one(Dataset, dataset_id), spec)
        elif spec.privacy.cap is not None:
            open_account(
                session,
                dataset_id=dataset_id,
                privacy_filter=filter_for(spec.privacy.filter, order),
                cap_epsilon=spec.privacy.cap.epsilon,
                cap_delta=spec.privacy.cap.delta or 1e-5,
                has_holdout=held_out > 0,
                actor="test",
            )
    return dataset_id


def share(session: Session, dataset_id: str) -> None:
    """Has every other analyst's and owner's key that is there train on a data set."""
    owner = select(Dataset.owner_key).where(Dataset.id == dataset_id).scalar_subquery()
    others = select(ApiKey.id).where(ApiKey.role.in_(("analyst", "owner")), ApiKey.id != owner)
    for key_id in session.scalars(others).all():
        session.add(Grant(dataset_id=dataset_id, key_id=key_id, access="train", created_at=now(), created_by="test"))
    session.flush()


def admit(session: Session, caller: Caller, checked: Checked, price: Price, once: str) -> str:
    """A job with its hold, written as a submission writes it."""
    priced = Priced(checked, price)
    job = hold.new_job(Request(caller, checked.spec, Limits()), priced, once)
    session.flush()
    with round_trip(session.connection()) as trip:
        job_rows.write(trip, job, price.charge)
        holds = hold.ask_holds(trip, caller, priced, job.id)
    job_rows.begin_study(session, job)
    if holds is not None:
        holds.check(session)
        with round_trip(session.connection()) as trip:
            holds.place(trip)
    return job.id


def job_spec(dataset: str, **changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "dataset": dataset,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9},
        "privacy": {"target_epsilon": 1.0},
        "sampling": {"kind": "full_batch"},
        "length": {"steps": 50},
        "evaluation": {"on": "holdout", "noise_mu": 0.05, "metrics": ["accuracy"]},
    }
    return spec | changes


def job_answer(quote: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A job as the service shows it, with the members that the client cannot do without."""
    price = {"steps": 1, "sample_rate": 0.1, "expected_batch_size": 10, "charge": {"train": 1, "holdout": 0}}
    return {
        "id": "job_1",
        "name": "",
        "dataset": "ds_1",
        "status": "queued",
        "spec": {},
        "quote": price | (quote or {}),
        "progress": {"step": 0, "steps": 1},
        "metrics": {},
        "created_at": "2026-03-01T09:00:00Z",
    } | changes


def numerics() -> NumericsReport:
    """What an attempt says that it computes in."""
    return NumericsReport(
        device="cpu",
        device_name="A processor",
        passes="float32",
        rows_per_pass=240,
        physical_batch_size=240,
        threads=2,
        torch="2.13.0",
        self_test="passed",
        sensitivity_slack=1.0000004,
    )


def release(log: AttemptLog, said: dict[str, Any]) -> None:
    """Records a released number, with the `parts` of the same release."""
    number = {name: value for name, value in said.items() if name != "parts"}
    log.record_metric(Number.model_validate(number), [Part.model_validate(each) for each in said.get("parts", ())])


def delivered(said: dict[str, Any]) -> ArtifactFile:
    """A file that a job delivers."""
    return ArtifactFile(**said)


def slots_for(train: int, holdout: int, per_unit: int = 1) -> Slots:
    """Twice the declared records and 64 in both parts, as data sets from before slots admitted to train on."""
    units = [2 * each + 64 for each in (train, holdout)]
    places = [PartSlots(units=each, rows=per_unit * each) for each in units]
    return Slots(train=places[0], holdout=places[1])
