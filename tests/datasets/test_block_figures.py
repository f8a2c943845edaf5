"""What is left of a data set that has grown, and what a job reads of it: API, page and list say one thing."""

from __future__ import annotations

from app.dashboard.dataset_view import dataset_page
from app.dashboard.entry_pages import EntriesQuery
from app.dashboard.job_view import job_page
from app.dashboard.viewer import Viewer
from app.datasets.growth import family
from app.db.models import Dataset
from app.keys.service import Caller
from app.ledger import accounts, block_accounts
from app.lifecycle.queue.presence import GpuWorkers
from tests.datasets.conftest import Api
from tests.datasets.test_block_jobs import FULL, account, exhaust, grown, post, submit
from tests.datasets.test_blocks import retire
from tests.factories import job_spec


def test_what_is_left_is_said_alike_by_api_page_and_list_after_a_block_was_retired(api: Api) -> None:
    """`remaining` was 0 beside `epsilon_remaining` 5.394, and the page had no room for jobs that were admitted."""
    first, _two = grown(api)
    job = submit(api, first).json()["id"]
    assert retire(api, first, "first").status_code == 200
    says_what_is_admitted(api, first, job, "two")


def test_what_is_left_is_that_of_the_block_with_the_most(api: Api) -> None:
    first, two = grown(api)
    job = submit(api, first).json()["id"]
    exhaust(api, two)
    says_what_is_admitted(api, first, job, "first")
    exhaust(api, first)
    ledger = api.client.get(f"/v1/datasets/{first}/ledger", headers=api.headers("owner")).json()
    assert ledger["accounts"]["train"]["remaining"] == ledger["epsilon_remaining"]["value"] == 0
    assert pages(api, first, job) == (0, 0) and submit(api, first, "none").status_code == 409


def says_what_is_admitted(api: Api, dataset: str, job: str, block: str) -> None:
    """One block pays: all say what is left there, and a job is admitted."""
    (other,) = {each.id for each in _blocks(api, dataset) if block_accounts.label_of(each) == block}
    left = accounts.remaining_of(account(api, other))
    for address in (f"/v1/datasets/{dataset}/ledger", f"/v1/datasets/{dataset}"):
        found = api.client.get(address, headers=api.headers("owner")).json()
        ledger = found.get("ledger", found)
        assert ledger["remaining_block"] == block
        assert {name: each["remaining"] for name, each in ledger["accounts"].items()} == left
        assert ledger["epsilon_remaining"]["value"] > 0
    quoted = post(api, "/v1/quotes", job_spec(dataset, **FULL)).json()
    assert pages(api, dataset, job) == (quoted["jobs_that_fit"],) * 2 and quoted["jobs_that_fit"] > 0
    assert submit(api, dataset, "admitted").status_code == 201


def _blocks(api: Api, dataset: str) -> list[Dataset]:
    with api.db.read() as session:
        return family(session, dataset)


def pages(api: Api, dataset: str, job: str) -> tuple[int | None, int | None]:
    """How many jobs have room by the data set's page, and by the job's."""
    viewer = Viewer(Caller(api.key_ids["owner"], "owner", "owner"), None)
    with api.db.read() as session:
        one = dataset_page(session, dataset, viewer, EntriesQuery())
        return one.room, job_page(session, job, viewer, GpuWorkers(api.db, 30.0)).room


def test_a_quote_and_a_job_say_which_blocks_are_read_and_their_declared_records(api: Api) -> None:
    first, _two = grown(api)
    both = [{"label": "first", "records": 60}, {"label": "two", "records": 100}]
    assert post(api, "/v1/quotes", job_spec(first, **FULL)).json()["reads"] == both
    job = submit(api, first, blocks=["two"]).json()
    assert job["quote"]["reads"] == [both[1]]
    listed = api.client.get("/v1/jobs", headers=api.headers("owner")).json()["items"]
    assert [each["quote"]["reads"] for each in listed] == [[both[1]]]


def test_a_quote_names_the_block_first_where_it_alone_is_read(api: Api) -> None:
    """`reads` would be that of a data set that never grew."""
    first, two = grown(api)

    def warned(**changes: object) -> bool:
        quote = post(api, "/v1/quotes", job_spec(first, **FULL, **changes)).json()
        return any("`first` alone" in each for each in quote["warnings"])

    assert not warned() and not warned(blocks=["first"])
    exhaust(api, two)
    assert warned() and not warned(blocks=["first"])
