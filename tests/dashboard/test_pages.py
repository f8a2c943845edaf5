"""What the pages say, to whom, and what they never say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from sqlalchemy import update

from app.dashboard import page as dashboard_page
from app.dashboard.declared_words import task_in_words
from app.db.models import Account, Dataset, Job, LedgerEntry, Worker
from app.ledger import certificates
from app.ledger.accounts import remaining_of
from app.ledger.transparency.heads import Heads
from app.ledger.verifications import check
from app.web.headers import POLICIES
from core.contracts.dataset_spec import Task
from core.ids import now
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import SHA, XSS, Everything, Scene
from tests.factories import add_dataset
from tests.privacy.test_canaries import audited

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]
CSP = POLICIES["/dashboard"]
HERE = Path(dashboard_page.__file__).parent


class Inline(HTMLParser):
    """Finds what a strict Content-Security-Policy would block, and what is not labelled."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.ids += [names["id"] or ""] if "id" in names else []
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        for name, value in attrs:
            if name == "style" or name.startswith("on") or (value or "").lower().startswith(("javascript:", "data:")):
                self.found.append(f"{tag} {name}")
            if name in ("src", "href", "action") and re.match(r"(?i)[a-z]+:|//", value or ""):
                self.found.append(f"{tag} {name}={value}")


def addresses(ids: Everything) -> list[str]:
    jobs = [value for name, value in vars(ids).items() if str(value).startswith("job_")]
    datasets = [ids.reviews, ids.incomes, ids.digits]
    return [
        "/dashboard",
        "/dashboard?status=running",
        "/dashboard?status=paused",
        f"/dashboard?dataset={ids.reviews}&status=",
        "/dashboard/live/jobs",
        "/dashboard/datasets",
        "/dashboard/submit",
        f"/dashboard/submit?job={ids.succeeded}",
        "/dashboard?q=e&sort=name",
        f"/dashboard/compare?job={ids.succeeded}&job={ids.running}&job={ids.public}&job={ids.evil}&job={ids.poisson}",
        "/dashboard/nothing",
        *(f"/dashboard/jobs/{each}" for each in jobs),
        *(f"/dashboard/live/jobs/{each}" for each in jobs),
        *(f"/dashboard/datasets/{each}?check=true" for each in datasets),
        *(f"/dashboard/live/datasets/{each}" for each in datasets[:2]),
        *(f"/dashboard/live/datasets/{each}/burndown" for each in datasets[:2]),
    ]


KINDS_OF_FEATURES: list[tuple[dict[str, Any], str]] = [
    ({"features": {"kind": "columns", "columns": ["a", "b"]}}, "2 columns"),
    ({"features": {"kind": "table", "columns": [{"name": "a", "kind": "number"}]}}, "1 columns"),
    ({"format": "npz", "features": {"kind": "tensor", "array": "x"}}, "array <code>x</code>"),
    ({"features": {"kind": "text", "column": "t"}}, "texts of <code>t</code>"),
    (
        {"features": {"kind": "hashed_text", "column": "<t>"}},
        "hashed text of <code>&lt;t&gt;</code>, 32\u202f768 buckets",
    ),
    ({"features": {"kind": "nodes", "columns": ["a", "b"]}}, "2 columns of a graph's nodes"),
    (
        {"format": "images", "features": {"kind": "tensor", "array": "x", "image": {"height": 8, "width": 9}}},
        "images, 9 × 8 pixels, 3 channels",
    ),
]
KINDS_OF_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "regression", "label": "y"}, "regression, label <code>y</code>"),
    ({"kind": "rating", "scale": [1, 5]}, "rating, <code>rating</code> of each user's <code>item_id</code>"),
    ({"kind": "next_item"}, "each user's <code>item_id</code> by <code>timestamp</code>"),
    ({"kind": "language_model", "prompt": "q"}, "of answers to <code>q</code>"),
    ({"kind": "language_model"}, "language_model"),
]


@pytest.mark.parametrize(("task", "said"), KINDS_OF_TASKS)
def test_a_task_is_named_by_its_own_columns(task: dict[str, Any], said: str) -> None:
    """Ratings had a label of no name."""
    declared: Task = TypeAdapter(Task).validate_python(task)
    assert said in task_in_words(declared) and "<code></code>" not in task_in_words(declared)


@pytest.mark.parametrize(("declared", "said"), KINDS_OF_FEATURES)
def test_the_page_of_a_data_set_names_its_features(
    scene: Scene, visit: Callable[[], Browser], declared: dict[str, Any], said: str
) -> None:
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="other", **declared)
    browser = visit()
    browser.sign_in(scene.owner)
    page = browser.get(f"/dashboard/datasets/{dataset}")
    assert page.status_code == 200 and said in page.text


@pytest.mark.parametrize("role", ["admin", "owner", "analyst"])
def test_every_page_is_whole_safe_and_free_of_inline_code(whole: Whole, signed_in: SignedIn, role: str) -> None:
    for address in addresses(whole[1]):
        page = signed_in(role).get(address)
        assert page.status_code == (404 if address.endswith("nothing") else 200), address
        assert page.headers["content-security-policy"] == CSP
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
        assert page.headers["cache-control"] == "no-store"
        read = Inline()
        read.feed(page.text)
        assert read.found == []
        assert len(read.ids) == len(set(read.ids)), address
        assert XSS not in page.text
        assert "None" not in page.text, address


def test_the_login_page_and_the_static_files_are_open_and_as_strict(whole: Whole, signed_in: SignedIn) -> None:
    browser = signed_in("admin")
    for address in ("/dashboard/static/style.css", "/dashboard/static/live.js", "/dashboard/static/icon.svg"):
        answer = browser.client.get(address, headers={"Cookie": ""})
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["cache-control"] == "no-cache"
    for address in ("../routes.py", "..%2froutes.py", "%2e%2e/routes.py", "/etc/passwd", "", "nothing.css", "x%00.css"):
        assert browser.get(f"/dashboard/static/{address}").status_code == 404, address


def test_templates_and_scripts_hold_no_inline_code_and_load_nothing_from_elsewhere() -> None:
    for path in (HERE / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\sstyle=|\son[a-z]+=|<style|javascript:|\| *safe|autoescape", text), path.name
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), path.name
        assert not re.search(r"""(src|href|action)="(https?:)?//""", text), path.name
    for path in (HERE / "static").glob("*.*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|eval\(|innerHTML|document\.write", text), path.name


def test_the_list_shows_every_job_with_status_price_progress_and_score(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    text = signed_in("analyst").get("/dashboard").text
    rows = dict(re.findall(r'<tr id="(job_\w+)">(.*?)</tr>', text, re.DOTALL))
    assert list(rows) == [
        ids.running,
        ids.queued,
        ids.cancelling,
        ids.evil,
        ids.poisson,
        ids.public,
        ids.failed,
        ids.cancelled,
        ids.succeeded,
    ]
    for name in ("running", "queued", "cancelling", "failed", "cancelled", "succeeded"):
        assert f"chip-{name}" in rows[getattr(ids, name)]
    assert 'max="50" value="20"' in rows[ids.running]
    assert "0.806 ± 0.010" in rows[ids.running]
    assert "0.8246 ± 0.0040" in rows[ids.succeeded]
    assert re.search(r"ε 1\.00</span>.*δ 1e-5 · gdp", rows[ids.succeeded])
    assert "internal" in rows[ids.failed]
    assert "public data" in rows[ids.public]
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in rows[ids.evil]


def test_the_list_filters_and_pages(whole: Whole, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch) -> None:
    _scene, ids = whole
    browser = signed_in("analyst")

    def shown(address: str) -> list[str]:
        return re.findall(r'<tr id="(job_\w+)">', browser.get(address).text)

    assert shown("/dashboard?status=failed") == [ids.failed]
    assert shown(f"/dashboard?dataset={ids.incomes}") == [ids.poisson, ids.failed]
    assert shown(f"/dashboard?dataset={ids.incomes}&status=running") == [ids.poisson]
    assert "No job matches" in browser.get("/dashboard?status=paused").text
    assert browser.get("/dashboard?dataset=ds_nothing").status_code == 404
    assert browser.get("/dashboard?status=nonsense").status_code == 422
    assert browser.get("/dashboard?after=nonsense").status_code == 422
    everyone = shown("/dashboard")
    monkeypatch.setattr("app.dashboard.job_list.ROWS", 4)
    pages, address = [], "/dashboard?status="
    while address:
        pages.append(shown(address))
        following = re.search(r'rel="next" href="([^"]+)"', browser.get(address).text)
        address = following.group(1).replace("&amp;", "&") if following else ""
    assert [len(each) for each in pages] == [4, 4, 1]
    assert [each for page in pages for each in page] == everyone


def test_the_address_with_a_slash_leads_home(signed_in: SignedIn) -> None:
    answer = signed_in("analyst").get("/dashboard/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")


def test_an_empty_service_says_how_to_begin(visit: Callable[[], Browser], scene: Scene) -> None:
    browser = visit()
    browser.sign_in(scene.owner)
    text = browser.get("/dashboard").text
    for part in ("No jobs yet", "scrimp datasets add", "scrimp jobs submit", "curl http://testserver/v1/jobs"):
        assert part in text
    assert "No data sets yet" in browser.get("/dashboard/datasets").text


def test_a_jobs_page_explains_its_privacy_and_its_numbers(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    text = signed_in("analyst").get(f"/dashboard/jobs/{ids.succeeded}").text
    with scene.db.read() as session:
        job = session.get_one(Job, ids.succeeded)
        posted = session.query(LedgerEntry).filter_by(job_id=job.id, kind="post").one()
    for part in (
        "a factor of at most <strong>2.72</strong>",
        "(ε = 1.00, δ = 1e-5)-differential privacy",
        "gdp: exact for full batch",
        "one example; add or remove one",
        "every record takes part",
        "10 noisy sums, noise of standard deviation 20 on a sum over 5\u202f000 records",
        "How this number was released: the counts of right and of wrong predictions on the hold-out part",
        f"{posted.train / 1e12:.12f}",
        "nothing else: no training loss, gradient norm, batch size, step time or seed",
        'aria-label="accuracy by training step; arrow keys read out its points"',
        '"step 50","0.8246 ± 0.0040"',
    ):
        assert part in text, part
    assert text.count('","0.8') == 7, "seven of ten scores, each in its words"
    assert "data-poll" not in text.split("<main")[1]  # final: nothing is asked again


def test_a_job_on_public_data_claims_nothing(whole: Whole, signed_in: SignedIn) -> None:
    text = signed_in("analyst").get(f"/dashboard/jobs/{whole[1].public}").text
    assert "No privacy is claimed" in text
    assert "Exact: measured on public data" in text
    assert "Nothing to certify: no privacy is claimed" in text
    assert "±" not in text.split("Released metrics")[1].split("</section>")[0]


def test_failures_warnings_and_lost_attempts_are_shown(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    failed = signed_in("analyst").get(f"/dashboard/jobs/{ids.failed}").text
    assert "Failed: internal." in failed and "memory" not in failed
    poisson = signed_in("analyst").get(f"/dashboard/jobs/{ids.poisson}").text
    assert "chip-lost" in poisson
    assert "ended without a result" in poisson
    assert "each record takes part independently" in poisson
    assert "layer by layer" in poisson and "mlp" in poisson and "[32, 16]" in poisson


def test_a_job_that_ended_early_shows_what_it_cost_and_no_guarantee(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    browser = signed_in("analyst")
    cancelled = browser.get(f"/dashboard/jobs/{ids.cancelled}").text
    failed = browser.get(f"/dashboard/jobs/{ids.failed}").text
    # The hold-out's account was never touched, and 20 of 50 steps are 40 % of the other's hold.
    assert (
        "was cancelled. What it released cost at most ε = 0.50 (planned), δ = 1e-5; 40 % of it was charged" in cancelled
    )
    assert "failed. What it released cost at most ε = " in failed and "; 100 % of it was charged" in failed
    for page in (cancelled, failed):
        assert "Adding or removing any one" not in page and "the model's weights" not in page
        assert "<dt>Guarantee</dt>" not in page.split('<h2 id="certificate"')[0]
    row = browser.get("/dashboard?status=cancelled").text
    assert "at most" in row and "40 % of it charged" in row


def test_the_headline_is_the_share_of_the_budget_and_the_room(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser = signed_in("analyst")
    text = browser.get(f"/dashboard/datasets/{ids.reviews}").text
    assert re.search(r"<strong>\d+\.\d % spent</strong>", text)
    room = re.search(r"room for (\d+) more jobs like the newest", text)
    with scene.db.read() as session:
        charge = session.get_one(Job, ids.running).quote["charge"]  # the newest
        left = remaining_of(session.get_one(Account, ids.reviews))
    assert room is not None and int(room[1]) == min(left[name] // charge[name] for name in left)
    assert re.search(r"Room for \d+ more jobs? like this\.", browser.get(f"/dashboard/jobs/{ids.succeeded}").text)
    assert re.search(r"<strong>\d+\.\d % spent</strong>", browser.get("/dashboard/datasets").text)


def test_the_certificate_is_shown_and_downloads_with_the_session(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    browser = signed_in("analyst")
    for job_id, steps in ((ids.succeeded, "50 started of 50"), (ids.cancelled, "20 started of 50")):
        page = browser.get(f"/dashboard/jobs/{job_id}").text
        file = browser.get(f"/dashboard/jobs/{job_id}/certificate")
        assert file.headers["content-disposition"] == f'attachment; filename="certificate-{job_id}.json"'
        document = json.loads(file.text)
        assert certificates.verify(document)
        assert document["signature"].replace("+", "&#43;") in page or document["signature"] in page
        assert steps in page and "<dt>Audit</dt>" not in page
    assert browser.get(f"/dashboard/jobs/{ids.running}/certificate").status_code == 409
    assert browser.get(f"/dashboard/jobs/{ids.public}/certificate").status_code == 404


@pytest.mark.parametrize("faulty", [False, True])
def test_the_certificate_shows_what_its_audit_found(scene: Scene, visit: Callable[[], Browser], faulty: bool) -> None:
    found = audited(1.25 if faulty else 1.0, 1, claimed=1.0, canaries=20_000)
    job_id = scene.job(scene.dataset("audited"), "audited", audit={"canaries": 20_000})
    log = scene.start(job_id)
    scene.step(log, 50)
    scene.finish(log, found)
    browser = visit()
    browser.sign_in(scene.analyst)
    page = browser.get(f"/dashboard/jobs/{job_id}").text
    assert found.statement in page
    assert ("do not rely on this certificate" in page.split("<dt>Audit</dt>")[1].split("</dd>")[0]) is faulty
    assert ("tell who runs the service" in page) is faulty


def test_artifacts_download_with_the_session(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    browser = signed_in("analyst")
    address = f"/dashboard/jobs/{ids.succeeded}/artifacts/model.safetensors"
    assert f'href="{address}"' in browser.get(f"/dashboard/jobs/{ids.succeeded}").text
    file = browser.get(address)
    assert (file.status_code, file.content) == (200, b"weights")
    assert file.headers["content-disposition"].startswith("attachment")
    # Not of the file's own time: that tells in fractions of a second when training ended.
    assert file.headers["etag"] == f'"{SHA}"'
    with _scene.db.read() as session:
        ended = session.get_one(Job, ids.succeeded).finished_at
    assert ended is not None and parsedate_to_datetime(file.headers["last-modified"]) == ended
    for name in ("nothing", "..%2f..%2fscrimp.db", "%2e%2e"):
        assert browser.get(f"/dashboard/jobs/{ids.succeeded}/artifacts/{name}").status_code == 404


@pytest.mark.parametrize("role", ["admin", "owner", "analyst"])
def test_the_hash_of_private_data_is_for_its_owner_and_admins(whole: Whole, signed_in: SignedIn, role: str) -> None:
    scene, ids = whole
    secret = "5ec2e7" * 10 + "abcd"
    with scene.db.write() as session:
        session.execute(update(Dataset).values(content_sha256=secret))
    text = "".join(signed_in(role).get(address).text for address in addresses(ids))
    assert (secret in text) == (role != "analyst")


def test_another_owner_does_not_see_the_hash_either(visit: Callable[[], Browser], scene: Scene) -> None:
    other = scene.key("owner")
    dataset = scene.dataset("reviews")  # granted to it
    browser = visit()
    browser.sign_in(other)
    page = browser.get(f"/dashboard/datasets/{dataset}")
    assert page.status_code == 200
    assert "SHA-256" not in page.text


def test_names_of_keys_are_not_for_analysts(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    address = f"/dashboard/datasets/{ids.reviews}"
    assert "Olga" in signed_in("admin").get(address).text
    seen = signed_in("analyst").get(address).text
    assert "Olga" not in seen
    assert scene.owner.id in seen
    assert ">you<" in seen


def test_a_data_sets_page_shows_budgets_entries_and_the_chain(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser = signed_in("analyst")
    assert "Not checked yet" in browser.get(f"/dashboard/datasets/{ids.reviews}?check=true").text
    check(scene.db, Heads.of(scene.settings), ids.reviews)
    text = browser.get(f"/dashboard/datasets/{ids.reviews}?check=true").text
    entries = re.findall(r'<tr id="entry-(\d+)">', text)
    with scene.db.read() as session:
        count = session.query(LedgerEntry).filter_by(dataset_id=ids.reviews).count()
    assert [int(each) for each in entries] == list(range(count, 0, -1))
    assert re.search(r"train account: \d+\.\d % spent, \d+\.\d % held, \d+\.\d % left", text)
    assert re.search(r"holdout account: ", text)
    assert f"All {count} entries fit" in text
    public = browser.get(f"/dashboard/datasets/{ids.digits}?check=true").text
    assert "no privacy is claimed for public data" in public
    assert browser.get(f"/dashboard/live/datasets/{ids.digits}").status_code == 404


def test_entries_page_backwards(whole: Whole, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dashboard.entry_pages.ENTRIES_SHOWN", 4)
    address, pages = f"/dashboard/datasets/{whole[1].reviews}", []
    while address:
        text = signed_in("owner").get(address).text
        pages.append([int(each) for each in re.findall(r'<tr id="entry-(\d+)">', text)])
        older = re.search(r'href="([^"]+)#entries">Older', text)
        address = older.group(1) if older else ""
    shown = [seq for page in pages for seq in page]
    assert shown == list(range(len(shown), 0, -1))
    assert [len(each) for each in pages[:-1]] == [4] * (len(pages) - 1)
    beyond = signed_in("owner").get(f"/dashboard/datasets/{whole[1].reviews}?before=1000000")
    assert len(re.findall(r'<tr id="entry-', beyond.text)) == 4
    assert signed_in("owner").get(f"/dashboard/datasets/{whole[1].reviews}?before=0").status_code == 422


def test_a_broken_chain_is_named(visit: Callable[[], Browser], scene: Scene) -> None:
    dataset = scene.dataset("reviews")
    scene.job(dataset)
    with scene.db.write() as session:
        session.connection().exec_driver_sql("DROP TRIGGER ledger_entries_no_update")
        session.execute(update(LedgerEntry).where(LedgerEntry.seq == 2).values(train=1))
    check(scene.db, Heads.of(scene.settings), dataset)
    browser = visit()
    browser.sign_in(scene.analyst)
    assert "Not valid from entry 2." in browser.get(f"/dashboard/datasets/{dataset}?check=true").text


def test_other_accountants_are_compared(visit: Callable[[], Browser], scene: Scene) -> None:
    dataset = scene.dataset("reviews")
    scene.succeeded(dataset, "one", [0.8])
    browser = visit()
    browser.sign_in(scene.analyst)
    page = browser.get(f"/dashboard/live/datasets/{dataset}/comparison")
    assert page.status_code == 200
    assert len(re.findall(r"ε \d\.\d+</span>", page.text)) == 6
    assert "Spent so far" in page.text and "The guarantee is the cap" in page.text
    assert "as if all jobs had been fixed in advance" in page.text


def test_cancelling_needs_the_form_and_the_right(visit: Callable[[], Browser], scene: Scene) -> None:
    job_id = scene.job(scene.dataset("reviews"), by=scene.owner)
    address = f"/dashboard/jobs/{job_id}"
    analyst, owner = visit(), visit()
    analyst.sign_in(scene.analyst)
    owner.sign_in(scene.owner)
    assert "Cancel this job?" not in analyst.get(address).text
    forged = analyst.client.post(f"{address}/cancel", data={"csrf": token_of(analyst.get(address))})
    assert forged.status_code == 403
    assert owner.client.post(f"{address}/cancel").status_code == 403
    assert owner.client.get(f"{address}/cancel").status_code == 404
    page = owner.get(address)
    assert "Cancel this job?" in page.text
    done = owner.client.post(f"{address}/cancel", data={"csrf": token_of(page)})
    assert (done.status_code, done.headers["location"]) == (303, address)
    page = owner.get(address)
    assert "chip-cancelled" in page.text
    assert "Cancel this job?" not in page.text
    again = owner.client.post(f"{address}/cancel", data={"csrf": token_of(page)})
    assert again.status_code == 409
    assert "there is nothing to cancel" in again.text


@pytest.mark.parametrize(
    "address", ["jobs/job_nothing", "jobs/%00", "jobs/<script>", "datasets/ds_nothing", "live/jobs/x"]
)
def test_what_is_not_there_is_a_page_too(whole: Whole, signed_in: SignedIn, address: str) -> None:
    page = signed_in("analyst").get(f"/dashboard/{address}")
    assert page.status_code in (404, 422)
    assert page.headers["content-security-policy"] == CSP
    assert "Back to the jobs" in page.text
    assert "<script>alert" not in page.text


def test_the_workers_page_says_what_isolates_each_and_whose_clock_is_off(
    scene: Scene, visit: Callable[[], Browser]
) -> None:
    sandbox = {"seccomp": True, "landlock": True, "network": "loopback", "memory_limit_bytes": 2**30}
    rows = [("one", sandbox, 0.1), ("two", sandbox | {"landlock": False, "network": "host"}, -5.0), ("old", None, None)]
    with scene.db.write() as session:
        for name, isolated, skew in rows:
            at = now()
            session.add(
                Worker(name=f"{name}:1", host=name, pid=1, started_at=at, seen_at=at, sandbox=isolated, skew_s=skew)
            )
        row = Worker(name="four:1", host="four", pid=1, started_at=now(), seen_at=now(), volume="vol_a")
        session.add(row)
    browser = visit()
    browser.sign_in(scene.analyst)
    text = browser.get("/dashboard/workers").text
    assert "Reads data files, and runs no job" in text
    assert "all on" in text and "network loopback · 1.0 GiB" in text
    assert "no landlock, open network" in text and "its clock is 5.0 s behind" in text
    assert text.count("not known") == 4, "no device is known, and one isolation"
