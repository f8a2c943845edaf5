"""A command sets the mask and the settings of its process, and tests run commands in theirs: the next test has the
usual ones again."""

from __future__ import annotations

import os

import pytest

OF_COMMANDS = 0o077


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_leaves_the_mask_of_new_files_as_it_was(turn: int) -> None:
    assert os.umask(OF_COMMANDS) != OF_COMMANDS, f"before turn {turn}"


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_leaves_the_settings_as_they_were(turn: int) -> None:
    assert "SCRIMP_OF_A_COMMAND" not in os.environ and os.environ["SCRIMP_BODY_TIME_S"] == "300", f"before turn {turn}"
    os.environ |= {"SCRIMP_OF_A_COMMAND": "cpu", "SCRIMP_BODY_TIME_S": "1"}
