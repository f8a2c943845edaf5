"""A command sets the mask of its process, and tests run commands in theirs: the next test has the usual one again."""

from __future__ import annotations

import os

import pytest

OF_COMMANDS = 0o077


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_leaves_the_mask_of_new_files_as_it_was(turn: int) -> None:
    assert os.umask(OF_COMMANDS) != OF_COMMANDS, f"before turn {turn}"
