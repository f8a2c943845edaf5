"""The pricing server: answers a question, given by its name and arguments, as JSON in and out.

In the pricing process only this module reads and writes JSON. It refuses members that a question does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic

from core.contracts.dataset_spec import TypicalJob
from core.privacy import accounting, filters, foreign_claims, pricing, questions, study_price, sweep_price
from core.privacy.price_requests import FilterChoice, OrderRequest, PlanRequest, TrainingPlan, WarmRequest
from core.privacy.prices import ChosenOrder, Warmed
from core.privacy.questions import Answer, Asked, Question


@dataclass(frozen=True)
class _Answered(Generic[Asked, Answer]):
    """A question and the function that answers it."""

    question: Question[Asked, Answer]
    function: Callable[[Asked], Answer]

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.function(self.question.asks.model_validate(arguments)).model_dump(mode="json")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs `request["function"]` on `request["arguments"]`.

    Raises:
        ServiceError: the function refuses the request.
        ValidationError: the arguments do not fit the question.
    """
    function: str = request["function"]
    answered = {each.question.name: each for each in _QUESTIONS}
    return answered[function](request["arguments"])


def choose_order(request: OrderRequest) -> ChosenOrder:
    """Chooses α* for an `rdp` filter."""
    job: TypicalJob | None = request.typical_job
    return ChosenOrder(order=filters.choose_order(request.cap_epsilon, request.cap_delta, request.records, job))


@cache
def warm(_request: WarmRequest) -> Warmed:
    """Prices one plan of each kind, once, so that the libraries are loaded before the first request."""
    full = TrainingPlan(
        sampling="full_batch", sample_rate=1.0, steps=10, max_grad_norm=1.0, clipping="flat", expected_batch_size=100
    )
    part = full.model_copy(update={"sampling": "poisson", "sample_rate": 0.01, "expected_batch_size": 1})
    for training, choice in ((full, FilterChoice(kind="gdp")), (part, FilterChoice(kind="rdp", order=8.0))):
        pricing.price(
            PlanRequest(training=training, target_epsilon=None, noise_multiplier=2.0, target_delta=1e-5, filter=choice)
        )
    return Warmed()


_QUESTIONS: tuple[_Answered[Any, Any], ...] = (
    _Answered(questions.PRICE, pricing.price),
    _Answered(questions.LARGEST_THAT_FITS, pricing.largest_that_fits),
    _Answered(questions.PRICE_STUDY, study_price.price),
    _Answered(questions.LARGEST_STUDY_THAT_FITS, study_price.largest_that_fits),
    _Answered(questions.FINAL_RUN, sweep_price.final_run),
    _Answered(questions.COMPARE, accounting.compare),
    _Answered(questions.BASIC, accounting.basic),
    _Answered(questions.CHOOSE_ORDER, choose_order),
    _Answered(questions.PRICE_CLAIM, foreign_claims.price),
    _Answered(questions.WARM, warm),
)
