"""What the service's answers can do: scrimp/models.py has their members, and extends the class of the same name.

Under TYPE_CHECKING stand the members that are used here; mypy compares them with the declared ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from scrimp import plots
from scrimp.errors import UnexpectedAnswer
from scrimp.rows import Rows, facts

if TYPE_CHECKING:
    from scrimp import models

R = TypeVar("R")
FINAL = frozenset({"succeeded", "failed", "cancelled"})
# What comes with `auc`, from one histogram.
OF_AUC = (
    "average_precision",
    "accuracy",
    "balanced_accuracy",
    "recall",
    "precision",
    "positive_share",
    "mean_prediction",
)
# The numbers that come with a release, by its name; with `macro_f1` also the recall of each class.
PARTS = {
    "auc": OF_AUC,
    "macro_f1": ("accuracy", "balanced_accuracy", "largest_share"),
    "r_squared": ("rmse",),
}
UNREAD = {"records_train": 0, "records_holdout": 0, "features": 0, "outputs": 0, "sparse": False}


def releases_with(name: str) -> set[str]:
    """The releases that a number may be part of: HIT comes with NDCG, a group of classes with its whole.

    >>> sorted(releases_with("recall:3")), releases_with("hit@10"), releases_with("rmse")
    (['macro_f1', 'recall'], {'ndcg@10'}, {'r_squared'})
    """
    releases = {total for total, parts in PARTS.items() if name in parts}
    if name.startswith("recall:"):
        releases.add("macro_f1")
    if ":" in name:
        releases.add(name.partition(":")[0])
    if name.startswith("hit@"):
        releases.add(name.replace("hit@", "ndcg@"))
    return releases


class Resource(BaseModel):
    """An answer. Members that a newer service adds are kept, so that an older client still works."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @classmethod
    def model_validate(cls, obj: Any, **how: Any) -> Self:
        """As pydantic's; raises UnexpectedAnswer."""
        return _expected(super().model_validate, obj, how)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **how: Any) -> Self:
        """As pydantic's; raises UnexpectedAnswer."""
        return _expected(super().model_validate_json, json_data, how)


def _expected(validate: Callable[..., R], answer: object, options: dict[str, Any]) -> R:
    """Outside pydantic: an error that a part raises does not know where the part is."""
    try:
        return validate(answer, **options)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UnexpectedAnswer(error.title, ".".join(map(str, first["loc"])), first["msg"]) from None


class Kind(Resource):
    """An entry of a catalogue: a model, an extractor or a strategy; its members are the service's."""


class Ledger(Resource):
    if TYPE_CHECKING:
        cap: models.Epsilon
        accounts: dict[str, models.Account | None]
        epsilon_spent: models.Epsilon

    def rows(self) -> Rows[models.Account]:
        """The accounts; each has its name as a further member."""
        return Rows(each.model_copy(update={"name": name}) for name, each in self._accounts().items())

    def frame(self) -> Any:
        """The accounts as a pandas DataFrame, a row for each; see `scrimp.rows.Rows.frame`."""
        return self.rows().frame()

    def plot(self) -> Any:
        """Draws spent, held and left of each account; returns matplotlib's axes.

        Raises:
            MissingPackage: matplotlib is not installed.
        """
        return plots.accounts(self._accounts())

    def _accounts(self) -> dict[str, models.Account]:
        return {name: each for name, each in self.accounts.items() if each is not None}

    def _repr_html_(self) -> str:
        budgets = [
            (name, f"{each.spent / each.budget:.1%} spent, {each.held / each.budget:.1%} held")
            for name, each in self._accounts().items()
        ]
        spent = [("spent so far", f"ε = {self.epsilon_spent.value:.4g}")]
        return facts([("cap", f"ε = {self.cap.value:g}, δ = {self.cap.delta:g}"), *budgets, *spent])


class PartSlots(Resource):
    if TYPE_CHECKING:
        units: int
        rows: int

    def __str__(self) -> str:
        return f"{self.units:,}" + ("" if self.rows == self.units else f" ({self.rows:,} records)")


class Slots(Resource):
    if TYPE_CHECKING:
        train: models.PartSlots
        holdout: models.PartSlots | None

    def __str__(self) -> str:
        return f"{self.train} to train on" + ("" if self.holdout is None else f", {self.holdout} held out")


class DataBlock(Resource):
    @field_validator("shape", mode="before", check_fields=False)
    @classmethod
    def _known_later(cls, shape: Any) -> Any:
        return UNREAD if shape is None else shape  # of a file that is being read


class Dataset(DataBlock):
    if TYPE_CHECKING:
        id: str
        name: str
        state: str
        shape: models.Shape
        ledger: models.Ledger | None

    def _repr_html_(self) -> str:
        sizes = f"{self.shape.records_train:,} to train on, {self.shape.records_holdout:,} held out"
        budget = "public: no privacy is claimed for it" if self.ledger is None else self.ledger._repr_html_()
        slots = [] if self.shape.slots is None else [("slots", str(self.shape.slots))]
        facts_of = facts([("data set", f"{self.name} ({self.id})"), ("state", self.state), ("records", sizes), *slots])
        return facts_of + budget


class Resolved(Resource):
    if TYPE_CHECKING:
        learning_rate: float | None
        because: str
        steps: models.Choice | None
        max_grad_norm: models.Choice | None
        parts: list[models.Part]

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Name, value and reason of each choice of the service."""
        choices = {"steps": self.steps, "clipping norm": self.max_grad_norm}
        numbers = [(name, choice.value, choice.because) for name, choice in choices.items() if choice is not None]
        rate = [] if self.learning_rate is None else [("learning rate", self.learning_rate, self.because)]
        lines = [(name, f"{value:g}", because) for name, value, because in numbers + rate]
        return [(part.name, part.value, part.because) for part in self.parts] + lines


class Quote(Resource):
    if TYPE_CHECKING:
        steps: int
        epsilon: models.Epsilon | None
        fits: bool | None
        lines: list[models.Line]
        jobs_that_fit: int | None
        warnings: list[str]

    def _repr_html_(self) -> str:
        epsilon = "public data" if self.epsilon is None else f"ε = {self.epsilon.value:.4g}, δ = {self.epsilon.delta:g}"
        answer = "fits" if self.fits else "does not fit"
        bill = [(each.what, None if each.epsilon is None else f"ε = {each.epsilon.value:.4g}") for each in self.lines]
        extra = [("jobs like it that fit", self.jobs_that_fit), *(("warning", each) for each in self.warnings)]
        return facts([("privacy", epsilon), ("steps", self.steps), *bill, ("budget", answer), *extra])


class Job(Resource):
    if TYPE_CHECKING:
        status: str
        spec: dict[str, Any]
        quote: models.Quote
        progress: models.Progress
        study: models.Study | None

    @property
    def epsilon_planned(self) -> models.Epsilon | None:
        """The cost of the whole job; null on public data."""
        return self.quote.epsilon

    @property
    def done(self) -> bool:
        """Returns True if the job has ended."""
        return self.status in FINAL

    @property
    def doing(self) -> str:
        """What a running job does before its first step, which may take hours with an extractor; "" afterwards.

        It follows from status, step and specification alone: how far an extraction is would tell how many records
        there are.
        """
        if self.status != "running" or self.progress.step or self.study is not None:
            return ""
        extractor = (self.spec.get("model") or {}).get("extractor")
        return "loading the data and their features" if extractor else "loading the data"
