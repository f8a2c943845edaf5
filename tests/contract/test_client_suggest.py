"""Did you mean, in the client's own specifications: before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

import scrimp
from scrimp import specs

WRONG: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: specs.DpSgd.model_validate({"learnin_rate": 1.0}),
        "DpSgd has no `learnin_rate`: did you mean `learning_rate`",
    ),
    (
        lambda: scrimp.JobSpec.model_validate({"dataset": "a", "learning_rate": 1.0}),
        "JobSpec has no `learning_rate`: it belongs into `optimizer`",
    ),
    (
        lambda: scrimp.JobSpec.model_validate({"dataset": "a", "steps": 9}),
        "JobSpec has no `steps`: it belongs into `length`",
    ),
    (
        lambda: scrimp.JobSpec.model_validate({"dataset": "a", "optimizer": {"kind": "dp_sgd", "momentun": 0.9}}),
        "did you mean `momentum`",
    ),
    (
        lambda: scrimp.JobSpec.model_validate({"dataset": "a", "epsilon": 1.0}),
        "JobSpec has no `epsilon`: did you mean `target_epsilon` in `privacy`",
    ),
    (lambda: specs.Length.model_validate({"seconds": 3}), "Length has no `seconds`; it has epochs, steps"),
]


@pytest.mark.parametrize(("made", "said"), WRONG)
def test_a_member_that_there_is_not_is_answered_with_the_likely_one(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        made()
