"""A data set's ledger over time, and its entries as CSV: shares of today's budget first, exact amounts after them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from app.dashboard.burndown import burndowns
from app.dashboard.names import key_names
from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.db.database import Database
from app.db.models import Account
from app.grants.service import find, require
from app.ledger import repository, summary
from app.ledger.accounts import filter_for
from app.web.deps import Db, Pricing
from app.web.route_operation import Page
from core.ids import now, rfc3339

router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)
BATCH = 500
# Keys are named by their ids: a name could be a formula to the program that opens the file.
COLUMNS = (
    *("entry", "at", "kind", "job", "train_share", "holdout_share", "train", "holdout", "train_released"),
    *("holdout_released", "unit", "actor", "hash"),
)


@router.get("/datasets/{dataset_id}/entries.csv")
@Page("view")
def entries_csv(dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Sends every entry of a ledger, oldest first, as a file. The same as `GET …/ledger/entries`."""
    with db.read() as session:
        dataset = require(session, viewer.caller, dataset_id, "view")
        _dataset, account = repository.dataset_with_account(session, dataset.id)
        name = dataset.name
    disposition = f'attachment; filename="{name}-entries.csv"'
    return StreamingResponse(
        _lines(db, account), media_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition}
    )


@router.get("/live/datasets/{dataset_id}/burndown")
@Page("view")
def burndown(request: Request, dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """What was spent and held over time: a part of a data set's page."""
    with db.read() as session:
        dataset, access = find(session, viewer.caller, dataset_id)
        _dataset, account = repository.dataset_with_account(session, dataset.id)
        drawings = burndowns(session, account, partial(key_names, session, viewer.caller, access))
    return render(request, "_burndown.html", viewer=viewer, drawings=drawings, now=now())


def _lines(db: Database, account: Account) -> Iterator[str]:
    """The file's lines, a batch of entries at a time."""
    out, unit = io.StringIO(), filter_for(account.filter, account.order).unit
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    last = 0
    while True:
        with db.read() as session:
            page = repository.page_of_entries(session, account.dataset_id, after=last, job=None, limit=BATCH)
        for entry in page:
            table.writerow(
                (
                    *(entry.seq, rfc3339(entry.created_at), entry.kind, entry.job_id or ""),
                    *(_share(entry.train, account.train_budget), _share(entry.holdout, account.holdout_budget)),
                    *(entry.train, entry.holdout, entry.train_released, entry.holdout_released),
                    *(unit, entry.actor, entry.hash),
                )
            )
        yield out.getvalue()
        if len(page) <= BATCH:
            return
        out.seek(0)
        out.truncate()
        last = page[-1].seq


def _share(amount: int, budget: int) -> str:
    """A share of today's budget; empty without one."""
    return f"{amount / budget:.6f}" if budget > 0 else ""


@router.get("/live/datasets/{dataset_id}/comparison")
@Page("view")
def live_comparison(dataset_id: Id, request: Request, db: Db, pricing: Pricing, viewer: CurrentViewer) -> Response:
    """Other accountants' figures: a page of its own, because composing many jobs can take seconds."""
    with db.read() as session:
        dataset = require(session, viewer.caller, dataset_id, "view")
    figures = summary.overview(db, pricing, dataset.id)
    return render(request, "_comparison.html", viewer=viewer, ledger=figures)
