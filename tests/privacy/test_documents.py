"""What the pricing process is asked is typed: a member that is misspelt is refused, and never priced at nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from core.privacy import pricing_server, questions
from core.privacy.price_requests import FinalRunRequest, StudyFitRequest
from core.privacy.prices import Units
from tests.hpo.test_plan import study
from tests.privacy.support import fits, release, request

FULL = request("full_batch", 5000, 5000, 50, epsilon=1.0, filter_=("gdp", None), releases=[release(0.05)])
STUDY = study(1.0, score_mu=0.01, mean={"noise_mu": 0.0173, "max_norm": 1.0, "records": 5000})
ASKED = {
    questions.PRICE: FULL,
    questions.LARGEST_THAT_FITS: fits(FULL, 10**12),
    questions.PRICE_STUDY: STUDY,
    questions.LARGEST_STUDY_THAT_FITS: StudyFitRequest(study=STUDY, remaining=Units(train=10**12, holdout=0)),
    questions.FINAL_RUN: FinalRunRequest(study=STUDY, total_epsilon=1.0, levels=(0.1, 0.2), runs_per_level=2),
}


def misspelt(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document with each of its members misspelt in turn, wherever in it they are."""
    for name, value in document.items():
        yield {(other if other != name else name + "s"): each for other, each in document.items()}
        for at, part in enumerate([value] if isinstance(value, dict) else value if isinstance(value, list) else []):
            for wrong in misspelt(part) if isinstance(part, dict) else ():
                changed = copy.deepcopy(document)
                if isinstance(value, dict):
                    changed[name] = wrong
                else:
                    changed[name][at] = wrong
                yield changed


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.name)
def test_a_misspelt_member_of_a_request_is_refused(question: questions.Question[Any, Any]) -> None:
    """`means` in the place of `mean` priced a search's means at nothing."""
    arguments = ASKED[question].model_dump(mode="json")
    question.answers.model_validate(pricing_server.answer({"function": question.name, "arguments": arguments}))
    tried = 0
    for wrong in misspelt(arguments):
        with pytest.raises(ValidationError):
            pricing_server.answer({"function": question.name, "arguments": wrong})
        tried += 1
    assert tried > 10


def test_every_question_is_answered() -> None:
    named = {each.name for each in vars(questions).values() if isinstance(each, questions.Question)}
    assert named == {each.question.name for each in pricing_server._QUESTIONS}
