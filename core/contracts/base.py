"""What every contract shares: frozen, closed documents with finite numbers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from core import leaves

Unit = Literal["example", "user"]
Relation = Literal["add_or_remove_one"]
AccountantName = Literal["gdp", "rdp", "pld"]
WITHIN_A_JOB: tuple[AccountantName, ...] = ("gdp", "pld", "rdp")  # accountants of record
AccountName = Literal["train", "holdout"]

# Outside these bounds accounting is meaningless or too slow: one PLD at σ = 0.05 took 66 s and 6.6 GB.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-4, 100.0
EpsilonValue = Annotated[float, Field(strict=True, ge=SMALLEST_EPSILON, le=LARGEST_EPSILON)]
DeltaValue = Annotated[float, Field(strict=True, ge=1e-15, lt=1e-2)]
NoiseMultiplier = Annotated[float, Field(strict=True, ge=0.1, le=1e5)]
# Strict: `true` is not a number of steps, and "1" is text.
Steps = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]


# PostgreSQL's texts cannot hold NUL.
NO_NUL = r"^[^\x00]*$"


def is_none(value: object) -> bool:
    """Leaves a member out where it is unset, as the rows before it were written."""
    return value is None


def is_one(value: object) -> bool:
    """Leaves out a factor of 1, as `is_none`."""
    return value == 1


def is_ieee(value: object) -> bool:
    """Leaves out the precision that all had before it was written, as `is_none`."""
    return value == "ieee"


# The context in which a declaration is validated before it is stored: what is refused here may be stored already.
DECLARATION = "declaration"


class Deferred(BaseModel):
    """A model whose validator is built at its first use: a process uses few of those that it loads."""

    model_config = ConfigDict(defer_build=True)


def complete(base: type[BaseModel] = Deferred) -> None:
    """Builds the validators of all that is loaded: before forks, which then share them."""
    for model in base.__subclasses__():
        if "[" not in model.__name__:  # of a generic one, what stands in for its parameters may not be complete
            model.model_rebuild()
        complete(model)


class Document(Deferred):
    """A JSON document of the REST contract. Refuses unknown members, NaN and ∞. Instances never change."""

    # Errors do not repeat inputs: a document may hold keys, and errors are logged.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


@leaves.PLANNED
class Epsilon(Document):
    """A privacy loss. It is never printed without its meaning."""

    value: float
    delta: float
    accountant: AccountantName
    unit: Unit = "example"
    relation: Relation = "add_or_remove_one"
