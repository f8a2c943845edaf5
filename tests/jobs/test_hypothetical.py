"""A quote for N training records is the quote of a data set that was registered with so many."""

from __future__ import annotations

from typing import Any, cast

import pytest
from sqlalchemy import select

from app.admission import forecast
from app.admission.service import Admission
from app.datasets.sizes import split_sizes, whole_of
from app.db.models import JobEvent
from app.jobs.schemas import Quote
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.pricing.service import PricingService
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import ArtifactFile
from core.errors import InvalidRequest
from tests.datasets.conftest import Api, api, make_api, spec
from tests.factories import dataset_spec, job_spec, numerics
from tests.hpo.conftest import PlainPricing
from tests.lifecycle.conftest import claimed
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import run_attempt

ONCE = {"Idempotency-Key": "once"}
__all__ = ["api", "make_api"]  # fixtures
PRIVACY = spec()["privacy"] | {"filter": "rdp", "order": 8.0}
USERS = {"privacy": PRIVACY | {"unit": "user", "user_column": "u", "max_records_per_user": 3}}
# name: changes of the data set
DATA: dict[str, dict[str, Any]] = {
    "split": {},
    "no hold-out": {"holdout": None},
    "users": USERS,
    "slots declared": {"privacy": PRIVACY | {"slots": {"train": 70, "holdout": 40}}},
}
JOBS: dict[str, dict[str, Any]] = {
    "full batch": {},
    "poisson": {
        "sampling": {"kind": "poisson", "expected_batch_size": 20},
        "privacy": {"noise_multiplier": 5.0},
        "length": {"steps": 20},
    },
    "network": {"model": {"kind": "mlp", "hidden": [16]}},
}


def quote(api: Api, dataset: str, job: dict[str, Any], records: int | None = None) -> Quote:
    caller = Caller(api.key_ids["owner"], "owner", "owner")
    asked = JobSpec.model_validate(job_spec(dataset, **job))
    pricing = cast(PricingService, PlainPricing())
    return forecast.quote(Admission(api.db, pricing, Heads.of(api.settings)), caller, asked, records)


def registered(api: Api, data: str, declared: int) -> str:
    """A data set of 60 records or users, of which more may be declared; with slots of its own only if none are."""
    first = declared  # no two have a record in common
    privacy = (DATA[data].get("privacy") or PRIVACY) | {"records": declared}
    if declared != 60:
        privacy.pop("slots", None)
    if data == "users":
        file = "u,a,b,y\n" + "".join(f"u{i},{i},{n},{n}\n" for i in range(first, first + 60) for n in (0, 1))
    else:
        file = "a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(first, first + 60))
    made = api.upload(spec(f"of-{declared}", **DATA[data] | {"privacy": privacy}), file)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("data", DATA)
def test_what_is_quoted_is_what_a_data_set_of_so_many_records_gets(api: Api, data: str, job: str) -> None:
    """Rows, slack, memory, noise and price: of other slots, a score's too.

    Claim: a quote for n records is that of a data set of n records
    Now: equal, member by member
    """
    small, large = registered(api, data, 60), registered(api, data, 1500)
    records = api.get(f"/v1/datasets/{large}").json()["shape"]["records_train"]
    asked = JOBS[job] | ({"evaluation": None} if data == "no hold-out" else {})
    wanted, found = quote(api, large, asked), quote(api, small, asked, records)
    assert found == wanted.model_copy(update={"largest_epsilon_that_fits": found.largest_epsilon_that_fits})
    assert found.numerics is not None and found.numerics != quote(api, small, asked).numerics


def test_the_declared_number_is_no_other_data_set(api: Api) -> None:
    """Also where the owner declared slots: these stay."""
    dataset = registered(api, "slots declared", 60)
    assert quote(api, dataset, {}, 48) == quote(api, dataset, {})


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.3, 0.5, 0.9])
def test_a_split_leaves_so_many_to_train_on(fraction: float) -> None:
    holdout = {"kind": "split", "fraction": fraction}
    declared = DatasetSpec.model_validate(dataset_spec(holdout=holdout))
    for train in [*range(100, 500), 10**6 + 1, 10**12]:
        assert split_sizes(declared, whole_of(declared, train))[0] == train


def test_more_slots_than_a_float_counts_are_refused(api: Api) -> None:
    dataset = registered(api, "users", 60)
    with pytest.raises(InvalidRequest, match="slots for users"):
        quote(api, dataset, {}, 10**16)


def test_times_of_other_sizes_are_not_quoted(api: Api) -> None:
    dataset = registered(api, "split", 60)
    job = JOBS["network"] | {"length": {"steps": 5}}
    made = api.client.post("/v1/jobs", json=job_spec(dataset, **job), headers=api.headers("owner") | ONCE)
    assert made.status_code == 201, made.text
    log = claimed(api.db, made.json()["id"])
    log.ready("cpu", numerics())
    assert log.start_block(1, 5)
    log.record_digest(5, "a" * 64)
    log.succeed([ArtifactFile(name="model.safetensors", sha256="b" * 64, size_bytes=1, path="x")], 5, [])
    assert quote(api, dataset, job).estimated_duration_s is not None
    assert quote(api, dataset, job, 48).estimated_duration_s is not None
    assert quote(api, dataset, job, 1200).estimated_duration_s is None


def test_a_hundred_million_declared_records_run_on_two_processes(api: Api, fork_server: ForkServer) -> None:
    """Where sums were floats, rounding cost more than was paid: such jobs were admitted, and failed `internal`."""
    records, job = 10**8, JOBS["poisson"] | {"runtime": {"processes": 2}, "evaluation": None}
    small, large = registered(api, "no hold-out", 60), registered(api, "no hold-out", records)
    wanted = quote(api, large, job)
    assert wanted.fits and wanted.numerics is not None and wanted.numerics.totals == "integers"
    assert quote(api, small, job, records).numerics == wanted.numerics
    made = api.client.post("/v1/jobs", json=job_spec(large, **job), headers=api.headers("owner") | ONCE)
    assert made.status_code == 201, made.text
    run_attempt(claimed(api.db, made.json()["id"]), api.settings, fork_server, processes=2)
    ended = api.get(f"/v1/jobs/{made.json()['id']}").json()
    assert ended["status"] == "succeeded", ended["failure"]
    with api.db.read() as session:
        ready = session.scalars(select(JobEvent.data).where(JobEvent.type == "ready")).one()
    assert len(ready["processes"]) == 2
