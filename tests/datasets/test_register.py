"""Registration through the REST API: what is answered to whom, and what is stored."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.datasets import resolving
from app.db.models import Account, Dataset, DatasetContent, LedgerEntry
from core.contracts.dataset_spec import DatasetSpec
from core.parts.part_files import load_part
from tests.datasets.conftest import CSV, PUBLIC, Api, MakeApi, private, spec
from tests.factories import add_dataset
from tests.formats.files import dense, write


def test_a_private_data_set_is_registered(api: Api) -> None:
    response = api.upload(spec())
    assert response.status_code == 201, response.text
    made = response.json()
    assert response.headers["Location"] == f"/v1/datasets/{made['id']}"
    assert made["id"].startswith("ds_") and made["owner"] == api.key_ids["owner"]
    slots = {"train": {"units": 134, "rows": 134}, "holdout": {"units": 96, "rows": 96}}
    sizes = {"records_train": 48, "records_holdout": 12, "features": 2, "outputs": 2, "sparse": False}
    assert made["shape"] == sizes | {"slots": slots}
    assert made["content_sha256"] == hashlib.sha256(CSV.encode()).hexdigest()
    held = made["read"]["holdout"]
    assert (
        made["read"] == {"records": 60, "dropped": 0, "units": 60, "train": 60 - held, "holdout": held}
        and made["warnings"] == []
    )
    assert made["ledger"]["cap"] == {
        "value": 4.0,
        "delta": 1e-5,
        "accountant": "gdp",
        "unit": "example",
        "relation": "add_or_remove_one",
    }
    train, holdout = made["ledger"]["accounts"]["train"], made["ledger"]["accounts"]["holdout"]
    assert train["budget"] == train["remaining"] == holdout["budget"] > 0
    assert made["created_at"].endswith("Z")
    for name in ("name", "format", "task", "holdout"):
        assert made[name] == spec()[name]
    assert made["features"] == spec()["features"] | {"typical_length": None}
    kept = {key: value for key, value in made.items() if key not in ("read", "warnings")}
    assert api.get(f"/v1/datasets/{made['id']}").json() == kept
    assert api.get("/v1/datasets").json() == {"items": [kept], "next": None}


def test_what_is_stored(api: Api) -> None:
    made = api.upload(spec()).json()
    with api.db.read() as session:
        units = session.get_one(Dataset, made["id"]).units_sha256
    assert api.stored() == {
        f"datasets/{made['id']}/{name}.arrow{suffix}" for name in ("train", "holdout") for suffix in ("", ".index")
    } | {f"units/{made['id']}/{units}"}
    for path in api.settings.storage_root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    with api.db.read() as session:
        dataset = session.get_one(Dataset, made["id"])
        contents = list(session.scalars(select(DatasetContent)))
        entries = list(session.scalars(select(LedgerEntry)))
    parts = [load_part(api.settings.storage_root / each.path, each.sha256) for each in dataset.parts.all]
    assert sorted(float(a) for part in parts for a in dense(part)[:, 0]) == sorted(map(float, range(60)))
    assert {(each.part, each.kind) for each in contents} == {("data", "sha256"), ("data", "multiset")}
    assert [(each.kind, each.actor) for each in entries] == [("open", api.key_ids["owner"])]
    for count in ("read", "warnings"):
        assert count not in f"{dataset.spec} {dataset.shape} {dataset.parts}"


def test_private_sizes_are_the_declared_ones_whatever_the_file_holds(api: Api) -> None:
    made = api.upload(spec(**private(records=1000))).json()
    assert (made["shape"]["records_train"], made["shape"]["records_holdout"]) == (800, 200)
    assert "60 records; you declared 1000" in made["warnings"][0]
    api.share(made["id"])
    seen = api.get(f"/v1/datasets/{made['id']}", "analyst").json()
    public = {key: seen[key] for key in ("shape", "privacy", "holdout", "task", "features")}
    assert "60" not in json.dumps(public)


def test_public_sizes_are_the_actual_ones(api: Api) -> None:
    made = api.upload(spec(**PUBLIC)).json()
    shape = made["shape"]
    assert shape["records_train"] + shape["records_holdout"] == 60 and shape["records_holdout"] > 0
    assert made["ledger"] is None
    with api.db.read() as session:
        assert list(session.scalars(select(Account))) == []


def test_a_public_holdout_has_its_actual_size_and_no_account(api: Api) -> None:
    made = api.upload(spec(holdout={"kind": "public"}), holdout_file="a,b,y\n-1,0,1\n-2,0,0\n-3,1,1\n").json()
    assert (made["shape"]["records_train"], made["shape"]["records_holdout"]) == (60, 3)
    assert made["ledger"]["accounts"]["holdout"] is None
    with api.db.read() as session:
        assert len(list(session.scalars(select(DatasetContent)))) == 4


def test_the_default_delta_is_the_largest_power_of_ten_up_to_one_in_n(api: Api) -> None:
    for records, delta in ((60, 1e-3), (1000, 1e-3), (1001, 1e-4), (25_000, 1e-5), (10**9, 1e-9)):
        declared = DatasetSpec.model_validate(spec(**private(records=records, cap={"epsilon": 2.0})))
        resolved = resolving.resolved(declared, api.client.app.state.pricing)  # type: ignore[attr-defined]
        assert resolved.privacy.cap is not None and resolved.privacy.cap.delta == delta
    made = api.upload(spec(**private(cap={"epsilon": 2.0}))).json()
    assert made["privacy"]["cap"] == {"epsilon": 2.0, "delta": 1e-3}
    assert made["ledger"]["cap"]["delta"] == 1e-3


def test_an_rdp_filter_gets_an_order_for_the_typical_job(api: Api) -> None:
    cap = {"epsilon": 3.0, "delta": 1e-5}
    chosen = api.upload(spec("one", **private(filter="rdp", cap=cap, records=50_000))).json()
    order = chosen["privacy"]["order"]
    assert 1 < order <= 1024 and chosen["ledger"]["accounts"]["train"]["order"] == order
    given = api.upload(spec("two", **private(filter="rdp", cap=cap, order=8.0)), CSV.replace("59,", "60,")).json()
    assert given["privacy"]["order"] == given["ledger"]["accounts"]["train"]["order"] == 8.0
    typical = {"epsilon": 2.5, "expected_batch_size": 512, "epochs": 20.0}
    fitted = api.upload(
        spec("three", **private(filter="rdp", cap=cap, records=50_000, typical_job=typical)), CSV.replace("59,", "61,")
    )
    assert fitted.status_code == 201, fitted.text
    assert 1 < fitted.json()["privacy"]["order"] < order, "larger jobs, a lower order"


@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_other_formats(api: Api, tmp_path: Path, format: str) -> None:
    rows = [{"a": float(i), "b": 1.0, "y": i % 2} for i in range(60)]
    changes: dict[str, Any] = {"format": format}
    if format == "npz":
        changes["features"] = {"kind": "tensor", "array": "x"}
    response = api.upload(spec(**changes), write(tmp_path / "d.npz", format, rows))
    assert response.status_code == 201, response.text
    assert response.json()["shape"]["features"] == 2


def test_texts_are_sparse(api: Api) -> None:
    features = {"kind": "hashed_text", "column": "t", "buckets": 4096}
    text = "t,y\n" + "".join(f'"a film,\nnumber {i}",{i % 2}\n' for i in range(60))
    made = api.upload(spec(features=features), text).json()
    assert made["shape"]["sparse"] and made["shape"]["features"] == 4096


def test_split_and_hashes_follow_the_services_key_and_not_the_upload(make_api: MakeApi) -> None:
    lines = CSV.splitlines()
    shuffled = "\n".join([lines[0], *reversed(lines[1:])])
    splits, hmacs = [], []
    first, second = make_api(), make_api()
    for api, text in ((first, CSV), (second, CSV), (second, shuffled)):
        made = api.upload(spec(f"s{len(splits)}", **PUBLIC), text).json()
        with api.db.read() as session:
            part = session.get_one(Dataset, made["id"]).parts.holdout
        splits.append(frozenset(dense(load_part(api.settings.storage_root / part.path, part.sha256))[:, 0].tolist()))
        hmacs.append(made["content_hmac"])
    assert splits[0] != splits[1] and hmacs[0] != hmacs[1], "another service, another key"
    assert splits[1] == splits[2], "the same key, another order"


def test_who_may_register(api: Api) -> None:
    assert api.upload(spec("x"), who=None).status_code == 401
    refused = api.upload(spec("x"), who="analyst")
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
    assert api.count() == 0 and api.stored() == set()
    assert api.upload(spec("x"), who="owner").status_code == 201
    assert api.upload(spec("y"), CSV + "99,1,1\n", who="admin").status_code == 201


def test_who_sees_the_hash_of_the_data(api: Api) -> None:
    made = api.upload(spec()).json()
    sha256 = made["content_sha256"]
    api.share(made["id"])
    for path in (f"/v1/datasets/{made['id']}", "/v1/datasets"):
        for who, sees in (("owner", True), ("admin", True), ("other-owner", False), ("analyst", False)):
            text = api.get(path, who).text
            assert (sha256 in text) == sees, (path, who)
            assert made["content_hmac"] in text
            assert '"read"' not in text and '"warnings"' not in text
        assert api.client.get(path).status_code == 401


def test_pages(api: Api) -> None:
    for _ in range(5):
        add_dataset(api.db)
    names = list(reversed([each["name"] for each in api.get("/v1/datasets").json()["items"]]))
    seen, after = [], ""
    while True:
        page = api.get(f"/v1/datasets?limit=2{after}").json()
        seen += [each["name"] for each in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == names[::-1] and len(seen) == 5
    assert api.get("/v1/datasets?after=nonsense").status_code == 422
    assert api.get("/v1/datasets?limit=0").status_code == 422
    assert api.get("/v1/datasets/ds_none").json()["type"] == "/problems/not-found"


def test_the_body_is_documented(api: Api) -> None:
    document = api.get("/openapi.json").json()
    content = document["paths"]["/v1/datasets"]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}
    uploaded = content["multipart/form-data"]["schema"]["properties"]["spec"]["$ref"]
    named = [each["$ref"] for each in content["application/json"]["schema"]["anyOf"]]
    schemas = document["components"]["schemas"]
    required = [set(schemas[each.rpartition("/")[2]]["required"]) for each in (uploaded, *named)]
    assert "privacy" in required[0] and [each - required[0] for each in required[1:]] == [{"path"}, {"upload"}]
    assert "records" in json.dumps(schemas["DatasetPrivacy"])


def test_a_data_set_that_protects_users(api: Api) -> None:
    """Sizes are the declared users', and every ε says whose it is."""
    rows = "u,a,b,y\n" + "".join(f"p{i % 20},{i},{i * i % 7},{i % 2}\n" for i in range(60))
    privacy = private(unit="user", user_column="u", max_records_per_user=2, records=20)["privacy"]
    made = api.upload(spec() | {"privacy": privacy}, rows).json()
    assert made["shape"]["records_train"] + made["shape"]["records_holdout"] == 20
    assert made["read"]["records"] == 60 and made["read"]["train"] + made["read"]["holdout"] == 20
    assert "20 records of users with more than 2 are left out" in made["warnings"]
    assert made["ledger"]["cap"]["unit"] == "user" and made["privacy"]["max_records_per_user"] == 2
