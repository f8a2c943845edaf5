"""Certificates: what they say, for which jobs there is one, and that nothing in them can be changed."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from app.db.database import Database
from app.db.models import Artifact, Certificate, Job, Metric
from app.ledger import accounts, certificates, meaning
from app.ledger.meaning import Meaning
from app.lifecycle.job_events import Ready
from app.lifecycle.states import append_event
from core.errors import Conflict, NotFound
from core.privacy.events import AccountEvents, read
from core.privacy.gdp import epsilon_from_mu, mu_of_event
from core.privacy.pld import epsilon as pld_epsilon
from tests import factories
from tests.ledger import support
from tests.ledger.support import DELTA, held_job, mechanism, open_ledger, post, signed_document, void
from tests.work import transactions

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NUMERICS = factories.numerics().model_dump(mode="json")
READY = Ready(device="cpu", processes=(), fallbacks=(), numerics=factories.numerics())


def issue(db: Database, job_id: str) -> bool:
    return certificates.issue(db, job_id, KEY, "0.1.0")


def document(db: Database, job_id: str) -> dict[str, Any]:
    with db.read() as session:
        return session.get_one(Certificate, job_id).body


def succeeded(db: Database, dataset_id: str, **plan: Any) -> str:
    """A job that ran to its end: all of its hold posted, a model and a score released."""
    job_id, train, holdout = held_job(db, dataset_id, mechanism(**plan))
    post(db, dataset_id, job_id, train, holdout)
    with db.write() as session:
        job = session.get_one(Job, job_id)
        job.status, job.steps_started, job.step = "succeeded", job.steps, job.steps
        append_event(session, job_id, "ready", READY)
        session.add(Artifact(job_id=job_id, name="model.safetensors", sha256="ab" * 32, size_bytes=10, path="x"))
        score = {"name": "accuracy", "step": job.steps, "value": 0.8231, "std": 0.004, "on": "holdout"}
        session.add(Metric(job_id=job_id, released_by="noisy_count", **score))
    return job_id


def test_a_certificate_asks_nothing_twice_in_one_transaction(db: Database) -> None:
    """Its content is read to be signed, and once more to be stored. The job's holds and its model were read in each
    twice, and the holds of a job that has settled cannot change."""
    job_id = succeeded(db, open_ledger(db))
    with transactions(db) as made:
        assert issue(db, job_id)
    assert [each for transaction in made for each, times in transaction.items() if times > 1] == []
    assert sum("hold:" in values for transaction in made for _statement, values in transaction) == 1
    assert len(made) == 3


def test_a_certificate_says_all_that_is_needed(db: Database) -> None:
    dataset_id = open_ledger(db)
    job_id = succeeded(db, dataset_id)
    assert issue(db, job_id)
    body = document(db, job_id)["certificate"]
    with db.read() as session:
        settled = accounts.find(session, dataset_id, f"settle:{job_id}")
        job = session.get_one(Job, job_id)
    assert settled is not None
    expected = {
        "version": 3,
        "filter": {"kind": "gdp", "order": None},
        "cap": {"epsilon": 4.0, "delta": 1e-5},
        "job": job_id,
        "status": "succeeded",
        "dataset": {"id": dataset_id, "name": dataset_id, "content_hmac": f"hmac-of-{dataset_id}"},
        "side_information": None,
        "unit": "example",
        "relation": "add_or_remove_one",
        "mechanism": job.mechanism,
        "events": mechanism().events.model_dump(mode="json"),
        "sampling": {"kind": "full_batch", "sample_rate": 1.0},
        "noise_multiplier": 26.38,
        "gradient_noise_multiplier": 26.38,
        "max_grad_norm": 1.0,
        "records_per_unit": 1,
        "expected_batch_size": 20_000,
        "numerics": NUMERICS,
        "steps": {"planned": 50, "started": 50, "effective": 50},
        "epsilon": job.quote["epsilon"],
        "resolved": None,
        "charge": {"train": settled.train, "holdout": settled.holdout, "unit": "mu^2 * 1e-12"},
        "ledger": {"entry_seq": settled.seq, "balance_after": settled.memo["balance"], "head": settled.hash},
        "released": {
            "weights": True,
            "metrics": [
                {"name": "accuracy", "step": 50, "on": "holdout", "std": 0.004, "released_by": "noisy_count"},
            ],
        },
        "warnings": [],
        "code_version": "0.1.0",
        "model_sha256": "ab" * 32,
    }
    assert {name: body[name] for name in expected} == expected
    assert set(body) - set(expected) == {"certificate_id", "accountant", "issued_at"} | set(Meaning.model_fields)
    assert body["accountant"]["name"] == "gdp"
    assert body["accountant"]["grid"] is None
    assert body["ledger"]["balance_after"]["train"]["spent"] == settled.train


def test_the_words_name_ledgers_blocks_and_the_bound_over_blocks() -> None:
    assert meaning.composition("rdp", "ds_1", ["first", "2026-10"])[0].startswith(
        "for each of the blocks first, 2026-10: all jobs on its ledger together stay within its cap (a Rényi filter)"
    )
    *_, people = meaning.assumptions("user", 3, None)
    assert people.endswith("at most 3 of them are used, in all blocks of the data set together")


def test_what_a_certificate_means_is_signed(db: Database) -> None:
    """In words and numbers, so that no other tool has to say it."""
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    signed = document(db, job_id)
    body = signed["certificate"]
    assert body["threat_model"]["trust"] == "central"
    assert body["threat_model"]["sees"][0] == "the service and its operator: the records"
    assert any(line.startswith("how long the job ran") for line in body["threat_model"]["not_covered"])
    assert body["assumptions"][0].startswith("the service ran what is printed here")
    ledger = f"all jobs on the ledger {body['dataset']['id']} together stay within its cap (a Gaussian-DP filter)"
    assert ledger in body["composition"][0], "blocks that come later have ledgers of their own"
    profile = body["profile"]
    assert profile["mu"] == pytest.approx(mu_of_event(AccountEvents.read(body["events"]).train), abs=0)
    assert [each["delta"] for each in profile["epsilons"]] == [1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
    assert profile["epsilons"][0]["epsilon"] == pytest.approx(1.0, abs=1e-3)
    (where,) = body["environment"]
    assert where["device"] == NUMERICS["device_name"] and where["torch"] == NUMERICS["torch"]
    for member in Meaning.model_fields:
        changed = json.loads(json.dumps(signed))
        changed["certificate"][member] = body["epsilon"]
        assert not certificates.verify(changed)


def test_public_side_information_is_named(db: Database) -> None:
    dataset_id = open_ledger(db)
    job_id = succeeded(db, dataset_id)
    with db.write() as session:
        side_id = support.add_dataset(session, sensitivity="public")
        job = session.get_one(Job, job_id)
        job.spec = job.spec | {"optimizer": {"kind": "ada_dps", "public_dataset": side_id}}
    assert issue(db, job_id)
    named = document(db, job_id)["certificate"]["side_information"]
    assert named == {"id": side_id, "name": side_id, "content_hmac": f"hmac-of-{side_id}"}


def test_epsilon_follows_from_the_certificate_alone(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db))
    issue(db, job_id)
    body = document(db, job_id)["certificate"]
    mu = (body["steps"]["planned"] ** 0.5) / body["noise_multiplier"]
    assert epsilon_from_mu(mu, body["epsilon"]["delta"]) == pytest.approx(1.0, abs=1e-4)


def test_a_poisson_job_states_accountant_and_grid(db: Database) -> None:
    dataset_id = open_ledger(db, filter_kind="rdp", order=8.0)
    job_id = succeeded(db, dataset_id, sampling="poisson", sigma=2.0, steps=40)
    issue(db, job_id)
    body = document(db, job_id)["certificate"]
    accountant = body["accountant"]
    assert (accountant["name"], accountant["library"], accountant["grid"]) == ("pld", "dp_accounting", 1e-4)
    assert accountant["version"].count(".") >= 1
    assert pld_epsilon(read(body["events"]["train"]), DELTA, accountant["grid"]) > 0.0
    assert body["charge"]["unit"] == "rdp(order) * 1e-9"


def test_issuing_again_changes_nothing(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    before = document(db, job_id)
    assert not issue(db, job_id)
    assert document(db, job_id) == before


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_job_that_stopped_early_prints_the_planned_epsilon_beside_the_charge(db: Database, status: str) -> None:
    dataset_id = open_ledger(db)
    job_id, train, _ = held_job(db, dataset_id, mechanism())
    post(db, dataset_id, job_id, train // 2)
    with db.write() as session:
        job = session.get_one(Job, job_id)
        job.status, job.steps_started, job.step = status, 25, 24
    assert issue(db, job_id)
    body = document(db, job_id)["certificate"]
    assert body["status"] == status
    assert body["steps"] == {"planned": 50, "started": 25, "effective": None}
    assert body["epsilon"]["value"] == 1.0
    assert read(body["events"]["train"]) == mechanism().event("train")
    assert body["charge"]["train"] == train // 2
    assert body["released"] == {"weights": False, "metrics": []}
    assert body["model_sha256"] is None


def test_a_job_on_a_public_holdout_has_no_holdout_events(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db, holdout=False), noise_mu=None)
    issue(db, job_id)
    assert document(db, job_id)["certificate"]["events"]["holdout"] is None


def test_the_balance_is_that_of_the_settlement_also_when_issued_later(db: Database) -> None:
    dataset_id = open_ledger(db)
    first, second = succeeded(db, dataset_id, steps=10), succeeded(db, dataset_id, steps=10)
    issue(db, first)
    issue(db, second)
    one, two = (document(db, job_id)["certificate"] for job_id in (first, second))
    assert two["ledger"]["balance_after"]["train"]["spent"] == 2 * one["ledger"]["balance_after"]["train"]["spent"]


def test_nothing_spent_is_nothing_to_certify(db: Database) -> None:
    dataset_id = open_ledger(db)
    voided, _, _ = held_job(db, dataset_id, mechanism())
    void(db, dataset_id, voided)
    with db.write() as session:
        public_data = support.add_dataset(session, sensitivity="public")
        public = support.add_job(session, public_data, status="succeeded")
        private_on_public = support.add_job(session, public_data, mechanism=mechanism().model_dump(mode="json"))
    assert not any(issue(db, job_id) for job_id in (voided, public, private_on_public))


def test_a_job_that_has_not_settled_has_none_yet(db: Database) -> None:
    job_id, _, _ = held_job(db, open_ledger(db), mechanism())
    with pytest.raises(Conflict):
        issue(db, job_id)
    with pytest.raises(NotFound):
        issue(db, "job_nobody")


def test_the_signature_is_over_the_canonical_body(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db))
    issue(db, job_id)
    signed = json.loads(json.dumps(document(db, job_id)))
    spelled = json.dumps(signed["certificate"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signed["public_key"]))
    key.verify(base64.b64decode(signed["signature"]), spelled)
    assert certificates.verify(signed, signed["public_key"])


def changes(signed: dict[str, Any]) -> list[dict[str, Any]]:
    """The document with each top-level member of its body changed, one at a time, and with a broken envelope."""
    found = []
    for name in signed["certificate"]:
        changed = copy.deepcopy(signed)
        changed["certificate"][name] = "something else"
        found.append(changed)
    for name, value in (("signature", "AAAA"), ("signature", "%%%"), ("public_key", ""), ("algorithm", "none")):
        found.append(signed | {name: value})
    found.extend({name: signed[name] for name in signed if name != missing} for missing in signed)
    return found


def test_any_change_breaks_it(db: Database) -> None:
    job_id = succeeded(db, open_ledger(db))
    issue(db, job_id)
    signed = document(db, job_id)
    assert certificates.verify(signed)
    assert not any(certificates.verify(changed) for changed in changes(signed))
    forged = signed_document(signed["certificate"] | {"noise_multiplier": 1.0}, Ed25519PrivateKey.generate(), {})
    assert certificates.verify(forged)  # whole, by its own key
    assert not certificates.verify(forged, signed["public_key"])  # not by the key that is trusted
