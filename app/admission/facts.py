"""The public facts about a data set that an admission depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from app.datasets.sizes import declared_slots, split_sizes, whole_of
from core.contracts.base import AccountName, Unit
from core.contracts.dataset_spec import DatasetSpec, LastItemHoldout, SplitHoldout
from core.contracts.filter_names import FilterName
from core.contracts.job_spec import Model, seen_by
from core.contracts.slots import Slots
from core.errors import InvalidRequest
from core.privacy.derive import ANY_FILTER, PublicFacts, default_delta
from core.privacy.gdp import mu_from_epsilon
from core.privacy.numerics import PublicSizes
from core.privacy.price_requests import FilterChoice
from core.privacy.prices import Units
from core.privacy.slot_numbers import added, slots_of


@dataclass(frozen=True)
class BlockFacts:
    """A block of a data set: its public sizes. What is left on its account depends on ledgers alone.

    Attributes:
        id: of the ledger that pays.
        left: what the caller's key may still hold on it.
        slots: the places of its parts.
    """

    id: str
    label: str
    records_train: int
    records_holdout: int
    left: Units
    slots: Slots


@dataclass(frozen=True)
class DatasetFacts:
    """The facts about a data set that planning uses: all of them are public.

    Attributes:
        blocks: those that a job reads, in the order of their ids; none for a data set that is its only block.
        stated_slots: the places of its parts; None: those that its registration admitted before there were slots.
        pays_on: the id of the ledger that it moved to; None: its own pays. Filter, order and δ are the paying ledger's.
        moves: they are those of the ledger that it will move to, before this job is admitted.
    """

    id: str
    name: str
    spec: DatasetSpec
    records_train: int
    records_holdout: int
    features: int
    outputs: int
    filter: FilterName | None  # None on public data: there is no account
    order: float | None
    cap_delta: float | None
    declaration: int = 1  # the version of the declaration that all this comes from
    blocks: tuple[BlockFacts, ...] = ()
    stated_slots: Slots | None = None
    pays_on: str | None = None
    moves: bool = False

    @property
    def slots(self) -> Slots:
        """The places of its parts."""
        return slots_of(self.stated_slots, self.records_train, self.records_per_unit)

    @property
    def sizes(self) -> PublicSizes:
        """The sizes that numerics depend on."""
        sizes = (self.features, self.outputs, self.is_sparse)
        return PublicSizes(self.records_train, self.records_per_unit, *sizes, self.slots.train)

    @property
    def reads(self) -> tuple[str, ...]:
        """The ids of the ledgers that pay for what a job reads: of its blocks, or of the data set."""
        return tuple(each.id for each in self.blocks) or (self.pays_on or self.id,)

    def seen_by(self, model: Model) -> DatasetFacts:
        """The same data set with the features that a model reads.

        Raises:
            InvalidRequest: its columns do not allow the model's maps.
        """
        try:
            features = seen_by(model, self.spec.features)
        except ValueError as error:
            detail = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise InvalidRequest.at("/model/pairs", detail.removeprefix("Value error, ")) from None
        if features is self.spec.features:
            return self
        declared = self.spec.model_copy(update={"features": features})
        return replace(self, spec=declared, features=features.numbers(self.features))

    def on(self, blocks: Iterable[BlockFacts]) -> DatasetFacts:
        """The same data set, of which some blocks are read: their declared sizes add up."""
        blocks_by_id = tuple(sorted(blocks, key=lambda block: block.id))
        return replace(
            self,
            blocks=blocks_by_id,
            records_train=sum(each.records_train for each in blocks_by_id),
            records_holdout=sum(each.records_holdout for each in blocks_by_id),
            stated_slots=added(each.slots for each in blocks_by_id),
        )

    def with_records(self, records: int) -> DatasetFacts:
        """Returns the facts of a data set that is registered like this one, with so many training records: default
        slots, and a hold-out that is split off alike. Only its ledger stays this one's.

        Raises:
            InvalidRequest: at `/records`, no data set can have so many.
        """
        if records == self.records_train:
            return self
        counts = {"records": whole_of(self.spec, records), "slots": None}
        declared = self.spec.model_copy(update={"privacy": self.spec.privacy.model_copy(update=counts)})
        train, holdout = split_sizes(declared, whole_of(self.spec, records), "/records")
        return replace(
            self,
            spec=declared,
            records_train=train,
            records_holdout=holdout or self.records_holdout,  # a file of its own keeps its records
            stated_slots=declared_slots(declared, ""),
        )

    def total(self, epsilon: float | None, delta: float | None) -> tuple[float, float | None]:
        """The δ of a job with these targets, and the μ of its total; None if it has no ε."""
        delta = delta or self.public.delta or default_delta(self.public.records_train)
        return delta, mu_from_epsilon(epsilon, delta) if epsilon is not None else None

    @property
    def rows(self) -> tuple[int, int]:
        """The declared numbers of users and items; 0 where there are none."""
        return self.spec.features.rows

    @property
    def unit(self) -> Unit:
        """The unit that ε protects; for next items one record holds a whole user."""
        return "user" if self.spec.task.record_is_user else self.spec.privacy.unit

    @property
    def is_sparse(self) -> bool:
        """True if the features are sparse."""
        return self.spec.features.is_sparse

    @property
    def is_private(self) -> bool:
        """True if the data set is private."""
        return self.spec.privacy.sensitivity == "private"

    @property
    def records_per_unit(self) -> int:
        """At most this many records share the protection of one unit."""
        return self.spec.privacy.max_records_per_user or 1

    @property
    def holdout_is_private(self) -> bool:
        """True if there is a hold-out and it is private."""
        return self.is_private and isinstance(self.spec.holdout, SplitHoldout | LastItemHoldout)

    @property
    def holdout_account(self) -> AccountName:
        """The account that pays for scores. Held-out last items belong to users in training: `train` pays."""
        return "train" if isinstance(self.spec.holdout, LastItemHoldout) else "holdout"

    @property
    def public(self) -> PublicFacts:
        """The facts that mechanisms depend on."""
        return PublicFacts(
            records_train=self.records_train,
            records_holdout=self.records_holdout,
            records_per_unit=self.records_per_unit,
            unit=self.unit,
            classification=self.spec.task.is_classification,
            outputs=self.outputs,
            holdout_is_private=self.holdout_is_private,
            holdout_account=self.holdout_account,
            delta=self.cap_delta,
            slots=self.slots.train.units,
            filter=FilterChoice(kind=self.filter, order=self.order) if self.filter else ANY_FILTER,
        )
