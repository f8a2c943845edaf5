"""The page that registers a data set: its form says what the schema says, the file is checked and stored by the API's
own routes, and nothing is read from somebody who may not register."""

from __future__ import annotations

import html
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.dashboard.dataset_draft import LAYOUT, first_declaration, form
from app.db.clock import ClockName, in_seconds
from app.db.models import Dataset, DatasetReading
from app.web.examples import DATASET_SPECS
from core.contracts.dataset_spec import NAMED_BY, PREFIXES, DatasetSpec
from core.contracts.filter_names import BUYS
from core.ids import new_id, now
from scrimp.declare import propose, read_sheet
from tests.by_night import but
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import XSS, Everything, Scene
from tests.datasets.test_init import HOSPITAL
from tests.factories import dataset_spec
from tests.formats.files import number_rows, write

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]
PAGE = "/dashboard/register"


def table(path: Path, rows: int, separator: str = ",", seed: int = 1) -> Path:
    """A CSV file with a category, two numbers and a label."""
    draw = random.Random(seed)
    lines = [["age", "height", "town, or city", "outcome"]]
    lines += [
        [str(20 + at % 60), f"{150 + draw.random() * 40:.1f}", draw.choice(["Bern", "Chur"]), str(at % 2)]
        for at in range(rows)
    ]
    path.write_text("".join(separator.join(f'"{cell}"' for cell in line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", DATASET_SPECS)
def test_the_form_of_a_declaration_says_the_declaration(name: str) -> None:
    spec = DatasetSpec.model_validate(DATASET_SPECS[name])
    document = form().pruned(spec.model_dump(mode="json"))
    sent = {each.pointer: each.value for members in LAYOUT.sections.values() for each in form().show(document, members)}
    assert DatasetSpec.model_validate_json(json.dumps(form().read(sent, document))) == spec


def test_classes_that_look_like_numbers_stay_texts() -> None:
    task = {"kind": "classification", "label": "y", "classes": ["1", "2", "a, b", 'say "c"']}
    document = dataset_spec(task=task)
    sent = {each.pointer: each.value for each in form().show(document, ("task",))}
    assert form().read(sent, document)["task"] == task
    sent["/task/classes"] = "yes, no, 3"
    assert form().read(sent, document)["task"]["classes"] == ["yes", "no", 3]


def test_every_member_of_a_declaration_but_the_file_s_place_is_in_one_section() -> None:
    members = [each for section in LAYOUT.sections.values() for each in section]
    files = [f"{prefix}{by}" for prefix in PREFIXES.values() for by in NAMED_BY]
    assert sorted([*members, *files]) == sorted(DatasetSpec.model_fields)


def test_a_plan_takes_the_place_of_the_filter_and_says_what_it_buys(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("owner")
    first = browser.get(PAGE)
    assert all(buys in html.unescape(first.text) for buys in BUYS.values()), "before one is chosen"
    spec = dataset_spec()
    for plan, buys in BUYS.items():
        chosen = spec | {"privacy": spec["privacy"] | {"plan": plan, "filter": "gdp"}}
        sent = {"csrf": token_of(first), "source": "json", "json": json.dumps(chosen)}
        page = browser.client.post(f"{PAGE}/draft", data=sent)
        assert "The declaration is complete" in page.text and buys in html.unescape(page.text), page.text
        text = html.unescape(page.text.split('id="json"')[1].split(">", 1)[1].split("</textarea>")[0])
        assert json.loads(text)["privacy"].get("filter") is None and json.loads(text)["privacy"]["plan"] == plan


@pytest.mark.browser
def test_the_assistant_asks_for_the_plan(open_page: Callable[..., Any], whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(HOSPITAL)
    page = with_file(open_page, whole, path)
    page.get_by_label("Which column is predicted?").select_option("outcome")
    page.get_by_label("Which jobs are expected?").select_option("mixed")
    page.locator("#assistant").get_by_text(BUYS["mixed"]).wait_for()
    for plan in ("mixed", ""):
        page.get_by_label("Which jobs are expected?").select_option(plan)
        page.get_by_role("button", name="Use these rows").click()
        page.get_by_text("The declaration is complete").wait_for()
        privacy = declared(page)["privacy"]
        assert (privacy.get("plan", ""), privacy.get("filter")) == (plan, None if plan else "gdp")


FILES = {
    "hospital.csv": (HOSPITAL, "outcome"),
    "ranges.csv": (
        "\n".join(["patientAge,height,sum,sex,y", *(f"{i},{i / 9},{10 ** (i % 9)},F,{i}" for i in range(40))]),
        "y",
    ),
    "visits.csv": ("Patient ID,age,y\n" + "".join(f"{i // 3},{i % 90},{i % 2}\n" for i in range(90)), "y"),
    "again.csv": ("id,age,y\n" + "".join(f"{i // 3},{i % 90},{i % 2}\n" for i in range(90)), "y"),
    "lines.jsonl": ("".join(f'{{"a": {i}, "b": "{"xy"[i % 2]}", "y": {i % 3}}}\n' for i in range(60)), "y"),
    "reviews.csv": (
        "text,label\n" + "".join(f'"a film that one sees, number {i}",{i % 2}\n' for i in range(64)),
        "label",
    ),
    # A cell that takes hours where an expression can read a digit in two ways; and numbers that are infinite.
    "digits.jsonl": (
        "".join(
            json.dumps({"a": "7" * 1_000_000 + "x" if i == 5 else str(i), "b": i, "c": f"{i}e{i * 20}", "y": i % 3})
            + "\n"
            for i in range(40)
        ),
        "y",
    ),
}


def with_file(open_page: Callable[..., Any], whole: Whole, path: Path) -> Any:
    """The registration page of an owner who has chosen a file."""
    page = open_page(PAGE, whole[0].owner)
    page.get_by_label("Data file").set_input_files(path)
    return page


def declared(page: Any) -> Any:
    return json.loads(page.locator("#json").input_value())


@pytest.mark.browser
# By night those whose parts the others have, too: numbers, persons in `again.csv`, lines in `digits.jsonl`.
@pytest.mark.parametrize("name", but(FILES, lambda name: name not in ("ranges.csv", "visits.csv", "lines.jsonl")))
def test_the_browser_proposes_what_the_command_line_proposes_and_sends_nothing_before(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path, name: str
) -> None:
    content, label = FILES[name]
    path = tmp_path / name
    path.write_text(content)
    page = open_page(PAGE, whole[0].owner)
    sent = posts(page)
    page.get_by_label("Data file").set_input_files(path)
    page.get_by_label("Which column is predicted?").select_option(label)
    page.get_by_role("table").get_by_text("predicted").wait_for()
    assert sent == []
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_text("The declaration is complete").wait_for()
    sheet = read_sheet(path)
    expected = propose(sheet, label, next(iter(sheet.persons), None)).spec
    assert declared(page) == expected


@pytest.mark.browser
def test_a_row_says_where_it_comes_from_until_its_owner_changes_it(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(HOSPITAL)
    page = with_file(open_page, whole, path)
    row = page.get_by_role("row").filter(has_text="admitted")
    row.get_by_text("check that this is public knowledge").wait_for()
    page.get_by_label("Highest admitted").fill("2029-12-31")
    page.get_by_label("Highest admitted").press("Enter")
    row.get_by_text("as you say").wait_for()
    page.get_by_label("Use weight").uncheck()
    page.get_by_label("Who is protected?").select_option("")
    page.get_by_label("Which column is predicted?").select_option("outcome")
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_text("The declaration is complete").wait_for()
    spec = declared(page)
    assert [each["name"] for each in spec["features"]["columns"]] == ["age", "sex", "admitted"]
    assert spec["features"]["columns"][2]["range"][1] == "2029-12-31" and spec["privacy"]["unit"] == "example"


def posts(page: Any) -> list[str]:
    """What the page sends from here on: the bodies of its POST requests."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or "") if request.method == "POST" else None)
    return sent


@pytest.mark.browser
def test_of_many_columns_only_what_is_public_by_name_is_declared(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    names = [f"c{at}" for at in range(203)]
    lines = [["age", "sex", *names, "outcome"]]
    lines += [
        ["" if i == 7 else str(20 + i), "FM"[i % 2], *(f"secret{i % 3}" for _ in names), str(i % 2)] for i in range(40)
    ]
    path = tmp_path / "wide.csv"
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    page = open_page(PAGE, whole[0].owner)
    sent = posts(page)
    page.get_by_label("Data file").set_input_files(path)
    page.get_by_label("Which column is predicted?").select_option("outcome")
    for name in ("outcome", "Number of records"):
        page.get_by_role("row").filter(has_text=name).get_by_text("check that this is public knowledge").wait_for()
    page.get_by_text("only what is public by a column's name is declared, 2 of them").wait_for()
    assert sent == []
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_text("The declaration is complete").wait_for()
    assert declared(page)["features"]["columns"] == [
        {"name": "age", "kind": "number", "range": [0, 110]},
        {"name": "sex", "kind": "category", "values": ["F", "M"], "unknown": "other"},
    ]
    assert declared(page) == propose(read_sheet(path), "outcome").spec
    assert sent and not any("secret" in each for each in sent)


WRONG = "code,age,y\n" + "".join(f"{i * 7},{'' if i == 3 else 20 + i % 60},{i % 2}\n" for i in range(100))


@pytest.mark.browser
def test_wrong_cells_are_listed_before_anything_is_sent(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    """One typing error does not make a column of numbers something else: its record, column and value are named."""
    path = tmp_path / "wrong.csv"
    path.write_text(WRONG.replace("\n70,", "\nn/a <b>,"))
    page = open_page(PAGE, whole[0].owner)
    sent = posts(page)
    page.get_by_label("Data file").set_input_files(path)
    page.get_by_label("Which column is predicted?").select_option("y")
    listed = page.locator("#wrong-cells li")
    listed.first.wait_for()
    assert listed.all_text_contents() == ["record 11, code: “n/a <b>”"] and sent == []
    (cell,) = propose(read_sheet(path), "y").wrong
    assert (cell.record, cell.column, cell.value) == (11, "code", "n/a <b>")
    page.get_by_label("Missing cells of age").select_option("refuse")
    page.get_by_text("record 4, age: empty").wait_for()
    page.get_by_label("Use code").uncheck()
    page.get_by_text("record 11, code").wait_for(state="detached")
    page.get_by_label("Classes of y").fill("0, 2")
    page.get_by_label("Classes of y").press("Enter")
    page.get_by_text("the first ten").wait_for()
    assert listed.count() == 10


@pytest.mark.browser
def test_counts_are_marked_until_their_owner_says_them(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(HOSPITAL)
    page = with_file(open_page, whole, path)
    page.get_by_label("Which column is predicted?").select_option("outcome")
    for name, value in (("Number of people", "800"), ("Most records of one person", "5")):
        row = page.get_by_role("row").filter(has_text=name)
        row.get_by_text("check that this is public knowledge").wait_for()
        page.get_by_label(name).fill(value)
        page.get_by_label(name).press("Enter")
        row.get_by_text("as you say").wait_for()
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_text("The declaration is complete").wait_for()
    privacy = declared(page)["privacy"]
    assert (privacy["records"], privacy["max_records_per_user"]) == (800, 5)


@pytest.mark.browser
def test_a_file_without_rows_sends_its_format_by_a_button(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    path = write(tmp_path / "d.npz", "npz", number_rows(150))
    page = open_page(PAGE, whole[0].owner)
    sent = posts(page)
    page.get_by_label("Data file").set_input_files(path)
    button = page.get_by_role("button", name="Declare the format npz")
    button.wait_for()
    assert "scrimp datasets init 'd.npz' --label COLUMN" in page.locator("#assistant pre").text_content()
    assert sent == [] and declared(page)["format"] == "csv"
    with page.expect_response(f"**{PAGE}/draft"):
        button.click()
    assert (declared(page)["format"], declared(page)["features"]) == ("npz", {"kind": "tensor"})


@pytest.mark.browser
def test_a_hostile_file_is_shown_as_text_and_runs_nothing(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    hostile = "<img src=x onerror=window.ran=1>"
    path = tmp_path / f"{hostile}.csv"
    path.write_text(f"{hostile},{hostile} 2,y\n" + "".join(f"{hostile},{i},{i % 2}{hostile}\n" for i in range(40)))
    page = with_file(open_page, whole, path)
    page.get_by_label("Which column is predicted?").select_option("y")
    page.get_by_role("rowheader", name=hostile, exact=True).wait_for()
    assert page.get_by_label(f"Values of {hostile}").input_value() == hostile
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_text("The declaration is complete").wait_for()
    assert declared(page)["features"]["columns"][0]["values"] == [hostile]
    assert page.locator("img[src=x], img[onerror]").count() == 0 and page.evaluate("window.ran") is None


@pytest.mark.browser
def test_the_page_says_whether_the_file_or_the_service_failed(
    open_page: Callable[..., Any], whole: Whole, tmp_path: Path
) -> None:
    good, bad = tmp_path / "stays.csv", tmp_path / "bad.csv"
    good.write_text(HOSPITAL)
    bad.write_text("one column\n1\n")
    page = open_page(PAGE, whole[0].owner)
    page.get_by_label("Data file").set_input_files(bad)
    page.get_by_text("cannot be read as CSV").wait_for()
    page.context.clear_cookies()  # signed out in another tab
    page.get_by_label("Data file").set_input_files(good)
    page.get_by_text("list of well-known columns").wait_for()


def datasets_of(scene: Scene) -> int:
    with scene.db.read() as session:
        return session.scalar(select(func.count()).select_from(Dataset)) or 0


def test_a_check_stores_nothing_and_a_registration_answers_its_owner(
    whole: Whole, signed_in: SignedIn, tmp_path: Path
) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    token = {"X-CSRF-Token": token_of(browser.get(PAGE))}
    privacy = {"sensitivity": "private", "records": 213, "cap": {"epsilon": 2.0}, "filter": "gdp"}
    features = {"kind": "columns", "columns": ["age", "height"]}
    task = {"kind": "classification", "label": "outcome", "classes": [0, 1]}
    spec = dataset_spec(name="people", features=features, task=task, privacy=privacy)
    content = table(tmp_path / "people.csv", 200).read_bytes()

    def send(path: str, headers: dict[str, str], **changes: Any) -> Any:
        files = {"spec": (None, json.dumps(spec | changes)), "file": ("people.csv", content)}
        return browser.client.post(f"{PAGE}/{path}", files=files, headers=headers)

    before = datasets_of(scene)
    checked = send("check", token)
    assert checked.status_code == 200 and "200 records" in checked.text and 'data-take="200"' in checked.text
    refused = send("check", token, task=task | {"label": "nope"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/task/label")
    assert send("file", {}).status_code == 403, "without the form's token"
    assert datasets_of(scene) == before
    made = send("file", token)
    assert made.status_code == 200 and "Registered." in made.text and "/dashboard/datasets/ds_" in made.text
    assert datasets_of(scene) == before + 1
    assert send("file", token).json()["type"] == "/problems/duplicate-name"


ODD = [
    '{"name": "\\ud800"}',
    '{"task": {"kind": []}}',
    '{"holdout": {}}',
    '{"name": "d", "holdout": {"kind": []}}',
    "[",
]
ODD += ['{"privacy": [1], "task": [1], "features": 3, "holdout": [2], "csv": [3]}', '{"privacy": {"cap": [1]}}', "{}"]
ODD += ['{"task": %s}' % ("[" * depth + "]" * depth) for depth in (65, 600, 900)]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_json_that_is_no_declaration_is_answered_and_kept(whole: Whole, signed_in: SignedIn, text: str) -> None:
    browser = signed_in("owner")
    csrf = token_of(browser.get(PAGE))
    for source in ("json", "form"):
        page = browser.client.post(f"{PAGE}/draft", data={"csrf": csrf, "json": text, "source": source})
        assert page.status_code == 200, text
        assert "to change" in page.text or "fill in the form" in page.text, text


def test_refusals_of_the_api_stand_at_their_fields_and_are_text(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("owner")
    sent = {"csrf": token_of(browser.get(PAGE)), "source": "json", "json": json.dumps(dataset_spec())}
    refused = json.dumps([{"pointer": "/task/label", "detail": XSS}])
    page = browser.client.post(f"{PAGE}/draft", data=sent | {"refused": refused})
    assert page.status_code == 200 and 'id="f-task-label-error">&lt;script&gt;' in page.text and XSS not in page.text
    for odd in ("[", "{}", '[{"pointer": 1}]', "null"):
        assert browser.client.post(f"{PAGE}/draft", data=sent | {"refused": odd}).status_code == 200
    empty = browser.client.post(f"{PAGE}/draft", data=sent | {"json": json.dumps(first_declaration().document)})
    assert 'href="#f-name"' in empty.text and 'href="#f-task-label"' in empty.text


def reading(scene: Scene, state: str, **values: Any) -> str:
    """A registration that another process reads, or that has ended."""
    dataset_id, spec = new_id("ds"), DatasetSpec.model_validate(dataset_spec(name=f"a-{state}-set"))
    with scene.db.write() as session:
        row = DatasetReading(
            id=dataset_id,
            name=spec.name,
            owner_key=scene.owner.id,
            state=state,
            spec=spec.model_dump(mode="json"),
            sources={},
            bytes=50_000_000,
            created_at=now(),
            **values,
        )
        session.add(row)
        session.flush()
        lease = {"lease_until": in_seconds(3600.0), "lease_clock": ClockName()}
        session.execute(update(DatasetReading).where(DatasetReading.id == dataset_id).values(**lease))
    return dataset_id


def test_a_file_that_is_read_in_the_background_shows_how_far_it_is(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    problem = {"detail": XSS, "errors": [{"pointer": "/features/columns/1", "detail": "3 cells are not numbers"}]}
    going = reading(scene, "reading", bytes_read=12_345_678)
    refused = reading(scene, "rejected", outcome={"problem": problem}, ended_at=now())
    page = browser.get(f"/dashboard/datasets/{going}").text
    assert f'data-live="/dashboard/live/readings/{going}"' in page and 'value="12345678"' in page
    assert 'data-poll="1000"' in browser.get(f"/dashboard/live/readings/{going}").text
    live = browser.get(f"/dashboard/live/readings/{refused}").text
    assert "data-poll" not in live and "/features/columns/1" in live and XSS not in live
    cards = browser.get("/dashboard/datasets").text
    assert "Its file is being read" in cards and "Its file was rejected" in cards
    assert browser.client.get(f"/dashboard/submit?dataset={going}").status_code < 500
    for each in (going, refused):
        assert signed_in("analyst").client.get(f"/dashboard/live/readings/{each}").status_code == 404
    with scene.db.write() as session:
        ready = session.scalars(select(Dataset).where(Dataset.owner_key == scene.owner.id)).first()
    assert ready is not None
    assert "The file is read" in browser.get(f"/dashboard/live/readings/{ready.id}").text


def test_a_large_file_has_arrived_before_it_is_read(
    signed_in: SignedIn, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    browser = signed_in("owner")
    state = browser.client.app.state  # type: ignore[attr-defined]
    request.addfinalizer(partial(setattr, state, "settings", state.settings))
    state.settings = state.settings.model_copy(update={"read_at_once_bytes": 10})
    spec = dataset_spec(name="large", features={"kind": "columns", "columns": ["age", "height"]})
    files = {"spec": (None, json.dumps(spec)), "file": ("people.csv", table(tmp_path / "people.csv", 20).read_bytes())}
    headers = {"X-CSRF-Token": token_of(browser.get(PAGE))}
    made = browser.client.post(f"{PAGE}/file", files=files, headers=headers)
    assert made.status_code == 200 and "is being read" in made.text and "/dashboard/datasets/ds_" in made.text
