"""Slots: how many units and records a part may have. Exactly N are admitted, and one more is refused, to its owner."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from app.datasets.sizes import default_slots_of
from app.db.models import Dataset
from core.contracts.blocks import BlockSpec
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.slots import MOST_SLOTS
from core.contracts.stored_documents import Shape
from core.privacy.slot_numbers import default_slots
from tests.datasets.conftest import CSV, PUBLIC, Api, MakeApi, private, spec
from tests.datasets.test_blocks import append, rows
from tests.datasets.test_check import check
from tests.datasets.test_declarations import declare
from tests.datasets.test_people import of_users
from tests.datasets.test_sequences import TABLE
from tests.datasets.test_sequences import spec as of_sequences

WHOLE = {"holdout": None}
USERS = private(unit="user", user_column="u", max_records_per_user=3, records=20)


def slots_of(answer: Any) -> Any:
    return answer["shape"]["slots"]


def same(units: int, count: int | None = None) -> dict[str, int]:
    return {"units": units, "rows": units if count is None else count}


def with_slots(document: dict[str, Any], **slots: int) -> dict[str, Any]:
    return document | {"privacy": document["privacy"] | {"slots": slots}}


def errors_of(answer: Any) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {each["pointer"]: each["detail"] for each in answer.json()["errors"]}


def forget_slots(api: Api, dataset: str) -> None:
    """As a registration was stored before there were slots."""
    with api.db.write() as session:
        row = session.get_one(Dataset, dataset)
        row.shape = row.shape.model_copy(update={"slots": None})


def test_defaults_have_a_margin_and_the_spread_of_the_split(api: Api) -> None:
    made = api.upload(spec()).json()
    spread = math.ceil(6 * math.sqrt(60 * 0.2 * 0.8))
    train, holdout = 48 * 1.05 + 64 + spread, 12 * 1.05 + 64 + spread
    assert slots_of(made) == {"train": same(math.ceil(train)), "holdout": same(math.ceil(holdout))}
    assert "slots" not in made["privacy"], "the declaration is as it was sent"
    assert slots_of(api.get(f"/v1/datasets/{made['id']}").json()) == slots_of(made)
    whole = api.upload(spec("whole", **WHOLE), CSV + "99,1,1\n").json()
    assert slots_of(whole) == {"train": same(127), "holdout": None}


def test_a_last_item_has_the_slots_of_its_user(api: Api) -> None:
    made = api.upload(of_sequences(holdout={"kind": "last_item"}), TABLE).json()
    assert slots_of(made)["train"] == slots_of(made)["holdout"] == same(default_slots(50))


def test_public_data_and_public_hold_outs_have_none(api: Api) -> None:
    assert slots_of(api.upload(spec(**PUBLIC)).json()) is None
    other = CSV + "99,1,1\n"
    made = api.upload(spec("beside", holdout={"kind": "public"}), other, "a,b,y\n7,8,1\n").json()
    assert slots_of(made) == {"train": same(127), "holdout": None} and made["shape"]["records_holdout"] == 1


def test_exactly_n_are_admitted_in_both_parts(api: Api) -> None:
    document, file = spec(**private(records=4)), rows(range(70))
    read = check(api, document, file).json()["read"]
    full = {"train": read["train"], "holdout": read["holdout"]}
    for part, number in full.items():
        refused = errors_of(api.upload(with_slots(document, **full | {part: number - 1}), file))
        (pointer, detail), *others = refused.items()
        assert pointer == f"/privacy/slots/{part}" and not others
        assert f"there are {number} records" in detail and f"and {number - 1} slots" in detail
        assert "before you count them. Only you are told" in detail
    assert api.count() == 0 and api.stored() == set()
    made = api.upload(with_slots(document, **full), file).json()
    assert slots_of(made) == {name: same(number) for name, number in full.items()}
    assert made["privacy"]["slots"] == full


def test_one_more_than_the_default_is_refused(api: Api) -> None:
    most = default_slots(10)
    document = spec(**private(records=10), **WHOLE)
    assert most == 75 and "/privacy/records" in errors_of(api.upload(document, rows(range(most + 1))))
    assert "declare `slots.train` of 150," in errors_of(check(api, document, rows(range(most + 1))))["/privacy/records"]
    assert api.upload(document, rows(range(most))).status_code == 201


def test_records_are_never_dropped_to_fit(api: Api) -> None:
    made = api.upload(with_slots(spec(**private(records=50), **WHOLE), train=60)).json()
    assert made["read"]["train"] == 60 and made["read"]["dropped"] == 0


@pytest.mark.parametrize(
    ("document", "slots", "pointer", "said"),
    [
        (spec(), {"train": 47}, "train", "fewer than the 48 declared to train on: declare 48"),
        (spec(), {"holdout": 11}, "holdout", "fewer than the 12 declared to hold out: declare 12"),
        (spec(), {"train": 100, "train_rows": 101}, "train_rows", "a unit is one record here"),
        (spec(), {"holdout_rows": 1}, "holdout_rows", "a unit is one record here"),
        (spec(**WHOLE), {"holdout": 20}, "holdout", "no private hold-out: leave `holdout` out"),
        (spec(holdout={"kind": "public"}), {"holdout_rows": 20}, "holdout_rows", "no private hold-out"),
        (of_sequences(holdout={"kind": "last_item"}), {"holdout": 60}, "holdout", "has the training part's users"),
        (spec(**USERS), {"train": 40, "train_rows": 39}, "train_rows", "have 40 to 120 rows"),
        (spec(**USERS), {"train": 40, "train_rows": 121}, "train_rows", "have 40 to 120 rows"),
    ],
    ids=lambda each: json.dumps(each) if isinstance(each, dict) and "name" not in each else None,
)
def test_slots_that_do_not_fit_a_declaration(
    refusing_api: Api, document: dict[str, Any], slots: dict[str, int], pointer: str, said: str
) -> None:
    beside = "a,b,y\n7,8,1\n" if document["holdout"] == {"kind": "public"} else None
    found = errors_of(refusing_api.upload(with_slots(document, **slots), holdout_file=beside))
    assert said in found[f"/privacy/slots/{pointer}"]


@pytest.mark.parametrize("slots", [{"train": 0}, {"train": True}, {"train": 60.0}, {"train": 2**53}, {"units": 60}])
def test_slots_that_are_no_numbers(refusing_api: Api, slots: dict[str, Any]) -> None:
    assert next(iter(errors_of(refusing_api.upload(with_slots(spec(), **slots))))).startswith("/privacy/slots/")


def test_public_data_declare_none(refusing_api: Api) -> None:
    assert "leave `slots` out" in str(errors_of(refusing_api.upload(with_slots(spec(**PUBLIC), train=60))))


def test_the_most_users_with_the_most_records_are_refused_by_the_declaration(make_api: MakeApi) -> None:
    """Where the operator's limit admits them: rows stay exact in float64."""
    api = make_api(max_records=MOST_SLOTS)
    slots = with_slots(spec(**USERS), train=MOST_SLOTS)
    assert "declare fewer" in errors_of(api.upload(slots, of_users(range(20), 1)))["/privacy/slots/train"]
    many = private(unit="user", user_column="u", max_records_per_user=10_000, records=10**12)
    assert "/privacy/records" in errors_of(api.upload(spec(**many, **WHOLE), of_users(range(20), 1)))


def test_rows_of_users_are_counted_apart(api: Api) -> None:
    """Twenty users with two of up to three records each: 40 rows."""
    document = spec(**USERS, **WHOLE)
    refused = errors_of(api.upload(with_slots(document, train=20, train_rows=39), of_users(range(20), 1)))
    assert "there are 40 records of users to train on, and 39 slots" in refused["/privacy/slots/train_rows"]
    made = api.upload(with_slots(document, train=20, train_rows=40), of_users(range(20), 1)).json()
    assert slots_of(made)["train"] == same(20, 40)
    fewer = errors_of(declare(api, made["id"], slots={"train_rows": 39, "train": 20}))
    assert "there are 40 records of users" in fewer["/slots/train_rows"]
    assert slots_of(declare(api, made["id"], slots={}).json())["train"] == same(85, 3 * 85)


def test_too_many_users_are_refused(api: Api) -> None:
    refused = errors_of(
        api.upload(
            with_slots(spec(**private(**USERS["privacy"] | {"records": 10}), **WHOLE), train=19), of_users(range(20), 1)
        )
    )
    assert "there are 20 users to train on, and 19 slots" in refused["/privacy/slots/train"]


def test_an_owner_raises_and_lowers_them_for_later_jobs(api: Api) -> None:
    made = api.upload(spec()).json()
    read = made["read"]
    raised = declare(api, made["id"], slots={"train": 500}).json()
    assert raised["declaration"] == 2 and slots_of(raised)["train"] == same(500)
    assert slots_of(raised)["holdout"] == slots_of(made)["holdout"], "by default, as before"
    exact = {"train": read["train"], "holdout": read["holdout"]}
    document = api.get(f"/v1/datasets/{made['id']}").json()
    for part, number in exact.items():
        refused = declare(api, made["id"], records=4, slots=exact | {part: number - 1})
        assert f"there are {number} records" in errors_of(refused)[f"/slots/{part}"]
    assert api.get(f"/v1/datasets/{made['id']}").json() == document
    assert slots_of(declare(api, made["id"], records=4, slots=exact).json())["train"] == same(read["train"])


def test_another_count_moves_defaults_and_keeps_what_was_declared(api: Api) -> None:
    made = api.upload(with_slots(spec(), holdout=90)).json()
    found = declare(api, made["id"], records=100).json()
    assert found["privacy"]["slots"] == {"holdout": 90} and slots_of(found)["holdout"] == same(90)
    assert slots_of(found)["train"] == same(default_slots(80, all_units=100)) != slots_of(made)["train"]
    assert errors_of(declare(api, made["id"], records=1000)) == {
        "/slots/holdout": "90 slots are fewer than the 200 declared to hold out: declare 200 or more"
    }
    default = declare(api, made["id"], slots={}).json()
    assert "slots" not in default["privacy"] and slots_of(default)["holdout"] == same(default_slots(20, all_units=100))


def test_a_dry_run_tells_the_new_slots_and_the_default(api: Api) -> None:
    made = api.upload(with_slots(spec(), train=200)).json()
    found = declare(api, made["id"], slots={"train": 300}, dry_run=True).json()
    assert slots_of(found) == slots_of(made) and found["declaration"] == 1
    assert found["slots"]["train"] == same(300) and found["default_slots"]["train"] == same(134)
    assert declare(api, made["id"], dry_run=True).json()["slots"] == slots_of(made)
    public = api.upload(spec("public", **PUBLIC), CSV + "99,1,1\n").json()["id"]
    assert "/slots" in errors_of(declare(api, public, slots={"train": 300}))


def test_stored_documents_are_as_before_where_no_slots_are_declared(api: Api) -> None:
    """Rows of old releases have no such member, and are compared and hashed as they are."""
    made = api.upload(spec()).json()["id"]
    members = {"sensitivity", "unit", "user_column", "max_records_per_user", "records", "cap", "filter", "order"}
    with api.db.read() as session:
        assert set(session.get_one(Dataset, made).spec["privacy"]) == members | {"typical_job"}
    assert "slots" not in BlockSpec(label="a", records=1).model_dump()
    shape = Shape(records_train=1, records_holdout=0, features=1, outputs=1, sparse=False)
    assert list(shape.model_dump()) == ["records_train", "records_holdout", "features", "outputs", "sparse"]


def test_data_from_before_slots_keep_their_rows_until_the_owner_says(api: Api) -> None:
    made = api.upload(spec()).json()
    forget_slots(api, made["id"])
    assert slots_of(api.get(f"/v1/datasets/{made['id']}").json()) is None
    found = declare(api, made["id"], classes=[0, 1, 2]).json()
    assert slots_of(found) is None and "compute 160 rows in a full batch" in found["warnings"][-1]
    assert declare(api, made["id"], dry_run=True).json()["warnings"] == found["warnings"]
    again = declare(api, made["id"], records=60).json()
    assert slots_of(again) == slots_of(made) and again["warnings"] == []
    assert "nothing would change" in declare(api, made["id"], records=60).json()["errors"][0]["detail"]


def test_slots_are_declared_anew_while_the_first_block_is_there(api: Api) -> None:
    made = api.upload(spec()).json()["id"]
    assert append(api, made, rows(range(60, 120))).status_code == 201
    assert api.client.post(f"/v1/datasets/{made}/blocks/first/retire", headers=api.headers("owner")).status_code == 200
    assert "leave `slots` out" in errors_of(declare(api, made, slots={"train": 500}))["/slots"]


def test_a_block_has_slots_of_its_own(api: Api) -> None:
    made = api.upload(with_slots(spec(), train=500)).json()
    block = append(api, made["id"], rows(range(60, 120))).json()
    assert slots_of(block) == {"train": same(134), "holdout": same(96)}, "the data set's are for its own block"
    wide = {"train": 300, "holdout": 200}
    stated = append(api, made["id"], rows(range(120, 180)), "2026-11", slots=wide).json()
    assert slots_of(stated) == {name: same(number) for name, number in wide.items()}


def test_a_block_that_does_not_fit_its_slots_is_refused(api: Api) -> None:
    made = api.upload(spec()).json()["id"]
    more = rows(range(60, 120))
    read = check(api, spec("more", **private(records=4)), more).json()["read"]
    full = {"train": read["train"], "holdout": read["holdout"]}
    for part, number in full.items():
        refused = errors_of(append(api, made, more, records=4, slots=full | {part: number - 1}))
        assert f"there are {number} records" in refused[f"/slots/{part}"]
    assert "and 74 slots" in errors_of(append(api, made, rows(range(60, 300)), records=4))["/records"]
    assert [each["label"] for each in api.get(f"/v1/datasets/{made}/blocks").json()["items"]] == ["first"]
    assert slots_of(append(api, made, more, records=4, slots=full).json())["holdout"] == same(read["holdout"])


def test_a_check_suggests_slots_by_the_file(api: Api) -> None:
    """Equal records are on one side: fifty copies of each make the split's spread seven times as large."""
    copies = "a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(40) for _ in range(50))
    document = spec(**private(records=2000))
    found = check(api, with_slots(document, train=3000, holdout=3000), copies).json()
    spread = math.ceil(6 * math.sqrt(0.2 * 0.8 * 40 * 50**2))
    train, holdout = (-(-(number * 21 // 20 + 64 + spread) // 10) * 10 for number in (1600, 400))
    assert found["suggested_slots"] == {"train": same(train), "holdout": same(holdout)}
    assert found["read"]["train"] <= train and found["read"]["holdout"] <= holdout
    apart = check(api, document, rows(range(2000))).json()["suggested_slots"]["train"]["units"]
    assert apart == default_slots_of(DatasetSpec.model_validate(document)).train.units // 10 * 10 + 10  # type: ignore[union-attr]
    assert check(api, spec(**PUBLIC)).json()["suggested_slots"] is None


def test_a_check_suggests_rows_of_users(api: Api) -> None:
    found = check(api, spec(**USERS, **WHOLE), of_users(range(20), 1)).json()
    assert found["suggested_slots"] == {"train": same(90, 110), "holdout": None}
    split = check(api, spec(**USERS), of_users(range(20), 1)).json()["suggested_slots"]
    spreads = [math.ceil(6 * math.sqrt(0.2 * 0.8 * squares)) for squares in (20, 20 * 4)]
    assert split["train"] == same(
        *(-(-(math.ceil(n * 1.05) + 64 + s) // 10) * 10 for n, s in zip((16, 32), spreads, strict=True))
    )
