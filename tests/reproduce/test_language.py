"""Parts of the experiments on language models: Brown's paragraphs, and groups that are joined."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.reproduce.language_report import _joined

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import brown

TAGGED = """

	The/at jury/nn said/vbd ``/`` yes/rb ''/'' (/( twice/rb )/) ./.


	It/pps was/bedz and\\/or/cc 1/2/cd ,/, so/rb ./.

It/pps is/bez ./.
"""


def test_a_paragraph_is_its_words_without_tags() -> None:
    assert list(brown.paragraphs(TAGGED)) == [
        'The jury said "yes" (twice).',
        "It was and\\/or 1/2, so. It is.",
    ]


def test_groups_are_joined_by_how_many_tokens_they_have() -> None:
    counts, losses = {"1-1": 1, "2-3": 3, "16-31": 5, "4-7": 0}, {"1-1": 8.0, "2-3": 4.0, "16-31": 1.0}
    assert _joined(counts, losses, 1, 15) == (pytest.approx(5.0), 4)
    assert _joined(counts, losses, 16, 127) == (1.0, 5)
    assert _joined(counts, losses, 128, 1023) == (0.0, 0)
