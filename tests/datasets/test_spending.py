"""Who spent what: by the key that held, whoever posted, and summed over all blocks."""

from __future__ import annotations

from typing import Any

from app.ledger import accounts, memos
from tests.datasets.conftest import Api, spec
from tests.datasets.test_blocks import append, grant, retire, rows
from tests.ledger.support import add_job


def spend(api: Api, datasets: list[str], job: str, who: str, train: int, *trials: int) -> None:
    """A job that reads these blocks and spends so much on each, or a running study whose trials draw on its hold."""
    for dataset in datasets:
        hold: dict[str, Any] = {"dataset_id": dataset, "train": train, "holdout": 0}
        with api.db.write() as session:
            accounts.hold(session, **hold, job_id=job, actor=api.key_ids[who])
        for number, amount in enumerate(trials):
            of_trial: dict[str, Any] = {"job_id": f"{job}t{number}", "study_id": job, "train": amount, "holdout": 0}
            with api.db.write() as session:
                key = {"key_id": api.key_ids[who]}
                add_job(session, dataset, id=of_trial["job_id"], parent_id=job, trial_number=number, **key)
                accounts.draw(session, dataset_id=dataset, **of_trial, actor="worker")
        if not trials:
            with api.db.write() as session:
                accounts.post(session, **hold, job_id=job, actor="worker", memo=memos.Settled(outcome="succeeded"))


def spent(api: Api, dataset: str, who: str = "owner") -> Any:
    answer = api.client.get(f"/v1/datasets/{dataset}/spending", headers=api.headers(who))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_trial_s_part_is_its_submitter_s(api: Api) -> None:
    """Trials draw on the study's hold under their own ids, and the worker writes the entries."""
    made = api.upload(spec()).json()
    spend(api, [made["id"]], "job_study", "analyst", 1000, 300, 200)
    spend(api, [made["id"]], "job_one", "owner", 100)
    found = spent(api, made["id"])
    assert [(each["key_name"], each["charges"], each["train"]["amount"]) for each in found["items"]] == [
        ("analyst", 1, 500),
        ("owner", 1, 100),
    ]
    assert found["blocks"] is None and found["items"][0]["holdout"]["share"] == 0


def test_blocks_are_summed_retired_ones_too(api: Api) -> None:
    made = api.upload(spec()).json()
    block = append(api, made["id"], rows(range(60, 120))).json()
    grant(api, made["id"])
    spend(api, [made["id"], block["id"]], "job_both", "analyst", 1000)
    spend(api, [block["id"]], "job_new", "analyst", 500)
    assert retire(api, made["id"], "first").status_code == 200
    found = spent(api, made["id"])
    (own,) = found["items"]
    assert found["blocks"] == ["first", "2026-10"] and own["charges"] == 2 and own["train"]["amount"] == 2500
    budget = sum(each["ledger"]["accounts"]["train"]["budget"] for each in blocks(api, made["id"]))
    assert own["train"]["share"] == 2500 / budget
    alone = spent(api, block["id"])
    assert alone["blocks"] is None and alone["items"][0]["train"]["amount"] == 1500


def blocks(api: Api, dataset: str) -> list[Any]:
    listed = api.client.get(f"/v1/datasets/{dataset}/blocks", headers=api.headers("owner")).json()
    return list(listed["items"])


def test_names_are_the_owner_s_to_read(api: Api) -> None:
    made = api.upload(spec()).json()
    grant(api, made["id"])
    spend(api, [made["id"]], "job_own", "analyst", 300)
    spend(api, [made["id"]], "job_owner", "owner", 200)
    assert [each["key_name"] for each in spent(api, made["id"], "analyst")["items"]] == ["analyst", None]
    assert [each["key_name"] for each in spent(api, made["id"], "admin")["items"]] == ["analyst", "owner"]
