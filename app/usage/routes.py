"""/v1/usage: what a fleet costs, by data set, team and month."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from app.keys.auth import CurrentKey
from app.usage import service
from app.usage.service import UsageView
from app.web.deps import Db
from app.web.pagination import After, Limit
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import NO_NUL

router = APIRouter(prefix="/v1", tags=["workers"])
MONTH = r"^20\d\d-(0[1-9]|1[0-2])$"
Since = Annotated[str | None, Query(pattern=MONTH, description="The first month; default: twelve in all.")]
Until = Annotated[str | None, Query(pattern=MONTH, description="The last month; default: this one.")]
OfDataset = Annotated[str | None, Query(max_length=100, pattern=NO_NUL, description="Only jobs on this data set.")]


@router.get("/usage")
@Operation("What jobs took.", audience="every key", leaves=leaves.ELSEWHERE, command="report", problems=("not-found",))
def show_usage(
    db: Db,
    caller: CurrentKey,
    dataset: OfDataset = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 50,
) -> UsageView:
    """Shows what jobs took that ended in these months (2026-11): processor and GPU seconds, bytes and ε.

    By data set, team and month, of the data sets that this key may see. `dataset` is an id or a name. Other keys' jobs
    are told apart for the data set's owner and admins alone.
    """
    with db.read() as session:
        return service.usage(session, caller, dataset, since, until, after, limit)
