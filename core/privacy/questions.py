"""The questions to the pricing process: each has a name on the pipe, a request type and an answer type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from core.contracts.base import Document
from core.privacy.foreign_claims import ClaimPrice, ClaimRequest
from core.privacy.price_requests import (
    CompareRequest,
    FinalRunRequest,
    FitRequest,
    OrderRequest,
    PlanRequest,
    StudyFitRequest,
    StudyRequest,
    WarmRequest,
)
from core.privacy.prices import BasicSum, ChosenOrder, Compared, FinalRun, Largest, Price, StudyPrice, Warmed

Asked = TypeVar("Asked", bound=Document)
Answer = TypeVar("Answer", bound=Document)


@dataclass(frozen=True)
class Question(Generic[Asked, Answer]):
    """A function of the pricing process: its name and its types."""

    name: str
    asks: type[Asked]
    answers: type[Answer]


PRICE = Question("price", PlanRequest, Price)
LARGEST_THAT_FITS = Question("largest_that_fits", FitRequest, Largest)
PRICE_STUDY = Question("price_study", StudyRequest, StudyPrice)
LARGEST_STUDY_THAT_FITS = Question("largest_study_that_fits", StudyFitRequest, Largest)
FINAL_RUN = Question("final_run", FinalRunRequest, FinalRun)
COMPARE = Question("compare", CompareRequest, Compared)
BASIC = Question("basic", CompareRequest, BasicSum)
CHOOSE_ORDER = Question("choose_order", OrderRequest, ChosenOrder)
PRICE_CLAIM = Question("price_claim", ClaimRequest, ClaimPrice)
WARM = Question("warm", WarmRequest, Warmed)
