"""/dashboard/datasets/{id}/statement: what all jobs on a data set spent and guarantee, in words and as files.

    statement        a page to read and to print
    statement.json   the signed evidence, as GET /v1/datasets/{id}/statement sends it
    statement.csv    the figures, a line for each block

A unit lies in one block, or has a share in each, so the block that spent most is the data set's: figures of blocks do
not add up.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from datetime import datetime
from statistics import NormalDist

from fastapi import APIRouter, Request, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.budgets.spending import spending
from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.db.models import Account, Dataset, LedgerEntry
from app.grants.service import require
from app.keys.service import Caller
from app.ledger import evidence, repository
from app.ledger.accounts import filter_for
from app.ledger.block_accounts import label_of
from app.ledger.signed_terms import Terms, envelope_of, terms_in
from app.ledger.statement_routes import document
from app.web.deps import Db
from app.web.route_operation import Page

router = APIRouter(prefix=f"{HOME}/datasets/{{dataset_id}}", include_in_schema=False, route_class=PageRoute)
ALPHAS = (0.001, 0.01, 0.1)
NORMAL = NormalDist()
COLUMNS = (
    *("block", "ledger", "state", "entries", "head", "filter", "order", "unit", "cap_epsilon", "largest_cap_epsilon"),
    *("cap_delta", "train_budget", "train_spent", "train_held", "holdout_budget", "holdout_spent", "holdout_held"),
    *("epsilon_spent", "epsilon_spent_and_held"),
)
GOVERNED = ("controller", "purposes", "legal_basis", "region", "retention", "contact")


@dataclass(frozen=True)
class Ledger:
    """One block's ledger."""

    label: str
    account: Account

    @property
    def spent(self) -> int:
        """What the worse account spent, in the filter's units."""
        return max(self.account.train_spent, self.account.holdout_spent)

    @property
    def epsilon_spent(self) -> float:
        return self._epsilon(self.spent)

    @property
    def epsilon_taken(self) -> float:
        """The ε with what unfinished jobs hold."""
        account = self.account
        return self._epsilon(
            max(account.train_spent + account.train_held, account.holdout_spent + account.holdout_held)
        )

    @property
    def is_closed(self) -> bool:
        return self.account.joined_into is not None

    def found_by_attack(self, alpha: float) -> float:
        """At most this share of the members is found by an attacker who may accuse a share `alpha` of others wrongly.

        Under `gdp` exactly Φ(Φ⁻¹(α) + μ); under `rdp` what (ε, δ) alone bounds, min(e^ε α + δ, 1 − e^−ε (1 − δ − α)).
        """
        if self.spent == 0:
            return alpha
        if self.account.filter == "gdp":
            return NORMAL.cdf(NORMAL.inv_cdf(alpha) + math.sqrt(self.spent * 1e-12))
        epsilon, delta = self.epsilon_spent, self.account.cap_delta
        return min(1.0, math.exp(epsilon) * alpha + delta, 1.0 - math.exp(-epsilon) * (1.0 - delta - alpha))

    def _epsilon(self, amount: int) -> float:
        account = self.account
        return filter_for(account.filter, account.order).epsilon(amount, account.cap_delta) if amount else 0.0


@dataclass(frozen=True)
class Statement:
    """What the page says.

    Attributes:
        terms: governance and grants as they were signed; None if they are not signed yet.
        charges: jobs and charges of other systems that spent something; a study is one.
        first, last: when the first and the last entry were written.
    """

    dataset: Dataset
    ledgers: list[Ledger]
    terms: Terms | None
    charges: int
    first: datetime
    last: datetime

    @property
    def worst(self) -> Ledger:
        """The ledger that spent most."""
        return max(self.ledgers, key=lambda ledger: ledger.epsilon_spent)

    @property
    def lead(self) -> Ledger:
        """The first open ledger, whose cap holds for all open ones."""
        return next((each for each in self.ledgers if not each.is_closed), self.ledgers[0])

    @property
    def largest_cap(self) -> float:
        return max(each.account.largest_cap_epsilon for each in self.ledgers)

    @property
    def attacks(self) -> list[tuple[float, float]]:
        """By the share of wrong accusations, the largest share of members that an attacker finds."""
        return [(alpha, self.worst.found_by_attack(alpha)) for alpha in ALPHAS]


@router.get("/statement")
@Page("view")
def statement_page(request: Request, dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Says in words what was spent, what is guaranteed, and what is not covered."""
    with db.read() as session:
        return render(
            request, "statement.html", viewer=viewer, statement=_statement(session, viewer.caller, dataset_id)
        )


@router.get("/statement.json")
@Page("view")
def statement_json(dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Sends the evidence: every entry of each block under its signed checkpoint."""
    return document(db, viewer.caller, dataset_id)


@router.get("/statement.csv")
@Page("view")
def statement_csv(dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Sends the figures, a line for each block."""
    with db.read() as session:
        stated = _statement(session, viewer.caller, dataset_id)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow((*COLUMNS, *GOVERNED, "grants", "terms_signed_at"))
    terms = _terms_cells(stated.terms)
    for statement_of in stated.ledgers:
        account_view = statement_of.account
        state = "closed" if statement_of.is_closed else "open"
        account = (
            account_view.filter,
            account_view.order or "",
            filter_for(account_view.filter, account_view.order).unit,
        )
        caps = (account_view.cap_epsilon, account_view.largest_cap_epsilon, account_view.cap_delta)
        amounts = (
            account_view.train_budget,
            account_view.train_spent,
            account_view.train_held,
            account_view.holdout_budget,
            account_view.holdout_spent,
            account_view.holdout_held,
        )
        figures = (*account, *caps, *amounts, statement_of.epsilon_spent, statement_of.epsilon_taken)
        table.writerow(
            (
                statement_of.label,
                account_view.dataset_id,
                state,
                account_view.entries,
                account_view.head,
                *figures,
                *terms,
            )
        )
    headers = {"Content-Disposition": f'attachment; filename="{stated.dataset.name}-statement.csv"'}
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _statement(session: Session, caller: Caller, dataset_id: str) -> Statement:
    """What a caller who may see the data set reads.

    Raises:
        NotFound: no such data set, or the caller may not see it, or it is public.
    """
    dataset, _account = repository.dataset_with_account(session, require(session, caller, dataset_id, "view").id)
    ledgers = [Ledger(label_of(row), account) for row, account in evidence.members_of(session, dataset.id)]
    ends = (LedgerEntry.seq == 1) | (LedgerEntry.seq == Account.entries)
    times = select(func.min(LedgerEntry.created_at), func.max(LedgerEntry.created_at)).join(
        Account, (Account.dataset_id == LedgerEntry.dataset_id) & ends
    )
    of_all = Account.dataset_id.in_([each.account.dataset_id for each in ledgers])
    first, last = session.execute(times.where(of_all)).one()
    charges = sum(each.charges for each in spending(session, caller, dataset.id).items)
    envelope = envelope_of(session, dataset.id)
    return Statement(dataset, ledgers, None if envelope is None else terms_in(envelope), charges, first, last)


def _terms_cells(terms: Terms | None) -> list[str]:
    """Who answers for the data and who may use them, on each line: they are the data set's. Empty until signed."""
    if terms is None:
        return [""] * (len(GOVERNED) + 2)
    rules = terms.governance
    words = [None if rules is None else getattr(rules, name) for name in GOVERNED]
    cells = ["; ".join(each) if isinstance(each, tuple) else each or "" for each in words]
    return [*cells, "; ".join(each.in_words for each in terms.grants), terms.signed_at]
