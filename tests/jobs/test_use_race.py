"""A grant that becomes one for something else while a job is priced: the job is refused under the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.admission.hold import hold
from app.admission.price import price
from app.admission.request import Request, Resolved, resolve
from app.admission.service import Admission
from app.db.database import Database
from app.db.models import Job
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from core.contracts.governance import Terms
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from tests.factories import add_dataset, job_spec

RULES = {"controller": "A hospital", "purposes": ["care", "billing"]}
Give = Callable[[Terms], None]


@pytest.fixture
def setting(api: Any, db: Database) -> tuple[Admission, Give, Callable[[], Resolved]]:
    """Admission, the owner's hand, and a job of the grant's holder as it is resolved now."""
    dataset = add_dataset(db, owner=api.key_ids["owner"], shared=False, governance=RULES)
    owner = Caller(api.key_ids["owner"], "owner", "owner")
    holder = Caller(api.key_ids["analyst"], "analyst", "analyst")
    state = api.client.app.state
    admission = Admission(db, state.pricing, Heads.of(state.settings))

    def give(terms: Terms) -> None:
        with db.write() as session:
            grants.give(session, owner, dataset, holder.id, "train", None, terms)

    def resolved() -> Resolved:
        return resolve(db, Request.of(holder, JobSpec.model_validate(job_spec(dataset)), admission.limits))

    return admission, give, resolved


@pytest.mark.parametrize(
    ("before", "after", "pointer"),
    [
        ({"purpose": "care"}, {"purpose": "billing"}, "/use/purpose"),
        ({}, {"permit": "17/2026"}, "/use"),
    ],
)
def test_a_grant_that_changes_while_a_job_is_priced_refuses_it(
    setting: Any, db: Database, before: dict[str, str], after: dict[str, str], pointer: str
) -> None:
    admission, give, resolved = setting
    give(Terms.model_validate(before))
    request = resolved()
    priced = price(admission.pricing.of(request.request.caller.id), request)
    give(Terms.model_validate(after))
    with pytest.raises(InvalidRequest) as refused:
        hold(admission, request, priced, "once")
    assert refused.value.members["errors"][0]["pointer"] == pointer
    with db.read() as session:
        assert session.query(Job).count() == 0, "nothing is held"
    again = resolved()
    assert hold(admission, again, price(admission.pricing.of(again.request.caller.id), again), "twice").job is not None
