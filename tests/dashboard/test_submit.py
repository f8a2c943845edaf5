"""The page that composes a job: its form says what the schema says, its price is the API's, and a click spends what
the page has shown, or nothing."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from app.dashboard import name_choice, submit_api
from app.dashboard.job_draft import LAYOUT, agreed_on, columns_of, form
from app.dashboard.whatif import chosen, variations
from app.datasets.schemas import DatasetView
from app.db.models import Dataset, Job
from app.grants.service import Granted, give
from app.hpo.rates import Choice, Resolved
from core.contracts.job_spec import JobSpec
from core.ids import now
from core.privacy.prices import Charge
from scrimp.job_names import telling
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import XSS, Everything, Scene
from tests.factories import job_spec

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]
PAGE = "/dashboard/submit"
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mlp": {"model": {"kind": "mlp", "hidden": [32, 16]}, "optimizer": {"kind": "dp_adam", "betas": [0.8, 0.99]}},
    "recommender": {"model": {"kind": "transformer_rec", "re_attention": {"mode": "logits"}}},
    "clipped": {"clipping": {"kind": "adaptive", "adaptive": {"target_quantile": 0.4}}},
    "groups": {"evaluation": {"on": "train", "groups": {"rare": [0, 1]}, "metrics": ["accuracy", "loss"]}},
    "sampled": {"sampling": {"kind": "poisson", "expected_batch_size": 64}, "length": {"epochs": 2.5}},
    "study": {"hpo": {"strategy": "linear_scaling", "space": {"learning_rate": [0.1, 10.0]}}},
    "public": {"privacy": None, "evaluation": None, "seed": 7, "runtime": {"dtype": "float64"}},
    "many digits": {
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.12345678901234567, "momentum": 0.1 + 0.2},
        "privacy": {"noise_multiplier": 1 / 3},
    },
    "large numbers": {"privacy": None, "evaluation": None, "seed": 2**62 + 1},
    "largest seed": {"privacy": None, "evaluation": None, "seed": 2**63 - 1},
    "statistics": {},
    "exponents": {"optimizer": {"kind": "dp_sgd", "learning_rate": 1.5e-7}, "privacy": {"target_epsilon": 1e-05 + 2}},
}

STATISTICS = {
    "kind": "statistics",
    "dataset": "ds_1",
    "privacy": {"target_epsilon": 1.0},
    "queries": [
        {"kind": "count", "weight": 2.0},
        {"kind": "histogram", "column": "a", "edges": [1.0, 2.5]},
        {"kind": "mean", "columns": ["a", "b"]},
        {"kind": "quantile", "column": "b", "q": [0.5]},
    ],
    "where": [{"column": "a", "between": [0.0, 4.5]}, {"column": "y", "in": [0, 1]}],
}


def typed(document: dict[str, Any]) -> dict[str, str]:
    """What the form of a document sends."""
    return {each.pointer: each.value for members in LAYOUT.sections.values() for each in form().show(document, members)}


@pytest.mark.parametrize("name", SPECS)
def test_the_form_of_a_specification_says_the_specification(name: str) -> None:
    spec = JobSpec.model_validate(STATISTICS if name == "statistics" else job_spec("ds_1", **SPECS[name]))
    document = form().pruned(spec.model_dump(mode="json"))
    assert JobSpec.model_validate(document) == spec, "what is left out is what is the default"
    assert JobSpec.model_validate_json(json.dumps(form().read(typed(document), document))) == spec


def test_every_member_of_a_specification_is_in_one_section() -> None:
    members = [each for section in LAYOUT.sections.values() for each in section]
    assert sorted(members) == sorted(JobSpec.model_fields)


def test_another_kind_keeps_what_both_know_and_drops_the_rest() -> None:
    document = job_spec("ds_1", model={"kind": "mlp", "hidden": [4]}, optimizer={"kind": "dp_sgd", "momentum": 0.5})
    document["optimizer"]["learning_rate"] = 3.0
    sent = typed(document) | {"/model/kind": "linear", "/optimizer/kind": "dp_adam", "/evaluation": ""}
    read = form().read(sent, document)
    assert read["model"] == {"kind": "linear"}
    assert read["optimizer"] == {"kind": "dp_adam", "learning_rate": 3}
    assert "evaluation" not in read


def test_what_is_no_number_stays_and_is_refused_at_its_place() -> None:
    read = form().read({"/length/steps": "many", "/optimizer/learning_rate": "auto"}, job_spec("ds_1"))
    assert read["length"] == {"steps": "many"} and "learning_rate" not in read["optimizer"]


def test_codes_with_leading_zeros_stay_texts() -> None:
    """Another code would be counted, and paid for, without a word."""
    document = {"kind": "statistics", "dataset": "ds_1", "where": [{"column": "code"}]}
    for typed_in, values in (("0042, E11.9, 7", ["0042", "E11.9", 7]), ("007", ["007"]), ('"12"', ["12"])):
        read = form().read({"/where/0/column": "code", "/where/0/in": typed_in}, document)
        assert read["where"] == [{"column": "code", "in": values}]


def test_columns_of_texts_can_be_chosen() -> None:
    features = {"kind": "table", "columns": [{"name": "age"}], "texts": [{"name": "code"}]}
    dataset = DatasetView.model_construct(features=features, task={"label": "ill"})
    assert columns_of(dataset) == ["age", "code", "ill"]


def sent_from(page: httpx.Response, **changes: str) -> dict[str, str]:
    """The form of a page as a browser without JavaScript sends it."""
    found = {"csrf": token_of(page)}
    for name in ("once", "agreed", "named", "shown"):
        seen = re.search(rf'name="{name}" value="([^"]*)"', page.text)
        found |= {name: html.unescape(seen.group(1))} if seen else {}
    text = re.search(r'<textarea id="json"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)
    assert text is not None
    found["json"] = html.unescape(text.group(1))
    return found | typed(json.loads(found["json"])) | changes


def controls(page: httpx.Response) -> dict[str, list[str]]:
    """The inputs of a page's form, by name: the values that each may have."""
    found: dict[str, list[str]] = {
        name: [] for name in re.findall(r'<(?:input|textarea)[^>]* name="(/[^"]*)"', page.text)
    }
    for name, options in re.findall(r'<select[^>]* name="(/[^"]*)"[^>]*>(.*?)</select>', page.text, re.DOTALL):
        found[name] = re.findall(r'<option value="([^"]*)"', options)
    return found


def test_statistics_are_composed_by_column_without_json(whole: Whole, signed_in: SignedIn) -> None:
    """Each choice shows what it needs; a choice of none takes a query away; one click then submits what was quoted."""
    scene, ids = whole
    browser = signed_in("analyst")
    page = browser.get(f"{PAGE}?dataset={ids.reviews}")
    assert controls(page)["/kind"] == ["", "statistics", "synthetic"] and "/queries/0/kind" not in controls(page)

    def chosen_next(page: httpx.Response, **choices: str) -> httpx.Response:
        sent = {name: each for name, each in sent_from(page).items() if not name.startswith("/")}
        shown = typed(json.loads(sent["json"]))
        there = {name: value for name, value in shown.items() if name in controls(page)}
        assert set(choices) <= set(controls(page)), "a person can choose only what is there"
        return browser.client.post(PAGE, data=sent | there | choices | {"do": "quote"})

    page = chosen_next(page, **{"/kind": "statistics"})
    assert not [name for name in controls(page) if name.startswith(("/model", "/optimizer", "/hpo", "/length"))]
    assert "histogram" in controls(page)["/queries/0/kind"] and "/where/0/column" in controls(page)
    page = chosen_next(page, **{"/queries/0/kind": "histogram"})
    assert set(controls(page)["/queries/0/column"]) == {"", "a", "b", "y"}
    assert "Field required" in page.text
    page = chosen_next(page, **{"/queries/0/column": "a", "/queries/0/edges": "1, 2.5", "/where/0/column": "y"})
    page = chosen_next(page, **{"/where/0/in": "0, 1", "/queries/1/kind": "count"})
    page = chosen_next(page, **{"/queries/2/kind": "sum"})
    page = chosen_next(page, **{"/queries/2/kind": ""})
    document = json.loads(sent_from(page)["json"])
    assert [each["kind"] for each in document["queries"]] == ["histogram", "count"]
    assert document["where"] == [{"column": "y", "in": [0, 1]}] and document["queries"][0]["edges"] == [1, 2.5]
    assert re.search(r"submitting holds <strong>\d\.\d %</strong> of the budget", page.text), page.text
    before = jobs_of(scene)
    made = browser.client.post(PAGE, data=sent_from(page, do="submit"))
    assert made.status_code == 303 and jobs_of(scene) == before + 1
    with scene.db.read() as session:
        job = session.get_one(Job, made.headers["location"].rpartition("/")[2])
        assert job.spec["kind"] == "statistics" and len(job.spec["queries"]) == 2
    shown = browser.get(made.headers["location"])
    assert "statistics, 2 queries" in shown.text and "Released metrics" not in shown.text


SCORED = {"evaluation": {"on": "train", "noise_mu": 0.02, "metrics": ["accuracy"]}}


def written(browser: Browser, dataset: str, **members: Any) -> dict[str, str]:
    """The form of a job that names more than the data set and ε."""
    sent = sent_from(browser.get(f"{PAGE}?dataset={dataset}"))
    document = json.loads(sent["json"]) | members
    edited = {"csrf": sent["csrf"], "source": "json", "json": json.dumps(document)}
    return sent_from(browser.client.post(PAGE, data=edited))


def jobs_of(scene: Scene) -> int:
    with scene.db.read() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


def test_the_quote_is_the_api_s_and_one_click_submits_it_once(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser = signed_in("analyst")
    page = browser.get(f"{PAGE}?dataset={ids.reviews}")
    assert page.status_code == 200
    sent = sent_from(page, **{"/privacy/target_epsilon": "0.21", "/name": XSS})
    quoted = browser.client.post(f"{PAGE}/draft", data=sent)
    assert XSS not in quoted.text
    spec = form().read(sent, json.loads(sent["json"]))
    key = {"Authorization": f"Bearer {scene.analyst.token}"}
    priced = browser.client.post("/v1/quotes", json=spec, headers=key).json()
    assert priced.get("fits"), priced
    assert f"{priced['resolved']['learning_rate']:g}" in quoted.text
    assert re.search(r"submitting holds <strong>\d\.\d %</strong> of the budget", quoted.text)
    before = jobs_of(scene)
    # What the click says is not what was quoted: nothing is spent, and the new price is shown.
    stale = browser.client.post(PAGE, data=sent | {"do": "submit"})
    assert stale.status_code == 409 and "Nothing was submitted" in stale.text and jobs_of(scene) == before
    sent |= sent_from(stale, **{"do": "submit"})
    made = [browser.client.post(PAGE, data=sent) for _ in range(2)]
    assert {each.status_code for each in made} == {303} and len({each.headers["location"] for each in made}) == 1
    assert jobs_of(scene) == before + 1
    # The form of before, as the browser's way back shows it: another job has another price, and is another job.
    other = sent_from(browser.client.post(PAGE, data=sent | {"/privacy/target_epsilon": "0.22", "do": "quote"}))
    other |= {"do": "submit", "once": sent["once"]}
    assert browser.client.post(PAGE, data=other).status_code == 303 and jobs_of(scene) == before + 2
    again = browser.get(f"{PAGE}?job={made[0].headers['location'].rpartition('/')[2]}")
    asked = json.loads(sent_from(stale)["json"])
    assert set(asked) == {"dataset", "name", "privacy"}, "all the rest is chosen by the service, and is again"
    assert json.loads(sent_from(again)["json"]) == asked


def test_a_job_without_a_name_is_named_as_the_client_names_it(whole: Whole, signed_in: SignedIn) -> None:
    """What it is, on which data set, at which ε, and a number where another job has that name."""
    scene, ids = whole
    browser, names = signed_in("analyst"), []
    at_epsilon = {"/privacy/target_epsilon": "0.0625"}
    for model in ({}, {}, {"/model/kind": "linear"}):
        page = browser.get(f"{PAGE}?dataset={ids.reviews}")
        page = browser.client.post(PAGE, data=sent_from(page) | at_epsilon | model | {"do": "quote"})
        sent = sent_from(page, do="submit")
        assert f'name="/name" value="" placeholder="{sent["named"]}"' in page.text
        clicks = [browser.client.post(PAGE, data=sent).headers["location"] for _ in range(2)]
        assert clicks[0] == clicks[1], "a second click is the same job, although its name is taken by then"
        with scene.db.read() as session:
            job = session.get_one(Job, clicks[0].rpartition("/")[2])
            names.append(job.name)
            assert job.spec["name"] == job.name
        again = json.loads(sent_from(browser.get(f"{PAGE}?job={job.id}"))["json"])
        assert "name" not in again, "at another ε it would tell what is not so"
        told = telling(again | {"dataset": "imdb-reviews"})
        assert names[-1].startswith(told) and name_choice.telling(again, "imdb-reviews") == told
    assert names == ["imdb-reviews, ε = 0.0625", "imdb-reviews, ε = 0.0625 #2", "linear on imdb-reviews, ε = 0.0625"]
    refused = browser.client.post(PAGE, data=sent | {"named": "x" * 201})
    assert refused.status_code == 422


def test_a_click_never_submits_other_than_the_json_on_the_page(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser = signed_in("analyst")
    sent = sent_from(browser.get(f"{PAGE}?dataset={ids.reviews}"))
    edited = json.loads(sent["json"]) | {"privacy": {"target_epsilon": 0.23}, "name": "typed in the JSON"}
    before = jobs_of(scene)
    page = browser.client.post(PAGE, data=sent | {"json": json.dumps(edited), "do": "submit"})
    assert page.status_code == 409 and "Nothing was submitted" in page.text and jobs_of(scene) == before
    read = sent_from(page, do="submit")
    assert (read["/privacy/target_epsilon"], read["/name"]) == ("0.23", "typed in the JSON")
    # Browsers send the ends of lines as CR LF: that is no edit.
    made = browser.client.post(PAGE, data=read | {"json": read["json"].replace("\n", "\r\n")})
    assert made.status_code == 303 and jobs_of(scene) == before + 1
    with scene.db.read() as session:
        job = session.get_one(Job, made.headers["location"].rpartition("/")[2])
        assert (job.name, job.spec["privacy"]["target_epsilon"]) == ("typed in the JSON", 0.23)
    # A click without the digest, and edited JSON that is none.
    unknown = {name: value for name, value in read.items() if name != "shown"}
    assert browser.client.post(PAGE, data=unknown).status_code == 409
    assert browser.client.post(PAGE, data=read | {"json": "{"}).status_code == 422
    assert jobs_of(scene) == before + 1


@pytest.mark.parametrize(
    ("changes", "at", "said"),
    [
        ({"/length/steps": "many"}, "f-length-steps", "valid integer"),
        ({"/length/steps": ""}, "f-length-steps", "give either steps or epochs"),
        ({"/model/kind": "mlp"}, "f-model-hidden", "Field required"),
        (
            {"/optimizer/weight_decay": "1000000"},
            "f-optimizer-learning_rate",
            "weight_decay is above 1",
        ),
        (
            {"/sampling/kind": "poisson", "/sampling/expected_batch_size": "900000"},
            "f-sampling-expected_batch_size",
            "",
        ),
    ],
)
def test_errors_stand_at_their_fields(
    whole: Whole, signed_in: SignedIn, changes: dict[str, str], at: str, said: str
) -> None:
    browser = signed_in("analyst")
    sent = written(browser, whole[1].reviews, length={"steps": 50}, optimizer={"kind": "dp_sgd"})
    for path, status in ((f"{PAGE}/draft", 200), (PAGE, 422)):
        page = browser.client.post(path, data=sent | changes | {"do": "quote"})
        assert page.status_code == status
        found = re.search(rf'id="{at}-error">([^<]*)<', page.text)
        assert found is not None and said in found.group(1), page.text
        assert f'href="#{at}"' in page.text and 'value="submit"' not in page.text


ODD = ["{", "[]", '{"dataset": 3}', '{"model": 5}', "[" * 3000, '{"a": NaN}', '{"model": {"kind": []}}']
ODD += [
    '{"task": {"kind": []}}',
    '{"hpo": {"strategy": [1]}}',
    '{"name": "\\ud800"}',
    '{"holdout": {}}',
    '{"seed": 1e999}',
]
ODD += ['{"model": %s}' % ("[" * depth + "]" * depth) for depth in (65, 600, 900)]  # fmt: skip
ODD += [
    '{"privacy": [1], "model": [1], "hpo": 3, "evaluation": "x", "optimizer": {"kind": {}}}',
    '{"name": "a\\u0000b"}',
]


@pytest.mark.parametrize("text", ODD)
def test_json_that_is_no_specification_is_answered_and_kept(whole: Whole, signed_in: SignedIn, text: str) -> None:
    browser = signed_in("analyst")
    sent = sent_from(browser.get(f"{PAGE}?dataset={whole[1].reviews}"))
    for source in ("json", "form"):
        page = browser.client.post(f"{PAGE}/draft", data={"csrf": sent["csrf"], "json": text, "source": source})
        assert page.status_code == 200 and "No quote" in page.text, text
        assert source == "form" or text in html.unescape(page.text), "what was typed stays"
    other = {"json": text, "/dataset": whole[1].digits, "source": "form", "csrf": sent["csrf"]}
    assert browser.client.post(f"{PAGE}/draft", data=other).status_code == 200


@pytest.mark.parametrize("typed_in", ['"\\ud800"', "[" * 600 + "]" * 600, '"\\u0000"'])
def test_a_list_that_no_json_may_hold_is_refused(whole: Whole, signed_in: SignedIn, typed_in: str) -> None:
    browser = signed_in("analyst")
    sent = written(browser, whole[1].reviews, **SCORED) | {"/evaluation/metrics": typed_in}
    page = browser.client.post(f"{PAGE}/draft", data=sent)
    assert page.status_code == 200 and "No quote" in page.text


def test_the_mark_of_a_click_is_as_the_api_has_it(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("analyst")
    sent = sent_from(browser.get(f"{PAGE}?dataset={whole[1].reviews}"), do="submit")
    before = jobs_of(whole[0])
    for once in ("a\0b", "x" * 101, "é", "a b"):
        assert browser.client.post(PAGE, data=sent | {"once": once}).status_code == 422, once
    assert jobs_of(whole[0]) == before


def test_another_rate_or_price_is_another_agreement() -> None:
    spec = JobSpec.model_validate(job_spec("ds_1"))
    half, other = Resolved(learning_rate=0.5), Resolved(learning_rate=0.25)
    longer = Resolved(learning_rate=0.5, steps=Choice(value=200, because=""))
    agreements = [(1, half), (1, other), (1, longer), (1, None), (2, half)]
    names = {agreed_on(spec, Charge(train=train, holdout=0, unit=None), auto) for train, auto in agreements}
    assert len(names) == len(agreements)


def test_what_does_not_fit_cannot_be_submitted(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("analyst")
    sent = sent_from(browser.get(f"{PAGE}?dataset={whole[1].reviews}"), **{"/privacy/target_epsilon": "9"})
    page = browser.client.post(PAGE, data=sent | {"do": "quote"})
    assert page.status_code == 200 and "it does not fit the budget" in page.text and 'value="submit"' not in page.text
    assert re.search(r"Lower ε to \d\.\d+ or less", page.text)


def test_public_data_cost_nothing(whole: Whole, signed_in: SignedIn) -> None:
    page = signed_in("analyst").get(f"{PAGE}?dataset={whole[1].digits}")
    assert "It costs nothing" in page.text and "Submit, free of charge" in page.text
    assert json.loads(sent_from(page)["json"])["privacy"] is None


def test_the_page_shows_only_what_the_key_may_train_on(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = scene.dataset("secret-set")
    job = scene.job(dataset, "secret job")
    for key, said in ((scene.key("analyst"), "No data set is granted"), (scene.key("viewer"), "role viewer")):
        browser = visit()
        browser.sign_in(key)
        page = browser.get(f"{PAGE}?dataset={dataset}")
        assert page.status_code == 200 and said in page.text and "secret" not in page.text
        assert browser.get(f"{PAGE}?job={job}").status_code == 404


def test_a_data_set_that_cannot_be_used_opens_no_other_one_s_form(scene: Scene, visit: Callable[[], Browser]) -> None:
    usable, retired, viewed = (scene.dataset(name) for name in ("usable-set", "retired-set", "viewed-set"))
    granted: list[tuple[str, Granted]] = [(usable, "train"), (retired, "train"), (viewed, "view")]
    for dataset, access in granted:
        with scene.db.write() as session:
            give(session, scene.owner.caller, dataset, scene.analyst.id, access, None)
    with scene.db.write() as session:
        session.get_one(Dataset, retired).retired_at = now()
    browser = visit()
    browser.sign_in(scene.analyst)
    refused = [
        (retired, 409, "retired"),
        ("retired-set", 409, "retired"),
        (viewed, 403, "not train"),
        ("typo", 404, ""),
    ]
    for asked, status, said in refused:
        page = browser.get(f"{PAGE}?dataset={asked}")
        assert page.status_code == status and said in page.text, asked
        assert "usable-set" not in page.text and 'value="submit"' not in page.text and "What it costs" not in page.text
    for asked in (usable, "usable-set"):
        assert json.loads(sent_from(browser.get(f"{PAGE}?dataset={asked}"))["json"])["dataset"] == usable
    links = {
        each: f"{PAGE}?dataset={each}" in browser.get(f"/dashboard/datasets/{each}").text for each in (usable, retired)
    }
    assert links == {usable: True, retired: False}


def test_a_data_set_past_the_newest_is_found_by_its_name(
    whole: Whole, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_api, "DATASETS_SHOWN", 1)
    for asked in (whole[1].reviews, whole[1].digits):
        page = signed_in("analyst").get(f"{PAGE}?dataset={asked}")
        assert page.status_code == 200
        sent = sent_from(page)
        assert json.loads(sent["json"])["dataset"] == asked
        assert offered_in(page.text)[asked] != asked, "it has its name"
        again = signed_in("analyst").client.post(f"{PAGE}/draft", data=sent)
        assert offered_in(again.text) == offered_in(page.text)


def offered_in(page: str) -> dict[str, str]:
    """The data sets that a form offers."""
    found = re.search(r'<select id="f-dataset".*?</select>', page, re.DOTALL)
    assert found is not None
    return dict(re.findall(r'<option value="([^"]*)"[^>]*>([^<]*)<', found.group()))


def test_a_form_of_another_site_submits_nothing(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("analyst")
    sent = sent_from(browser.get(f"{PAGE}?dataset={whole[1].reviews}")) | {"csrf": "0" * 64, "do": "submit"}
    for path in (PAGE, f"{PAGE}/draft"):
        assert browser.client.post(path, data=sent).status_code == 403


def test_variations_change_one_weighed_setting_each() -> None:
    spec = JobSpec.model_validate(job_spec("ds_1", **SPECS["sampled"]))
    found = {each.what: each.spec for each in variations(spec)}
    assert found["as it is"] == spec
    assert found["ε 0.5"].privacy is not None and found["ε 0.5"].privacy.target_epsilon == 0.5
    assert found["batch 128"].sampling == spec.sampling.model_copy(update={"expected_batch_size": 128})
    assert found["epochs 1.25"].length.epochs == 1.25 and "steps 25" not in found
    assert len(found) == 9, "itself; ε, epochs, batch and noise_mu, twice each"
    public = JobSpec.model_validate(job_spec("ds_1", **SPECS["public"]))
    assert [each.what for each in variations(public)] == ["as it is", "steps 25", "steps 100"]


def test_each_variation_is_quoted_by_the_api(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser = signed_in("analyst")
    sent = written(browser, ids.reviews, length={"steps": 50}, **SCORED)
    table = browser.client.post(f"{PAGE}/what-if", data=sent)
    rows = dict(re.findall(r'<th scope="row">([^<]+)</th>(.*?)</tr>', table.text, re.DOTALL))
    assert {"as it is", "ε 0.5", "ε 2", "steps 25", "steps 100"} <= set(rows)
    spec = json.loads(sent["json"]) | {"privacy": {"target_epsilon": 2.0}}
    key = {"Authorization": f"Bearer {scene.analyst.token}"}
    priced = browser.client.post("/v1/quotes", json=spec, headers=key).json()
    cells = re.findall(r"<td[^>]*>([^<]*)", rows["ε 2"])
    assert (cells[0], cells[2]) == ("2.00", str(priced["jobs_that_fit"]))
    costly = browser.client.post(f"{PAGE}/what-if", data=sent | {"/evaluation/noise_mu": "1.5"})
    assert "refused" in costly.text and "the evaluation alone costs" in costly.text
    assert "not complete" in browser.client.post(f"{PAGE}/what-if", data=sent | {"/length/steps": "x"}).text


def test_a_person_chooses_the_values_of_one_setting(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("analyst")
    sent = written(browser, whole[1].reviews, optimizer={"kind": "dp_sgd"}, **SCORED)

    def rows(vary: str, values: str) -> dict[str, list[str]]:
        table = browser.client.post(f"{PAGE}/what-if", data=sent | {"vary": vary, "values": values})
        found = re.findall(r'<th scope="row">([^<]+)</th>(.*?)</tr>', table.text, re.DOTALL)
        return {what: re.findall(r"<td[^>]*>([^<]*)", cells) for what, cells in found}

    steps = rows("/length/steps", "30, 70 90")
    assert list(steps) == ["as it is", "steps 30", "steps 70", "steps 90"]
    key = {"Authorization": f"Bearer {whole[0].analyst.token}"}
    shape = browser.client.get(f"/v1/datasets/{whole[1].reviews}", headers=key).json()["shape"]
    declared = shape["records_train"]
    sizes = rows("/records", f"{declared} {4 * declared}")
    assert sizes[f"n {declared}"] == sizes["as it is"], "a hypothetical number that is the declared one"
    before, after = sizes["as it is"], sizes[f"n {4 * declared}"]
    assert after != before and after[0] == before[0], "ε is the target; what it buys is not the same"


@pytest.mark.parametrize(
    ("vary", "values", "said"),
    [
        ("/length/steps", "", "type 1 to 8 values"),
        ("/length/steps", "1 2 3 4 5 6 7 8 9", "type 1 to 8 values"),
        ("/length/steps", "many", "is not a number"),
        ("/length/steps", "-3", "steps cannot be -3"),
        ("/privacy/target_epsilon", "nan", "cannot be nan"),
        ("/length/epochs", "2", "does not set"),
        ("/records", "0", "whole number"),
        ("/records", "1e3", "whole number"),
        ("/dataset", "1", "choose a setting"),
    ],
)
def test_values_that_do_not_fit_are_refused(vary: str, values: str, said: str) -> None:
    spec = JobSpec.model_validate(job_spec("ds_1", privacy={"target_epsilon": 1.0}, length={"steps": 50}))
    with pytest.raises(ValueError, match=said):
        chosen(spec, vary, values)


def test_the_quote_of_a_study_counts_its_trials(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("analyst")
    sent = sent_from(
        browser.get(f"{PAGE}?dataset={whole[1].reviews}"), **{"/hpo/strategy": "linear_scaling", "/length/steps": "50"}
    )
    page = browser.client.post(f"{PAGE}/draft", data=sent)
    assert "at most 50 in a trial; 7 trials" in page.text and "pilots of level 1, 3 times" in page.text
