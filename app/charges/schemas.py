"""The requests and responses of /v1/charges."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from app.db.row_view import Column, Given, Page, RowView
from core.contracts.base import NO_NUL, Document, Unit, is_none
from core.contracts.blocks import ALL, BlockChoice
from core.contracts.governance import Use
from core.privacy.foreign_claims import Claim

Part = Literal["train", "holdout", "both"]
Status = Literal["held", "posted", "voided"]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000, pattern=NO_NUL)]
CLAIM: TypeAdapter[Claim] = TypeAdapter(Claim)


class ChargeRequest(Document):
    """What another system will compute from a data set.

    Attributes:
        dataset: id or name.
        account: the part that it reads: `train`, `holdout`, or `both`, the whole data set.
        mechanism: its privacy, of everything that it will answer under this charge.
        unit: what one neighbour adds or removes in that system: one record (`example`) or all records of a `user`.
        relation: its neighbouring relation. `replace_one` is refused: this ledger's guarantee is of adding or removing.
        blocks: which blocks of the data set it reads, and on which the charge is held; "all": every open one.
        attested: which system and query this is, in words, for whoever reads the ledger.
        use: the purpose and the permit, as of a job: what the data set's owner requires, and allows.
    """

    dataset: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    account: Part = "both"
    mechanism: Claim = Field(examples=[{"kind": "laplace", "scale": 4.0}, {"kind": "zcdp", "rho": 0.01}])
    unit: Unit
    relation: Literal["add_or_remove_one", "replace_one"] = "add_or_remove_one"
    attested: Text
    blocks: BlockChoice = "all"
    use: Use | None = None

    @property
    def digest(self) -> str:
        """What is stored with an Idempotency-Key: equal requests have equal digests."""
        # Without the defaults: a request from before there were blocks, or uses, is the same one.
        absent = {name for name, default in (("blocks", ALL), ("use", None)) if getattr(self, name) == default}
        document = self.model_dump_json(exclude=absent or None)
        return hashlib.sha256(document.encode()).hexdigest()


class Attested(Document):
    """What a key attests of a charge, as its hold's entry in the ledger says it. Members as in `ChargeRequest`."""

    account: Part
    mechanism: Claim
    attested: str
    use: Use | None = Field(default=None, exclude_if=is_none)


class Charged(Document):
    """The memo of that entry."""

    charge: Attested


class VoidRequest(Document):
    """Why the charge is given back: nothing was answered from the data."""

    reason: Text


class ChargeView(RowView):
    """A charge of another system. Amounts are in the account's `unit`; shares are parts of its budget.

    `attested_by` is the key that vouches for `mechanism`: this service cannot check what another system does.
    """

    id: str
    dataset: Annotated[str, Column("dataset_id")]
    account: Part
    status: Status
    mechanism: Claim
    attested: str
    attested_by: Annotated[str, Column("key_id")]
    use: Use | None
    unit: Annotated[str, Given()]
    train: int
    holdout: int
    share_train: Annotated[float, Given()]
    share_holdout: Annotated[float, Given()]
    reason: str | None
    created_at: datetime
    settled_at: datetime | None


class ChargeList(Page[ChargeView]):
    """A page of charges, newest first; `next` is the cursor of the next page, null on the last."""
