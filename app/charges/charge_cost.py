"""What a claim of another system costs, and which blocks of its data set pay."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.charges.schemas import ChargeRequest
from app.datasets.repository import has_blocks
from app.db.models import Account, Dataset
from app.ledger import block_accounts
from app.ledger.accounts import account_of
from app.ledger.block_accounts import lead, records_of
from app.ledger.repository import is_charged_by_others, unit_of
from app.ledger.second import second_filter
from app.pricing.service import PricingService
from core.contracts.blocks import ALL
from core.contracts.dataset_spec import DatasetSpec
from core.errors import Conflict, InvalidRequest
from core.privacy.filters import Filter, filter_of
from core.privacy.foreign_claims import UNBOUNDED_BY_MU, Claim, ClaimRequest
from core.privacy.price_requests import FilterChoice


def amounts(
    pricing: PricingService, request: ChargeRequest, dataset: Dataset, account: Account, under: Filter
) -> tuple[int, int]:
    """What the claim costs on (train, holdout), in a filter's units: the account's, or the one that it moves to."""
    unit = unit_of(dataset)
    if request.relation != "add_or_remove_one":
        raise InvalidRequest.at(
            "/relation",
            "a claim about replacing one unit does not cover adding or removing one, which this ledger guarantees: "
            "state the mechanism's privacy for `add_or_remove_one`",
        )
    if unit != request.unit:
        raise InvalidRequest.at(
            "/unit",
            f"this data set's unit is `{unit}`: state the mechanism's privacy for it. A claim for users does not cover "
            "one record: to add a record to a user's others is to remove the user and to add the user again",
        )
    if request.account == "holdout" and account.holdout_budget == 0:
        raise InvalidRequest.at("/account", "this data set has no private hold-out: use `train` or `both`")
    choice = FilterChoice(kind=under.kind, order=under.order)
    units = pricing.price_claim(ClaimRequest(claim=request.mechanism, filter=choice))
    on_holdout = request.account != "train" and account.holdout_budget > 0
    return (units if request.account != "holdout" else 0, units if on_holdout else 0)


def block_of(session: Session, dataset_id: str, ledger: str) -> str | None:
    """The label of the block whose records a ledger is of; None if the data set never grew."""
    return (
        block_accounts.label_of(block_accounts.records_of(session, ledger)) if has_blocks(session, dataset_id) else None
    )


def payer_of(session: Session, dataset: Dataset, claim: Claim) -> tuple[Account, Filter, bool]:
    """The account that pays for a claim on a data set, the filter that counts it, and True if the ledger must move to
    that one first: no theorem bounds the claim under `gdp`."""
    account = lead(session, dataset.id)
    may = account.filter == "gdp" and account.whole_delta is not None and isinstance(claim, UNBOUNDED_BY_MU)
    moves = may and DatasetSpec.model_validate(dataset.spec).privacy.plan == "mixed"
    return account, second_filter(dataset) if moves else filter_of(account.filter, account.order), moves


def read_by(session: Session, request: ChargeRequest, members: list[str]) -> list[str]:
    """The ledgers that a charge is held on: of the blocks that it names, or of all that are open, since nobody here
    sees what another system reads.

    Raises:
        InvalidRequest: it names a block twice, or one that is not open.
    """
    still = block_accounts.open_ones(session, members)
    if request.blocks == ALL:
        return still
    by_label = {block_accounts.label_of(records_of(session, each)): each for each in still}
    for place, label in enumerate(request.blocks):
        if label not in by_label or label in request.blocks[:place]:
            problem = "is named twice" if label in by_label else f"is not open; open are {', '.join(by_label)}"
            raise InvalidRequest.at(f"/blocks/{place}", f"block {label!r} {problem}")
    return [by_label[label] for label in request.blocks]


def check_people(session: Session, dataset_id: str, members: list[str]) -> None:
    """Refuses a charge where people may be in several blocks, or a block leaves records of them out: each block that it
    is held on would pay, and a person of two of them lose twice as much. Once there is a charge, people stay apart
    (app.datasets.growth.after).

    Raises:
        Conflict: `wrong-state`.
    """
    if not has_blocks(session, dataset_id) or any(is_charged_by_others(session, each) for each in members):
        return
    if DatasetSpec.model_validate(session.get_one(Dataset, dataset_id).spec).privacy.max_records_per_user is None:
        return
    raise Conflict(
        "wrong-state",
        "people of this data set may be in several of its blocks, and what another system learns of one of them does "
        "not shrink with the records in each: register the records that it reads as a data set of their own",
    )


def all_under(session: Session, ledgers: Sequence[str], under: Filter) -> bool:
    """True if all these ledgers count by this filter."""
    accounts = (account_of(session, each) for each in ledgers)
    return all(filter_of(each.filter, each.order) == under for each in accounts)
