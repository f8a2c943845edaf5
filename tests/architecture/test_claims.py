"""docs/claims.md is written from the docstrings of the tests that hold its claims."""

from __future__ import annotations

import pytest

from scripts import write_claims

CLAIMS = [each for each in write_claims.statements() if each.section is None]


def test_there_are_claims() -> None:
    assert len(CLAIMS) > 20 and len(set(CLAIMS)) == len(CLAIMS)


def test_each_claim_is_on_the_page_with_its_test() -> None:
    assert write_claims.CLAIMS.read_text() == write_claims.claims(), "run `make openapi`"


@pytest.mark.parametrize(
    "paragraph", ["Claim: a sum is bounded.", "Attack: A thief\nNow: caught", "Attack (Windows): A thief\nNow: caught"]
)
def test_a_statement_that_no_page_would_show_is_refused(paragraph: str) -> None:
    with pytest.raises(ValueError, match="does not state a claim"):
        write_claims.read(paragraph, "tests/test_it.py::test_it")
